"""``kafka-sink``: topics become topics of Kafka, exactly once by Kafka's transactions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.connect import (
    Config,
    ConfigDeclaration,
    ConfigProblem,
    Queue,
    SinkBatch,
    SinkConnector,
    SinkRecord,
    SinkTask,
    at_least,
    between,
    declare,
    key,
    one_of,
)
from headrace.connect.connectors.kafka.settings import (
    KAFKA_KEYS,
    KeptOffset,
    OffsetLog,
    check_answers,
    client_settings,
    is_outage,
    owners,
    unreachable,
)
from headrace.connect.connectors.offsets import GatheringSinkTask, set_by_hand
from headrace.connect.connectors.texts import place_of, raw_bytes
from headrace.errors import FencedError, ProcessingError

if TYPE_CHECKING:
    from headrace.connect.records import Position


P = ParamSpec("P")
R = TypeVar("R")
_Gathered: TypeAlias = SinkRecord | SinkBatch

_ANSWER = 30.0
#: Whoever finds the producer full looks again so soon, s.
_ROOM = 0.01
#: Kafka's client chooses the partition.
_BY_KEY = -1

_KEYS = KAFKA_KEYS | declare(
    key(
        "kafka.topic.format",
        str,
        "The topic there of a topic here: ${topic} stands for its name.",
        default="${topic}",
        group="Topics",
    ),
    key(
        "partition.by",
        str,
        "Which partition a record goes to: key (by the key's hash, as Java's clients have it), or"
        " queue (the one with the queue's number, modulo their count).",
        default="key",
        valid=one_of("key", "queue"),
        group="Topics",
    ),
    key(
        "exactly.once",
        bool,
        "Whether records and offsets are written in Kafka's transactions.",
        default=True,
        importance="high",
        group="Guarantee",
    ),
    key(
        "offsets.topic",
        str,
        "The topic of Kafka that keeps the offsets; made from the connector's name where none is"
        " given. Each sink needs one of its own.",
        group="Guarantee",
    ),
    key(
        "offsets.replication.factor",
        int,
        "Copies of that topic; -1 for the brokers' default.",
        default=-1,
        group="Guarantee",
    ),
    key(
        "transactional.id.prefix",
        str,
        "What stands before connector and task in the names of transactions.",
        default="headrace-",
        group="Guarantee",
    ),
    key(
        "transaction.timeout.ms",
        timedelta,
        "How long Kafka waits for a task that hangs in its transaction.",
        default=timedelta(seconds=60),
        valid=at_least(timedelta(seconds=1)),
        group="Guarantee",
    ),
    key(
        "delivery.attempts",
        int,
        "How often a transaction is tried again after a failure that may pass.",
        default=5,
        valid=between(1, 100),
        group="Guarantee",
    ),
)


def _unmasked(method: Callable[P, R]) -> Callable[P, R]:
    """Make a call raise the fatal error that a callback was called on top of.

    Kafka's client sets the exception of a fatal error and may then still call a callback or write
    to the log, in the same call; Python tells of that as a SystemError, caused by the first.
    """

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except SystemError as error:
            if isinstance(error.__cause__, KafkaException):
                raise error.__cause__ from None
            raise

    return call


class _Producer(Producer):
    """A producer that raises `KafkaException` for each failure, whatever was logged meanwhile."""

    poll = _unmasked(Producer.poll)
    flush = _unmasked(Producer.flush)
    commit_transaction = _unmasked(Producer.commit_transaction)
    abort_transaction = _unmasked(Producer.abort_transaction)


class KafkaSinkTask(GatheringSinkTask[_Gathered]):
    """Sends records and their offsets in one transaction."""

    _producer: Producer | None = None

    def start(self, config: Config) -> None:
        """Make the producer, and the topic of offsets where it is missing."""
        super().start(config)
        name = self.context.connector
        self._format: str = config["kafka.topic.format"]
        self._by_queue = config["partition.by"] == "queue"
        self._identity = f"{config['transactional.id.prefix']}{name}-{self.context.task}"
        self._log = offset_log(config, name)
        self._counts: dict[str, int] = {}
        self._failures: list[tuple[SinkRecord, KafkaError]] = []
        #: Whether a commit was asked for whose answer is not known.
        self._in_doubt = False
        try:
            if self._exactly:
                self._log.create()
            self._producer = self._made(self._identity)
        except KafkaException as error:
            raise self._told(error) from error

    def _made(self, identity: str) -> Producer:
        more: dict[str, Any] = {
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            "delivery.report.only.error": True,
            # A batch of the engine's usual size does not wait for room.
            "queue.buffering.max.messages": 1_000_000,
        }
        if self._exactly:
            timeout = self._config["transaction.timeout.ms"]
            more["transactional.id"] = identity
            more["transaction.timeout.ms"] = timeout // timedelta(milliseconds=1)
        producer = _Producer(client_settings(self._config, self.context.connector, **more))
        if self._exactly:
            # Ends what an earlier life began, and keeps it from going on.
            producer.init_transactions(_ANSWER)
        return producer

    def take_over(self, queues: Collection[Queue]) -> None:
        """Fence off the tasks that had the queues, and write that they are this one's."""
        standings = self._log.read()
        fenced: set[str] = set()
        # Only once nobody else can write any more, what was read stays true.
        while others := owners(standings, queues, self._identity) - fenced:
            self._check_generation(standings, queues)
            for other in others:
                self._made(other).flush(0)
            fenced |= others
            standings = self._log.read()
        self._check_generation(standings, queues)
        found = {queue: standings[queue] for queue in queues if queue in standings}
        self._done.update(
            (queue, one.next_offset) for queue, one in found.items() if one.next_offset is not None
        )
        self._transact([], {queue: self._done.get(queue) for queue in queues})

    def _check_generation(
        self, standings: Mapping[Queue, KeptOffset], queues: Iterable[Queue]
    ) -> None:
        for queue in queues:
            standing = standings.get(queue)
            if standing is not None and standing.generation > self.context.generation:
                raise self._fenced(f"generation {standing.generation} has {queue}")

    def gathered(self, record: SinkRecord) -> SinkRecord:
        """Return a record whose value and key are bytes or text."""
        _bytes(record, record.value, "value")
        _bytes(record, record.key, "key")
        return record

    def put_batch(self, batch: SinkBatch) -> None:
        """Gather columns of bytes or text without headers; what else there is goes record by record."""
        headers = batch.headers
        plain = headers is None or headers.null_count == len(headers)
        if not (self._exactly and plain and _is_raw(batch.value) and _is_raw(batch.key)):
            self.put(batch.records())
            return
        fresh = self._progress.fresh_rows(batch)
        if len(fresh):
            self._progress.take_rows(fresh)
            self._gathered.append(fresh)

    def write(self, gathered: list[_Gathered], offsets: Mapping[Queue, int]) -> None:
        """Send the records: with the offsets in one transaction, where those are kept."""
        if self._exactly:
            self._transact(_below(gathered, offsets), offsets)
        else:
            self._send_all(gathered)

    def stop(self) -> None:
        """Leave Kafka; what was not flushed is not sent."""
        if self._producer is None:
            return
        self._producer.purge()
        try:
            self._producer.flush(1)
        except KafkaException as error:
            # A task that was fenced off has nothing left to send.
            self.context.logger.debug("Kafka says at the end: %s", error)

    def healthy(self) -> bool:
        """Whether Kafka answers."""
        check_answers(self._config)
        return True

    def _send_all(self, records: Sequence[_Gathered]) -> None:
        assert self._producer is not None
        self._failures.clear()
        self._produce(self._producer, records)
        while self._producer.flush(1.0):
            if self.context.stopping.is_set():
                message = "the task was stopped while records were on their way to Kafka"
                raise ProcessingError(message)
        lost = [error for _, error in self._failures if error.code() not in _REFUSALS]
        self._report_refused()
        if lost:
            raise self._told(KafkaException(lost[0]))

    def _transact(self, records: Sequence[_Gathered], offsets: Mapping[Queue, int | None]) -> None:
        # What was sent as columns is sent again record by record, to find out which is refused.
        columns = any(isinstance(one, SinkBatch) for one in records)
        attempts = self._config["delivery.attempts"] + columns
        for attempt in range(1, attempts + 1):
            try:
                records = self._attempt(records, offsets)
                return
            except KafkaException as error:
                cause = error.args[0]
                if _is_fence(cause):
                    if self._regained(offsets, error):
                        return
                    if attempt == attempts:
                        raise self._fenced(str(cause)) from error
                    continue
                if self._in_doubt:
                    raise self._told(error) from error
                self.context.logger.warning("attempt %d of %d failed: %s", attempt, attempts, cause)
                if not cause.fatal():
                    self._abort()
                    records = self._without_refused(records)
                if cause.fatal() or attempt == attempts:
                    raise self._told(error) from error

    def _regained(self, offsets: Mapping[Queue, int | None], error: KafkaException) -> bool:
        """Go on after Kafka has ended the transaction of a task that it had not heard of for long.

        Return whether the transaction was committed.

        Raises
        ------
        FencedError
            It was another task that ended it.
        """
        self._in_doubt = False
        try:
            self._check_generation(self._log.read(), offsets)
            self._producer = self._made(self._identity)
            standings = self._log.read()
        except KafkaException as again:
            raise self._told(again) from again
        self._check_generation(standings, offsets)
        found = {queue: standings[queue].next_offset for queue in offsets if queue in standings}
        if all(found.get(queue) == self._done.get(queue) for queue in offsets):
            return False
        if found == dict(offsets):
            return True
        raise self._fenced(str(error)) from error

    def _told(self, error: KafkaException) -> Exception:
        """Return what is raised of a failure: after an outage the same call is made again."""
        return unreachable(self._config, error) if is_outage(error.args[0]) else error

    def _attempt(
        self, records: Sequence[_Gathered], offsets: Mapping[Queue, int | None]
    ) -> Sequence[_Gathered]:
        producer = self._producer
        assert producer is not None
        if not self._in_doubt:
            self._failures.clear()
            producer.begin_transaction()
            self._produce(producer, records)
            for queue, offset in offsets.items():
                standing = KeptOffset(offset, self._identity, self.context.generation)
                producer.produce(**self._log.message(queue, standing))
        self._commit(producer)
        return records

    def _commit(self, producer: Producer) -> None:
        try:
            producer.commit_transaction(_ANSWER)
        except KafkaException as error:
            # Asked again, Kafka says what became of the same commit.
            self._in_doubt = error.args[0].retriable()
            raise
        self._in_doubt = False

    def _abort(self) -> None:
        assert self._producer is not None
        try:
            self._producer.abort_transaction(_ANSWER)
        except KafkaException as error:
            # Its own epoch ends whatever is left of the transaction.
            self.context.logger.warning("the transaction was not aborted: %s", error)
            try:
                self._producer = self._made(self._identity)
            except KafkaException as again:
                raise self._told(again) from again

    def _without_refused(self, gathered: Sequence[_Gathered]) -> list[SinkRecord]:
        """Report the records that Kafka will never take; return the others one by one."""
        records = [
            record
            for one in gathered
            for record in (one.records() if isinstance(one, SinkBatch) else [one])
        ]
        refused = self._report_refused()
        return [one for one in records if (one.queue, one.offset) not in refused]

    def _report_refused(self) -> set[tuple[Queue, int]]:
        refused = [(one, error) for one, error in self._failures if error.code() in _REFUSALS]
        for record, error in refused:
            self.context.report(record, _refused(record, error))
        return {(record.queue, record.offset) for record, _ in refused}

    def _produce(self, producer: Producer, records: Sequence[_Gathered]) -> None:
        for record in records:
            if isinstance(record, SinkBatch):
                self._produce_columns(producer, record)
                continue
            arguments = self._arguments(record)
            if error := _refusal(producer, **arguments, on_delivery=self._noted(record)):
                self.context.report(record, _refused(record, error))
        producer.poll(0)

    def _produce_columns(self, producer: Producer, batch: SinkBatch) -> None:
        topic = self._topic(batch.queue.topic)
        partition = self._partition(topic, batch.queue)
        columns = (batch.value, batch.key, batch.timestamp_ms)
        rows = zip(*(_listed(column, len(batch)) for column in columns), strict=True)
        for row, (value, key_, time) in enumerate(rows):
            if error := _refusal(producer, topic, value, key_, partition, None, None, time or 0):
                [record] = batch[row : row + 1].records()
                self.context.report(record, _refused(record, error))

    def _noted(self, record: SinkRecord) -> Callable[[KafkaError | None, Any], None]:
        def note(error: KafkaError | None, _message: Any) -> None:
            if error is not None:
                self._failures.append((record, error))

        return note

    def _arguments(self, record: SinkRecord) -> dict[str, Any]:
        topic = self._topic(record.topic)
        found: dict[str, Any] = {
            "topic": topic,
            "key": _bytes(record, record.key, "key"),
            "value": _bytes(record, record.value, "value"),
            "partition": self._partition(topic, record.queue),
        }
        if record.timestamp_ms is not None:
            found["timestamp"] = record.timestamp_ms
        if record.headers:
            found["headers"] = [
                (one.key, _bytes(record, one.value, f"header {one.key}")) for one in record.headers
            ]
        return found

    def _topic(self, name: str) -> str:
        return self._format.replace("${topic}", name)

    def _partition(self, topic: str, queue: Queue) -> int:
        return queue.queue_id % self._count(topic) if self._by_queue else _BY_KEY

    def _count(self, topic: str) -> int:
        assert self._producer is not None
        if topic not in self._counts:
            there = self._producer.list_topics(topic, timeout=_ANSWER).topics[topic].partitions
            self._counts[topic] = max(1, len(there))
        return self._counts[topic]

    def _fenced(self, why: str) -> FencedError:
        return FencedError(
            f"Another task of the sink {self.context.connector} has taken over from this one, of"
            f" generation {self.context.generation}: {why}",
            hint="Nothing of its last transaction is visible. If no other task runs, two clusters"
            " share a connector's name: give one another transactional.id.prefix and offsets.topic.",
        )


class KafkaSinkConnector(SinkConnector):
    """Takes topics to Kafka."""

    version: ClassVar[str] = "1.0"
    config: ClassVar[ConfigDeclaration] = _KEYS
    task: ClassVar[type[SinkTask]] = KafkaSinkTask

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Refuse a topic that would hold records and offsets."""
        if config["offsets.topic"] and config["offsets.topic"] == config["kafka.topic.format"]:
            message = "offsets.topic must be another topic than the one for the records."
            yield ConfigProblem("offsets.topic", message)

    def alter_offsets(
        self, config: Config, offsets: Sequence[tuple[Position, Position | None]]
    ) -> bool:
        """Set the offsets that Kafka keeps."""
        if not config["exactly.once"]:
            return False
        log = offset_log(config, self.context.connector)
        log.create()
        standings = log.read()
        producer = Producer(client_settings(config, "offsets", **{"enable.idempotence": True}))
        for queue, offset in set_by_hand(offsets).items():
            known = standings.get(queue, KeptOffset(None, "", 0))
            producer.produce(
                **log.message(queue, KeptOffset(offset, known.owner, known.generation))
            )
        if producer.flush(_ANSWER):
            message = f"Kafka did not take the offsets within {_ANSWER:g} s."
            raise ProcessingError(message)
        return True


def offset_log(config: Config, connector: str) -> OffsetLog:
    """Return the topic that keeps a sink's offsets."""
    return OffsetLog(config, config["offsets.topic"] or f"headrace-connect-offsets-{connector}")


_REFUSALS = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
    }
)
_FENCES = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001  # the client's own codes are named so
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
    }
)


def _refusal(producer: Producer, *record: Any, **more: Any) -> KafkaError | None:
    """Hand a record over once there is room for it; give why it is refused by itself, if it is."""
    while True:
        try:
            producer.produce(*record, **more)
        except BufferError:
            producer.poll(_ROOM)
        except KafkaException as error:
            refusal: KafkaError = error.args[0]
            if refusal.code() not in _REFUSALS:
                raise
            return refusal
        else:
            return None


def _is_raw(column: pa.Array | None) -> bool:
    if column is None:
        return True
    kind = column.type
    return bool(pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_null(kind))


def _listed(column: pa.Array | None, count: int) -> list[Any]:
    return [None] * count if column is None else column.to_pylist()


def _below(gathered: Iterable[_Gathered], ends: Mapping[Queue, int]) -> list[_Gathered]:
    """Return what stands below the ends of its queues."""
    found: list[_Gathered] = []
    for one in gathered:
        end = ends.get(one.queue, 0)
        if not isinstance(one, SinkBatch):
            found += [one] if one.offset < end else []
        elif rows := int(np.searchsorted(one.offset.to_numpy(), end)):
            found.append(one[:rows])
    return found


def _is_fence(error: KafkaError) -> bool:
    return error.code() in _FENCES


def _bytes(record: SinkRecord, value: Any, part: str) -> bytes | None:
    return raw_bytes(record, value, part, "Kafka")


def _refused(record: SinkRecord, error: KafkaError) -> ProcessingError:
    return ProcessingError(
        f"Kafka refuses {place_of(record)}: {error}",
        hint="With errors.tolerance=all such records go to the dead-letter topic and the others"
        " are sent. kafka.message.max.bytes sets the largest record.",
    )
