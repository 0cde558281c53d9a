"""``kafka-source``: topics of Kafka become topics here, record by record."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, cast

import pyarrow as pa
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from headrace.connect import (
    Config,
    ConfigDeclaration,
    ConfigProblem,
    Header,
    SourceBatch,
    SourceConnector,
    SourceRecord,
    SourceTask,
    at_least,
    between,
    declare,
    key,
    one_of,
)
from headrace.connect.connectors.kafka.settings import (
    KAFKA_KEYS,
    check_answers,
    client_settings,
    is_outage,
    unreachable,
)
from headrace.connect.connectors.sharing import ShareWatch, chosen_topics, dealt, dealt_to
from headrace.connect.schema import BYTES
from headrace.errors import StateError

_SHARE = "task.partitions"
_RAW = BYTES.as_optional()
_ANSWER = 30.0
#: Of the leader that wrote the last record before a position.
_EPOCH = "kafka_leader_epoch"
_NO_EPOCH = -1
#: In what the client says of a log that was cut.
_END_OF_CUT = re.compile(r"truncation detected.*end offset is (\d+)")

_KEYS = KAFKA_KEYS | declare(
    key(
        "kafka.topics",
        list,
        "Topics of Kafka to read; what begins with ^ is a regular expression.",
        required=True,
        group="Topics",
    ),
    key(
        "topic.format",
        str,
        "The topic here of a topic there: ${topic} stands for its name.",
        default="${topic}",
        group="Topics",
    ),
    key(
        "keep.partitions",
        bool,
        "Whether a record goes to the queue that has its partition's number; the topic here must"
        " have as many.",
        default=False,
        group="Topics",
    ),
    key(
        "start.from",
        str,
        "Where a partition begins that was never read: earliest or latest.",
        default="earliest",
        valid=one_of("earliest", "latest"),
        group="Topics",
    ),
    key(
        "isolation.level",
        str,
        "Whether records of open and aborted transactions are left out: read_committed or"
        " read_uncommitted.",
        default="read_committed",
        valid=one_of("read_committed", "read_uncommitted"),
        group="Guarantee",
    ),
    key(
        "topics.poll.interval.ms",
        timedelta,
        "How often to look for new topics and partitions.",
        default=timedelta(seconds=30),
        valid=at_least(timedelta(seconds=1)),
        group="Topics",
    ),
    key(
        "batch.max.rows",
        int,
        "Most records of one poll.",
        default=10_000,
        valid=between(2, 100_000),
        group="Topics",
    ),
)


class KafkaSourceTask(SourceTask):
    """Reads its share of the partitions, from where they were committed."""

    _consumer: Consumer | None = None

    def start(self, config: Config) -> None:
        """Begin each partition at its committed position."""
        self._config = config
        self._limit: int = config["batch.max.rows"]
        self._keep: bool = config["keep.partitions"]
        #: What was read and waits to be given.
        self._read: deque[Sequence[SourceRecord] | SourceBatch] = deque()
        self._format: str = config["topic.format"]
        name = self.context.connector
        self._consumer = Consumer(
            client_settings(
                config,
                name,
                **{
                    "group.id": f"headrace-{name}",
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    # A position that is gone is a loss, and never passed over.
                    "auto.offset.reset": "error",
                    "isolation.level": config["isolation.level"],
                },
            )
        )
        share = dealt_to(config, _SHARE)
        self._consumer.assign([self._place(topic, number) for topic, number in share])

    def poll(self) -> Sequence[SourceRecord] | SourceBatch | None:
        """Return what is new of one partition after the other."""
        if not self._read:
            self._read_on()
        return self._read.popleft() if self._read else None

    def _read_on(self) -> None:
        assert self._consumer is not None
        first = self._consumer.poll(0.5)
        if first is None:
            return
        # Whoever asks for many waits for many: only what is here already comes along.
        arrived = [first, *self._consumer.consume(self._limit - 1, timeout=0)]
        found: dict[tuple[str | None, int | None], list[Message[Any, Any]]] = defaultdict(list)
        for message in arrived:
            error = message.error()
            if error is None:
                found[message.topic(), message.partition()].append(message)
            else:
                self._judge(message, error)
        for messages in found.values():
            if any(message.headers() for message in messages):
                self._read.append([self._record(message) for message in messages])
            else:
                self._read.append(self._columns(messages))

    def commit(self) -> None:
        """Show the position to Kafka's own tools; it is never read back."""
        assert self._consumer is not None
        places = [
            TopicPartition(where["kafka_topic"], where["kafka_partition"], to["kafka_offset"])
            for where, to in self.context.offsets.all()
        ]
        if places:
            self._consumer.commit(offsets=places, asynchronous=True)

    def healthy(self) -> bool:
        """Whether Kafka answers."""
        check_answers(self._config)
        return True

    def stop(self) -> None:
        """Leave Kafka."""
        if self._consumer is not None:
            self._consumer.close()

    def _place(self, topic: str, number: int) -> TopicPartition:
        committed = self.context.offsets.get(_partition(topic, number))
        if committed is not None:
            # Kafka tells by the epoch when what lies before that offset is no longer what was read.
            epoch = int(committed.get(_EPOCH, _NO_EPOCH))
            return TopicPartition(topic, number, int(committed["kafka_offset"]), leader_epoch=epoch)
        first = self._config["start.from"] == "earliest"
        return TopicPartition(topic, number, OFFSET_BEGINNING if first else OFFSET_END)

    def _columns(self, messages: Sequence[Message[Any, Any]]) -> SourceBatch:
        """Put messages of a partition that have no headers into columns."""
        last, moments = self._record(messages[-1]), [one.timestamp() for one in messages]
        times = [None if kind == TIMESTAMP_NOT_AVAILABLE else time for kind, time in moments]
        return SourceBatch(
            partition=last.partition,
            offset=last.offset,
            topic=last.topic,
            key=pa.array([message.key() for message in messages], pa.binary()),
            value=pa.array([message.value() for message in messages], pa.binary()),
            key_schema=_RAW,
            value_schema=_RAW,
            timestamp_ms=pa.array(times, pa.int64()),
            queue=None if last.queue is None else pa.repeat(last.queue, len(messages)),
        )

    def _record(self, message: Message[Any, Any]) -> SourceRecord:
        topic, number, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert number is not None
        assert offset is not None
        epoch = message.leader_epoch()
        kind, moment = message.timestamp()
        headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
        return SourceRecord(
            partition=_partition(topic, number),
            offset={"kafka_offset": offset + 1} | ({} if epoch is None else {_EPOCH: epoch}),
            topic=self._format.replace("${topic}", topic),
            key=message.key(),
            value=message.value(),
            key_schema=_RAW,
            value_schema=_RAW,
            headers=tuple(Header(name, value, _RAW) for name, value in headers),
            timestamp_ms=None if kind == TIMESTAMP_NOT_AVAILABLE else moment,
            queue=number if self._keep else None,
        )

    def _judge_cut(self, message: Message[Any, Any], error: KafkaError) -> None:
        """Raise if the log has lost records that were read, which only the client's words tell."""
        found = _END_OF_CUT.search(error.str())
        if found is None:
            return
        topic, number, end = message.topic(), message.partition(), int(found[1])
        assert topic is not None
        assert number is not None
        committed = self.context.offsets.get(_partition(topic, number))
        if committed is None or int(committed["kafka_offset"]) <= end:
            hint = (
                "What was committed lies before that: the task goes on there when it is restarted."
            )
        else:
            hint = (
                f"Stop the connector, and set the partition's offset to {{'kafka_offset': {end}}}"
                " to go on with what was written there since."
            )
        raise StateError(
            f"Partition {number} of {topic} has lost its records from offset {end} on, of which some"
            " were read: its broker lost what it had confirmed, or a replica that was behind became"
            " its leader",
            hint=hint,
        )

    def _judge(self, message: Message[Any, Any], error: KafkaError) -> None:
        if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001  # named so by the client
            self._judge_cut(message, error)
            raise StateError(
                f"Partition {message.partition()} of {message.topic()} no longer has the records"
                f" from the committed position on: {error}",
                hint="They were deleted before they were read. Stop the connector and reset the"
                " partition's offset to go on with what is there.",
            )
        if not is_outage(error):
            raise KafkaException(error)
        # Its client goes on by itself; the probe tells meanwhile what it waits for.
        self.context.logger.warning("%s", error)


class KafkaSourceConnector(SourceConnector):
    """Brings topics of Kafka into topics of RocketMQ."""

    version: ClassVar[str] = "1.0"
    config: ClassVar[ConfigDeclaration] = _KEYS
    task: ClassVar[type[SourceTask]] = KafkaSourceTask
    exactly_once: ClassVar[bool | None] = True

    _watch: ShareWatch | None = None

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Refuse a format that throws topics together by accident."""
        if "${topic}" not in config["topic.format"] and len(config["kafka.topics"]) > 1:
            message = "topic.format without ${topic} sends all topics into one; name one topic."
            yield ConfigProblem("topic.format", message)

    def start(self, config: Config) -> None:
        """Watch for topics and partitions that are new."""
        self._config = config
        self._watch = ShareWatch(self.context, self._partitions, config["topics.poll.interval.ms"])
        self._watch.start()

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        """Share the partitions out among tasks."""
        return dealt(_SHARE, self._partitions(), max_tasks)

    def stop(self) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.stop()

    def _partitions(self) -> list[tuple[str, int]]:
        config = self._config
        consumer = Consumer(client_settings(config, "topics", **{"group.id": "headrace-topics"}))
        try:
            # A consumer's own patterns need a group: here they are matched by hand.
            topics = consumer.list_topics(timeout=_ANSWER).topics
        except KafkaException as error:
            raise unreachable(config, error) from None
        finally:
            consumer.close()
        names = chosen_topics(
            config["kafka.topics"],
            topics,
            key="kafka.topics",
            system="Kafka",
            # Kafka keeps topics of its own, which nobody means.
            hidden=lambda name: name.startswith("__"),
        )
        return [(name, number) for name in names for number in sorted(topics[name].partitions)]


def _partition(topic: str, number: int) -> dict[str, Any]:
    return {"kafka_topic": topic, "kafka_partition": number}
