"""``rocketmq-source``: topics of another RocketMQ cluster come into topics here."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from logging import Logger
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from headrace.backoff import Backoff
from headrace.client import (
    Admin,
    AsyncClient,
    AsyncPullConsumer,
    Client,
    MessageQueue,
    PullConsumer,
    PullResult,
    PullStatus,
)
from headrace.connect import (
    Config,
    ConfigDeclaration,
    ConfigProblem,
    SourceBatch,
    SourceConnector,
    SourceTask,
    at_least,
    declare,
    key,
    one_of,
)
from headrace.connect.connectors.rocketmq.settings import (
    CLUSTER_KEYS,
    TOPIC_KEYS,
    Renaming,
    check_answers,
    client_settings,
    connected,
    remote_name,
    replicated_topics,
)
from headrace.connect.connectors.rocketmq.sink import Circles, carried_raw
from headrace.connect.connectors.sharing import ShareWatch, dealt, dealt_to
from headrace.connect.schema import BYTES
from headrace.errors import (
    HeadraceError,
    NotFoundError,
    OffsetExpiredError,
    StateError,
    TopicNotFoundError,
)
from headrace.keys import EXACT_KEY
from headrace.watched import watched_thread

if TYPE_CHECKING:
    from headrace.connect.records import Position


# Pulls many queues at once, ahead of who takes what they hold.

#: How long a broker may hold a pull back while there is nothing to read.
_HELD_BACK = timedelta(seconds=10)
#: From so many messages behind on, pulls are sent ahead.
_BEHIND = 1000
_BLOCK_BYTES = 1 << 20
#: Blocks of one queue that wait to be taken.
_AHEAD = 2
#: A topic is gone while its broker is, and comes back with it; the next pull says what expired.
_PASSING = (TopicNotFoundError, NotFoundError, OffsetExpiredError)


class QueueReader:
    """Reads queues of another cluster, over any time without its brokers.

    A broker's name leads to its address: when the name server tells another one, because a replica
    was made the master, reading goes on there.

    Parameters
    ----------
    connect
        Makes a client, on the reader's own loop.
    offsets
        The queues to read, and where to begin.
    logger
        Hears of failures that may pass.
    committed
        Whether to leave out what jobs have written and not committed.
    skips_lost
        Whether to go on behind messages that the cluster deleted before they were read.
    """

    def __init__(
        self,
        connect: Callable[[], AsyncClient],
        offsets: Mapping[MessageQueue, int],
        logger: Logger,
        *,
        committed: bool = True,
        skips_lost: bool = False,
    ) -> None:
        self._connect = connect
        self._offsets = dict(offsets)
        self._logger = logger
        self._committed = committed
        self._skips_lost = skips_lost
        self._arrived: queue.SimpleQueue[PullResult | BaseException] = queue.SimpleQueue()
        self._room = {one: asyncio.Semaphore(_AHEAD) for one in offsets}
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._thread = watched_thread(self._run, name="queues", on_failure=self._arrived.put)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def take(self, seconds: float) -> PullResult | None:
        """Return the next block of any queue; ``None`` where none comes in time.

        Raises
        ------
        HeadraceError
            What has ended the reading.
        """
        try:
            arrived = self._arrived.get(timeout=seconds)
        except queue.Empty:
            return None
        if isinstance(arrived, BaseException):
            # Whoever asks again hears it again.
            self._arrived.put(arrived)
            raise arrived
        # What waited when the reading ended is taken all the same.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._room[arrived.queue].release)
        return arrived

    def close(self) -> None:
        """End the reading."""
        if self._thread.is_alive():
            # A reading that has failed may end, and its loop with it, at this moment.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._read_all())

    async def _read_all(self) -> None:
        async with self._connect() as client:
            consumer = AsyncPullConsumer(client, committed=self._committed)
            readings = [
                asyncio.create_task(self._read(consumer, one, offset))
                for one, offset in self._offsets.items()
            ]
            ending = asyncio.create_task(self._closing.wait())
            done, _ = await asyncio.wait([*readings, ending], return_when=asyncio.FIRST_COMPLETED)
            for task in (*readings, ending):
                task.cancel()
            await asyncio.gather(*readings, ending, return_exceptions=True)
            for task in done:
                task.result()

    async def _read(self, consumer: AsyncPullConsumer, one: MessageQueue, offset: int) -> None:
        backoff = Backoff(0.1, 5.0)
        while True:
            try:
                async for result in self._results(consumer, one, offset):
                    offset = result.next_offset
                    if result.block:
                        await self._room[one].acquire()
                        self._arrived.put(result)
                    backoff.reset()
            except HeadraceError as error:
                if not error.retriable and not isinstance(error, _PASSING):
                    raise
                self._logger.warning("queue %s cannot be read for now: %s", one, error)
                await asyncio.sleep(backoff.next())

    async def _results(
        self, consumer: AsyncPullConsumer, one: MessageQueue, offset: int
    ) -> AsyncIterator[PullResult]:
        """Yield what one pull finds, and what stands behind it as long as that is much."""
        result = await consumer.pull(one, offset, max_bytes=_BLOCK_BYTES, wait=_HELD_BACK)
        if result.status is PullStatus.OFFSET_MOVED:
            self._check_loss(result, offset)
        yield result
        if result.max_offset - result.next_offset > _BEHIND:
            blocks = consumer.blocks(
                one, result.next_offset, result.max_offset, max_bytes=_BLOCK_BYTES
            )
            async for more in blocks:
                yield more

    def _check_loss(self, result: PullResult, offset: int) -> None:
        """Refuse to pass over messages that nobody has read."""
        what = (
            f"queue {result.queue} of the other cluster holds offsets from {result.min_offset} up"
            f" to {result.max_offset}, and the next one to read is {offset}"
        )
        if self._skips_lost and offset < result.min_offset:
            self._logger.warning("%s; what is missing is lost", what)
            return
        raise StateError(
            what,
            hint="Its messages were deleted before they were read, or its topic was made anew."
            " Stop the connector and reset the queue's offset, or set when.lost=skip to go on with"
            " what is there.",
        )


_SHARE = "task.queues"
_FIRST, _LAST = "first", "last"
_HEADERS = pa.map_(pa.string(), pa.string())
#: Groups' offsets are shown so often, in seconds.
_SHOWN = 1.0

_KEYS = (
    CLUSTER_KEYS
    | declare(
        key(
            "rocketmq.topics",
            list,
            "Topics of the other cluster to read; what begins with ^ is a regular expression,"
            " which never means topics that brokers, groups and jobs keep for themselves.",
            required=True,
            group="Topics",
        ),
        key(
            "local.cluster",
            str,
            "What this cluster is called: records that were born here do not come back. Without"
            " it, no record comes that was replicated into the other cluster from anywhere.",
            group="Loops",
        ),
        key(
            "queue.by",
            str,
            "Which queue a record goes to: number (its place among the topic's queues there), or"
            " key (by the key's hash).",
            default="number",
            valid=one_of("number", "key"),
            group="Topics",
        ),
        key(
            "start.from",
            str,
            "Where a queue begins that was never read: first, last (what is stored from the"
            " connector's first start on), or a time such as 2026-11-22T07:00:00Z.",
            default=_FIRST,
            group="Topics",
        ),
        key(
            "when.lost",
            str,
            "What to do when messages were deleted there before they were read: fail, or skip.",
            default="fail",
            valid=one_of("fail", "skip"),
            group="Guarantee",
        ),
        key(
            "isolation.level",
            str,
            "Whether what Headrace's jobs have written and not committed is left out:"
            " read_committed or read_uncommitted.",
            default="read_committed",
            valid=one_of("read_committed", "read_uncommitted"),
            group="Guarantee",
        ),
        key(
            "show.group",
            bool,
            "Whether the positions are also written as offsets of the group headrace-connect- and"
            " the connector's name there, for its tools to show the lag.",
            default=True,
            importance="low",
            group="Other cluster",
        ),
        key(
            "topics.poll.interval.ms",
            timedelta,
            "How often to look for new topics and queues.",
            default=timedelta(seconds=30),
            valid=at_least(timedelta(seconds=1)),
            group="Topics",
        ),
    )
    | TOPIC_KEYS
)


class RocketMQSourceTask(SourceTask):
    """Reads its share of the queues, from where they were committed."""

    _client: Client | None = None
    _reader: QueueReader | None = None

    def start(self, config: Config) -> None:
        """Begin each queue at its committed position."""
        self._config = config
        self._client = connected(config)
        self._consumer = PullConsumer(self._client, f"headrace-connect-{self.context.connector}")
        self._circles = Circles(remote_name(config, self._client), config["local.cluster"])
        self._renaming = Renaming.of(config)
        self._by_number = config["queue.by"] == "number"
        self._shown = 0.0
        #: Positions that are committed without a record.
        self._moved: deque[SourceBatch] = deque()
        self._places: dict[MessageQueue, int] = {}
        self._counts: dict[str, int] = {}
        for topic, broker, number, place, count in dealt_to(config, _SHARE):
            self._places[MessageQueue(topic, broker, number)] = place
            self._counts[self._renaming(topic)] = count
        settings = client_settings(config)
        self._reader = QueueReader(
            lambda: AsyncClient(config["rocketmq.namesrv"], settings),
            self._begins(),
            self.context.logger,
            committed=config["isolation.level"] == "read_committed",
            skips_lost=config["when.lost"] == "skip",
        )
        self._reader.start()

    def poll(self) -> SourceBatch | None:
        """Return what one of the queues holds."""
        assert self._reader is not None
        if self._moved:
            return self._moved.popleft()
        result = self._reader.take(0.5)
        return None if result is None else self._batch(result)

    def commit(self) -> None:
        """Show the positions to the other cluster's tools; they are never read back."""
        now = time.monotonic()
        if not self._config["show.group"] or now - self._shown < _SHOWN:
            return
        self._shown = now
        found = {one: self._committed(one) for one in self._places}
        try:
            self._consumer.commit({one: at for one, at in found.items() if at is not None})
        except HeadraceError as error:
            self.context.logger.warning("positions are not shown in the other cluster: %s", error)

    def queues_of(self, topic: str) -> int | None:
        """Have topics made with as many queues as they have there."""
        return self._counts.get(topic)

    def healthy(self) -> bool:
        """Whether a name server answers."""
        check_answers(self._config)
        return True

    def stop(self) -> None:
        """Leave the other cluster."""
        if self._reader is not None:
            self._reader.close()
        if self._client is not None:
            self._client.close()

    def _committed(self, one: MessageQueue) -> int | None:
        found = self.context.offsets.get(_partition(one))
        return None if found is None else int(found["origin_offset"])

    def _begins(self) -> dict[MessageQueue, int]:
        """Find where to begin each queue."""
        known = {one: self._committed(one) for one in self._places}
        new = [one for one, offset in known.items() if offset is None]
        begins = {one: offset for one, offset in known.items() if offset is not None}
        since = self._since()
        if since is None:
            return begins | self._consumer.begin_offsets(new)
        return begins | self._consumer.offsets_for_time(new, since)

    def _since(self) -> datetime | None:
        """Return the time from which on queues are read that were never read."""
        start = self._config["start.from"]
        if start != _LAST:
            return None if start == _FIRST else _time(start)
        partition = {"origin_start": _LAST}
        found = self.context.offsets.get(partition)
        if found is None:
            # A queue may stay empty for long, and what comes then must not be passed over after
            # a restart: so the time of the first start is a position, too.
            found = {"since_ms": time.time_ns() // 1_000_000}
            nothing = pa.array([], pa.binary())
            topic = next(iter(self._counts), "")
            self._moved.append(
                SourceBatch(partition=partition, offset=found, topic=topic, value=nothing)
            )
        return datetime.fromtimestamp(found["since_ms"] / 1000, UTC)

    def _batch(self, result: PullResult) -> SourceBatch:
        columns = result.columns()
        for offset in columns.queue_offset[columns.packed].tolist():
            self.context.logger.warning(
                "the body at %s, offset %d, is compressed and cannot be unpacked: it goes on as it"
                " is stored",
                result.queue, offset,
            )  # fmt: skip
        keys: list[str | None] = []
        properties: list[dict[str, str] | None] = []
        for raw in columns.properties.to_pylist():
            text, others = carried_raw(raw)
            keys.append(text)
            properties.append(self._circles.marked(others))
        kept = pa.array([one is not None for one in properties], pa.bool_())
        place = self._places[result.queue]
        queues = [
            place if self._by_number or EXACT_KEY in (one or ()) else None for one in properties
        ]
        return SourceBatch(
            partition=_partition(result.queue),
            offset={"origin_offset": result.next_offset},
            topic=self._renaming(result.queue.topic),
            value=columns.body.filter(kept),
            value_schema=BYTES,
            key=pa.array(keys, pa.string()).cast(pa.binary()).filter(kept),
            key_schema=BYTES.as_optional(),
            timestamp_ms=pa.array(columns.born).filter(kept),
            queue=pa.array(queues, pa.int32()).filter(kept),
            headers=pa.array(
                [None if one is None else list(one.items()) for one in properties], _HEADERS
            ).filter(kept),
        )


class RocketMQSourceConnector(SourceConnector):
    """Brings topics of another RocketMQ cluster here."""

    version: ClassVar[str] = "1.0"
    config: ClassVar[ConfigDeclaration] = _KEYS
    task: ClassVar[type[SourceTask]] = RocketMQSourceTask
    exactly_once: ClassVar[bool | None] = True

    _client: Client | None = None
    _watch: ShareWatch | None = None

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Name what does not fit together."""
        yield from Renaming.problems(config, config["rocketmq.topics"])
        start = config["start.from"]
        if start not in {_FIRST, _LAST}:
            try:
                _time(start)
            except ValueError:
                message = f"start.from is {start!r}: write first, last, or a time as ISO 8601."
                yield ConfigProblem("start.from", message)

    def start(self, config: Config) -> None:
        """Watch for topics and queues that are new."""
        self._config = config
        self._client = connected(config)
        self._seen: set[MessageQueue] = set()
        self._watch = ShareWatch(self.context, self._look, config["topics.poll.interval.ms"])
        self._watch.start()

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        """Share the queues out among tasks."""
        return dealt(_SHARE, self._queues(), max_tasks)

    def stop(self) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.stop()
        if self._client is not None:
            self._client.close()

    def _look(self) -> frozenset[MessageQueue]:
        """Return all queues that there ever were.

        One that is gone may come back with its broker.
        """
        self._seen |= {MessageQueue(*one[:3]) for one in self._queues()}
        return frozenset(self._seen)

    def _queues(self) -> list[list[Any]]:
        """List the queues, each with its place in its topic and the count of that."""
        assert self._client is not None
        found: list[list[Any]] = []
        for topic in replicated_topics(self._config["rocketmq.topics"], Admin(self._client)):
            queues = sorted(self._client.queues(topic, refresh=True))
            found += [
                [topic, one.broker, one.queue_id, place, len(queues)]
                for place, one in enumerate(queues)
            ]
        return found


def _partition(one: MessageQueue) -> Position:
    return {
        "origin_topic": one.topic,
        "origin_broker": one.broker,
        "origin_queue": one.queue_id,
    }


def _time(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)
