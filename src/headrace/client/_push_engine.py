"""What a push consumer is made of: its share of the queues, their readers, its workers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from headrace.client._consuming import ConcurrentWorkers, OrderedWorkers, Processing, Workers
from headrace.client._following import PullSize
from headrace.client._intake import Intake, Limits
from headrace.client._local_offsets import LocalOffsets, default_offsets_file
from headrace.client._positions import LocalPositions, Positions, SharedPositions
from headrace.client._queue_locks import QueueLocks
from headrace.client._send_back import SendBack
from headrace.client._sharing import Sharing
from headrace.client.membership import MemberRole, Membership, host_name, new_client_id
from headrace.client.pulling import AsyncPullConsumer
from headrace.client.push_options import PushOptions, PushStatistics
from headrace.errors import HeadraceError
from headrace.watched import watched_task

if TYPE_CHECKING:
    from headrace.client._listening import Listening
    from headrace.client._process_queue import ProcessQueue
    from headrace.client.client import AsyncClient
    from headrace.client.outcomes import Outcome
    from headrace.client.queues import MessageQueue
    from headrace.protocol.messages import StoredMessage

__all__ = ["PushEngine"]

_log = logging.getLogger("headrace.client")


class PushEngine:
    """A push consumer at work; it owns the queues that ``Sharing`` gives it.

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
        self._locks = QueueLocks(client, group, role.client_id) if ordered else None
        self._back = SendBack(client, group, options.times)
        give_back = None if options.broadcasting else self._give_back
        self._processing = Processing(listening.hear, give_back, self._freed)
        self._workers = self._make_workers()
        self._intake = self._make_intake(puller, subscriptions)
        self._committed: dict[MessageQueue, int] = {}
        self._retiring: dict[MessageQueue, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._commits = 0

    def _make_intake(self, puller: AsyncPullConsumer, subscriptions: Mapping[str, str]) -> Intake:
        options = self._options
        return Intake(
            puller,
            subscriptions,
            PullSize(
                max_messages=options.pull_messages, max_bytes=options.pull_bytes, wait=options.wait
            ),
            Limits(messages=options.max_messages, bytes=options.max_bytes, span=options.max_span),
            on_ready=self._workers.ready,
            on_moved=self._moved,
            on_failure=self._on_failure,
        )

    def _make_workers(self) -> Workers:
        options = self._options
        if not options.orderly:
            return ConcurrentWorkers(self._processing, options.concurrency, self._on_failure)
        return OrderedWorkers(
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
        """Count what was done and what there is to do."""
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
        left: list[ProcessQueue] = []
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

    async def _retire(self, process: ProcessQueue, locks: QueueLocks) -> None:
        """Keep the lock until the message that is worked on is done."""
        process.waiting.clear()
        try:
            await self._workers.finish(process)
            await self._commit([process])
            process.drop()
            await locks.release([process.queue])
        finally:
            del self._retiring[process.queue]

    def _may_process(self, process: ProcessQueue) -> bool:
        if self._locks is None or self._locks.holds(process.queue):
            return True
        _log.warning("group %r: the lock on %s was lost", self._group, process.queue)
        process.drop()
        self._run("letting-go", self._let_go(process.queue, self._locks))
        return False

    async def _let_go(self, queue: MessageQueue, locks: QueueLocks) -> None:
        if queue in self._intake.open:
            process = await self._intake.stop(queue)
            process.drop()
            await self._workers.finish(process)
        await locks.release([queue])
        # Whoever has the lock may have gone on: start anew from what is committed.
        self._membership.changed.set()

    def _freed(self) -> None:
        self._intake.freed()

    def _moved(self, old: ProcessQueue, new: ProcessQueue) -> None:
        self._committed.pop(old.queue, None)
        self._run("finishing", self._workers.finish(old))
        self._workers.start(new)

    # What is done

    async def _give_back(
        self, process: ProcessQueue, message: StoredMessage, outcome: Outcome
    ) -> None:
        await self._back.give_back(process.queue, message, outcome)

    async def _commit(self, processes: list[ProcessQueue]) -> None:
        offsets = {p.queue: p.committable for p in processes if not p.dropped}
        due = {q: offset for q, offset in offsets.items() if self._committed.get(q) != offset}
        if not due:
            return
        try:
            await self._positions.save(due)
        except (HeadraceError, OSError) as error:
            _log.warning("group %r: commit failed: %s", self._group, error)
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
