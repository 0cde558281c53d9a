"""The parts of a push consumer: its share of the queues, their readers and its workers."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import field

from headrace.client import _consuming
from headrace.client._intake import IntakeLimits, QueueIntake
from headrace.client._sharing import Sharing, Start, first_offset
from headrace.client.groups import PullSize
from headrace.client.membership import MemberRole, Membership, host_name, new_client_id
from headrace.client.pulling import AsyncPullConsumer
from headrace.client.push_options import PushOptions, PushStatistics
from headrace.errors import HeadraceError, ProtocolError
from headrace.private import owners_folder
from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Command
from headrace.protocol.groups import LockRequest, LockResult, retry_topic
from headrace.protocol.routes import JsonBody, MessageQueue, dumps, loads
from headrace.watched import watched_task

if TYPE_CHECKING:
    from headrace.client._listening import Listening
    from headrace.client.client import AsyncClient
    from headrace.client.deliveries import Outcome
    from headrace.protocol.messages import StoredMessage


# Offsets of a broadcasting member, in a file on its own machine, as RocketMQ's clients keep them.


class _OffsetTable(JsonBody):
    offset_table: dict[str, int] = field(default_factory=dict)


def default_offsets_file(client_id: str, group: str) -> Path:
    """Return where RocketMQ's Java clients keep the offsets of a broadcasting member."""
    return Path.home() / ".rocketmq_offsets" / client_id / group / "offsets.json"


class LocalOffsets:
    """Keeps the next offset to read of each queue in a file.

    Caller: AsyncPushConsumer.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offsets: dict[MessageQueue, int] = {}

    def load(self) -> None:
        """Read the file, or the copy of its last version where it is damaged."""
        for path in (self._path, self._backup):
            try:
                table = loads(path.read_bytes(), _OffsetTable).offset_table
                self._offsets = {MessageQueue.of_key(key): offset for key, offset in table.items()}
            except FileNotFoundError:
                continue
            except ProtocolError as error:
                logger.warning("%s holds no offsets: %s", path, error)
                continue
            return

    def get(self, queue: MessageQueue) -> int | None:
        """Return where to go on in a queue; None if it was never read."""
        return self._offsets.get(queue)

    def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Save offsets; whatever happens, the file holds the old table or the new one."""
        self._offsets.update(offsets)
        table = {queue.key: offset for queue, offset in sorted(self._offsets.items())}
        owners_folder(self._path.parent)
        fresh = self._path.with_name(f"{self._path.name}.tmp")
        with fresh.open("wb") as file:
            file.write(dumps(_OffsetTable(offset_table=table)))
            file.flush()
            os.fsync(file.fileno())
        if self._path.exists():
            self._path.replace(self._backup)
        fresh.replace(self._path)

    @property
    def _backup(self) -> Path:
        return self._path.with_name(f"{self._path.name}.bak")


# Where a push consumer goes on in each queue: offsets at the brokers, or in a local file.


class Positions(Protocol):
    """Offsets of a group or of a member."""

    async def start_of(self, queue: MessageQueue) -> int:
        """Return where to go on in a queue."""
        ...

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Note the next offset to read of queues."""
        ...


class SharedPositions:
    """The group's offsets, which the brokers keep."""

    def __init__(self, puller: AsyncPullConsumer, start: Start) -> None:
        self._puller = puller
        self._start = start
        self._retry_topic = retry_topic(puller.group)

    async def start_of(self, queue: MessageQueue) -> int:
        """Return where the group left off; messages to try again are never passed over."""
        committed = await self._puller.committed(queue)
        if committed is not None:
            return committed
        start = "first" if queue.topic == self._retry_topic else self._start
        return await first_offset(self._puller, queue, start)

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit offsets."""
        await self._puller.commit(offsets)


class LocalPositions:
    """A broadcasting member's own offsets."""

    def __init__(self, puller: AsyncPullConsumer, start: Start, offsets: LocalOffsets) -> None:
        self._puller = puller
        self._start = start
        self._offsets = offsets

    async def start_of(self, queue: MessageQueue) -> int:
        """Return where this member left off."""
        known = self._offsets.get(queue)
        return await first_offset(self._puller, queue, self._start) if known is None else known

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Write the file anew."""
        await asyncio.to_thread(self._offsets.save, offsets)


# Locks on queues, which brokers keep: one member at a time consumes an ordered queue.

#: Brokers give a lock to others after 60 s without a word; this side trusts it half as long.
_TRUSTED = 30.0


class MemberLocks:
    """The queues that one member of a group has locked.

    Caller: AsyncPushConsumer.
    """

    def __init__(self, client: AsyncClient, group: str, client_id: str) -> None:
        self._client = client
        self._group = group
        self._client_id = client_id
        #: When a broker last granted each lock, by the loop's clock.
        self._granted: dict[MessageQueue, float] = {}
        #: Queues whose locks are asked for or held, and were not given back since.
        self._wanted: set[MessageQueue] = set()

    def holds(self, queue: MessageQueue) -> bool:
        """Return whether the lock is surely still this member's."""
        granted = self._granted.get(queue)
        return granted is not None and self._now() - granted < _TRUSTED

    async def acquire(self, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        """Lock queues or renew their locks, and return those that were granted."""
        granted: set[MessageQueue] = set()
        self._wanted.update(queues)
        for broker, part in (await self._by_broker(queues)).items():
            asked = self._now()
            make = partial(Command, RequestCode.LOCK_BATCH_MQ, {}, self._body(part))
            answer = await self._client.ask_broker(broker, make)
            mine = set(loads(answer.payload, LockResult).granted)
            mine &= set(part)
            if strays := mine - self._wanted:
                # They were given back while the broker was asked; it may have heard that first.
                await self._unlock(strays)
            mine &= self._wanted
            granted |= mine
            for queue in part:
                if queue in mine:
                    self._granted[queue] = asked
                else:
                    self._granted.pop(queue, None)
                    self._wanted.discard(queue)
        return granted

    async def release(self, queues: Collection[MessageQueue]) -> None:
        """Release locks; a broker that cannot be told of it takes them back by itself."""
        self._wanted.difference_update(queues)
        await self._unlock(
            [queue for queue in queues if self._granted.pop(queue, None) is not None]
        )

    async def _unlock(self, queues: Collection[MessageQueue]) -> None:
        try:
            for broker, part in (await self._by_broker(queues)).items():
                command = Command(RequestCode.UNLOCK_BATCH_MQ, {}, self._body(part))
                await self._client.ask_broker_once(broker, command)
        except HeadraceError as error:
            logger.warning("group %r: unlocking queues failed: %s", self._group, error)

    async def keep(self) -> None:
        """Renew all locks in time, until cancelled."""
        pause = self._client.settings.lock_interval.total_seconds()
        while True:
            await asyncio.sleep(pause)
            try:
                await self.acquire(list(self._granted))
            except HeadraceError as error:
                logger.warning("group %r: renewing locks failed: %s", self._group, error)

    async def _by_broker(self, queues: Collection[MessageQueue]) -> dict[str, list[MessageQueue]]:
        parts: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            parts[await self._client.broker_of(queue)].append(queue)
        return parts

    def _body(self, queues: Collection[MessageQueue]) -> bytes:
        return dumps(
            LockRequest(consumer_group=self._group, client_id=self._client_id, mq_set=list(queues))
        )

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


logger = logging.getLogger(__name__)


class PushEngine:
    """Does the work of a push consumer, and owns the queues that ``Sharing`` gives it.

    Caller: AsyncPushConsumer.

    Parameters
    ----------
    on_failure
        Called with the error of a background task that should never end.
    """

    def __init__(
        self,
        client: AsyncClient,
        group: str,
        subscriptions: Mapping[str, str],
        listening: Listening,
        options: PushOptions,
        *,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._client = client
        self._group = group
        self._options = options
        self._listening = listening
        self._on_failure = on_failure
        role = _role(group, subscriptions, options)
        self._membership = Membership(client, role)
        self._sharing = Sharing(self._membership, self, client.settings, self._on_failure)
        puller = AsyncPullConsumer(client, group, is_member=True, committed=options.committed)
        self._positions = _positions(puller, role.client_id, options)
        ordered = options.orderly and not options.broadcasting
        self._locks = MemberLocks(client, group, role.client_id) if ordered else None
        self._back = _consuming.SendBack(client, group, options.times)
        give_back = None if options.broadcasting else self._give_back
        self._processing = _consuming.MessageProcessing(listening.hear, give_back, self._freed)
        self._workers = self._make_workers()
        self._intake = self._make_intake(puller, subscriptions)
        self._committed: dict[MessageQueue, int] = {}
        self._retiring: dict[MessageQueue, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._commits = 0

    def _make_intake(
        self, puller: AsyncPullConsumer, subscriptions: Mapping[str, str]
    ) -> QueueIntake:
        options = self._options
        return QueueIntake(
            puller,
            subscriptions,
            PullSize(
                max_messages=options.pull_messages, max_bytes=options.pull_bytes, wait=options.wait
            ),
            IntakeLimits(
                messages=options.max_messages, bytes=options.max_bytes, span=options.max_span
            ),
            on_ready=self._workers.ready,
            on_moved=self._moved,
            on_failure=self._on_failure,
        )

    def _make_workers(self) -> _consuming.Workers:
        options = self._options
        if not options.orderly:
            return _consuming.ConcurrentWorkers(
                self._processing, options.concurrency, self._on_failure
            )
        return _consuming.OrderedWorkers(
            self._processing,
            options.concurrency,
            suspend=options.suspend,
            max_times=options.times,
            may_process=self._may_process,
            on_failure=self._on_failure,
        )

    async def start(self) -> None:
        """Join the group and begin."""
        await self._sharing.start()
        self._run("commits", self._keep_committed(self._client.settings.commit_interval))
        if self._locks is not None:
            self._run("locks", self._locks.keep())

    async def stop(self, timeout: timedelta) -> None:
        """Finish what the listener works on, commit, and leave the group."""
        await self._sharing.stop()
        processes = [await self._intake.stop(queue) for queue in list(self._intake.open)]
        for process in processes:
            process.waiting.clear()
        await self._workers.stop(timeout)
        if self._retiring:
            await asyncio.wait(self._retiring.values())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._commit(processes)
        for process in processes:
            process.drop()
        if self._locks is not None:
            await self._locks.release([process.queue for process in processes])
        await self._sharing.leave()
        self._listening.close()

    def statistics(self) -> PushStatistics:
        """Return counts of what was done and of what there is to do."""
        processes, counts = list(self._intake.open.values()), self._processing.counts
        # The loop's clock, read from whatever thread asks.
        oldest = time.monotonic() - min(counts.running.values(), default=time.monotonic())
        return PushStatistics(
            positions={process.queue: process.committable for process in processes},
            buffered=sum(map(len, processes)),
            buffered_bytes=sum(process.bytes for process in processes),
            running=len(counts.running),
            longest_running=timedelta(seconds=max(0.0, oldest)),
            processed=counts.processed,
            failed=counts.failed,
            timed_out=counts.timed_out,
            sent_back=counts.sent_back,
            dropped=counts.dropped,
            filtered=self._intake.filtered,
            commits=self._commits,
            rebalances=self._sharing.rebalances,
        )

    # The share of the queues, as Sharing works it out

    def held(self) -> list[MessageQueue]:
        """List the queues that this member reads now."""
        return list(self._intake.open)

    async def take(self, queues: list[MessageQueue]) -> bool:
        """Begin to read queues; ordered ones only with their lock."""
        mine = [queue for queue in queues if queue not in self._retiring]
        if self._locks is not None and mine:
            granted = await self._locks.acquire(mine)
            mine = [queue for queue in mine if queue in granted]
        for queue in mine:
            start = await self._positions.start_of(queue)
            # Others may have committed since this member had the queue.
            self._committed.pop(queue, None)
            self._workers.start(self._intake.start(queue, start))
        return len(mine) == len(queues)

    async def give_up(self, queues: set[MessageQueue]) -> None:
        """Stop reading queues; other members go on behind what is committed now."""
        left: list[_consuming.ProcessQueue] = []
        for queue in queues & set(self._intake.open):
            process = await self._intake.stop(queue)
            if self._locks is None:
                left.append(process)
            else:
                self._retiring[queue] = watched_task(
                    self._retire(process, self._locks),
                    name=f"push-retiring {queue}",
                    on_failure=self._on_failure,
                )
        await self._commit(left)
        for process in left:
            await self._workers.finish(process)

    async def _retire(self, process: _consuming.ProcessQueue, locks: MemberLocks) -> None:
        """Keep the lock until the message that is worked on is done."""
        process.waiting.clear()
        try:
            await self._workers.finish(process)
            await self._commit([process])
            process.drop()
            await locks.release([process.queue])
        finally:
            del self._retiring[process.queue]

    def _may_process(self, process: _consuming.ProcessQueue) -> bool:
        if self._locks is None or self._locks.holds(process.queue):
            return True
        logger.warning("group %r: the lock on %s was lost", self._group, process.queue)
        process.drop()
        self._run("letting-go", self._let_go(process.queue, self._locks))
        return False

    async def _let_go(self, queue: MessageQueue, locks: MemberLocks) -> None:
        if queue in self._intake.open:
            process = await self._intake.stop(queue)
            process.drop()
            await self._workers.finish(process)
        await locks.release([queue])
        # Whoever has the lock may have gone on: start anew from what is committed.
        self._membership.changed.set()

    def _freed(self) -> None:
        self._intake.freed()

    def _moved(self, old: _consuming.ProcessQueue, new: _consuming.ProcessQueue) -> None:
        self._committed.pop(old.queue, None)
        self._run("finishing", self._workers.finish(old))
        self._workers.start(new)

    # What is done

    async def _give_back(
        self, process: _consuming.ProcessQueue, message: StoredMessage, outcome: Outcome
    ) -> None:
        await self._back.give_back(process.queue, message, outcome)

    async def _commit(self, processes: list[_consuming.ProcessQueue]) -> None:
        offsets = {p.queue: p.committable for p in processes if not p.dropped}
        due = {q: offset for q, offset in offsets.items() if self._committed.get(q) != offset}
        if not due:
            return
        try:
            await self._positions.save(due)
        except (HeadraceError, OSError) as error:
            logger.warning("group %r: commit failed: %s", self._group, error)
        else:
            self._committed.update(due)
            self._commits += len(due)

    async def _keep_committed(self, interval: timedelta) -> None:
        while True:
            await asyncio.sleep(interval.total_seconds())
            await self._commit(list(self._intake.open.values()))

    def _run(self, what: str, coroutine: Coroutine[Any, Any, None]) -> None:
        name = f"push-{what} {self._membership.role.group}"
        task = watched_task(coroutine, name=name, on_failure=self._on_failure)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _role(group: str, subscriptions: Mapping[str, str], options: PushOptions) -> MemberRole:
    start = options.start
    where = f"{start.upper()}_OFFSET" if isinstance(start, str) else "TIMESTAMP"
    return MemberRole(
        group=group,
        subscriptions=subscriptions,
        client_id=f"{host_name()}@DEFAULT" if options.broadcasting else new_client_id(),
        kind="CONSUME_PASSIVELY",
        model="BROADCASTING" if options.broadcasting else "CLUSTERING",
        start=f"CONSUME_FROM_{where}",
    )


def _positions(puller: AsyncPullConsumer, client_id: str, options: PushOptions) -> Positions:
    if not options.broadcasting:
        return SharedPositions(puller, options.start)
    path = options.offsets_file or default_offsets_file(client_id, puller.group)
    offsets = LocalOffsets(path)
    offsets.load()
    return LocalPositions(puller, options.start, offsets)
