"""Everything that handlers work on: the store, the tables, and ways to append and to wait."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from headrace.broker import waiting
from headrace.broker.clients import ClientRegistry, Notify, QueueLocks
from headrace.broker.delays import DelayedDelivery
from headrace.broker.half_messages import HalfMessages
from headrace.broker.jobs import JobBook
from headrace.broker.naming.registry import NameServer
from headrace.broker.offsets import ClientRequests
from headrace.broker.replication.replicas import Replication
from headrace.broker.requests import Outcome, Peer, Refusals, Request
from headrace.broker.rewriting import Rewriting
from headrace.broker.snapshots import BrokerTables
from headrace.broker.static_topics import Rate
from headrace.broker.topics import CLOSED_TOPICS, RETRY_PREFIX, is_compacted
from headrace.errors import (
    BrokerBusyError,
    BrokerError,
    InvalidParameterError,
    MessageRejectedError,
    StoreError,
)
from headrace.protocol.codes import RequestCode
from headrace.protocol.records import largest_records
from headrace.protocol.routes import COMPACTED, TopicConfig, dumps

if TYPE_CHECKING:
    from headrace.broker.drafts import Draft
    from headrace.broker.replication.follower import FollowerTask
    from headrace.broker.settings import BrokerSettings
    from headrace.protocol.frames import Buffer
    from headrace.protocol.groups import Heartbeat
    from headrace.store import AppendResult, MessageStore, QueueAppend
    from headrace.watched import OnFailure


logger = logging.getLogger(__name__)

T = TypeVar("T")
#: So many things of a request are worked on in one turn of the loop.
_PART = 250


class Core:
    """The broker without its network.

    Parameters
    ----------
    folder
        Where the broker keeps everything.
    store
        The messages.
    settings
        How the broker behaves.
    host, port
        The address that clients are told to use.
    on_failure
        Told of the error that has ended a part of the broker, which has to end then.
    """

    def __init__(
        self,
        folder: Path,
        store: MessageStore,
        settings: BrokerSettings,
        host: str,
        port: int,
        *,
        on_failure: OnFailure,
    ) -> None:
        self.folder = folder
        self.store = store
        self.settings = settings
        self.host = host
        self.port = port
        self.loop = asyncio.get_running_loop()
        self.work = waiting.BackgroundWork(on_failure)
        self._appends = waiting.Appends(store, self.work)
        self.peers: dict[int, Peer] = {}
        self.polls = waiting.LongPolls()
        self.locks = QueueLocks(settings.lock_expiry.total_seconds(), settings.limits.max_locks)
        self.clients = ClientRegistry(settings.client_expiry.total_seconds())
        self.jobs = JobBook()
        self.names = NameServer(folder, settings.broker_expiry.total_seconds())
        self.name = settings.broker_name
        self.cluster = settings.cluster
        # A lock that nobody holds or waits for goes by itself.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.tables = BrokerTables(folder, store, settings, self.work)
        self.topics = self.tables.topics
        self.static_topics = self.tables.static_topics
        self.groups = self.tables.groups
        self.offsets = self.tables.offsets
        #: This broker's part in replication.
        self.replication = Replication(folder, store, settings, self.work, self.address)
        #: The task that follows a primary, while this broker follows one.
        self.follower: FollowerTask | None = None
        self.delays = DelayedDelivery(self)
        self.rewriting = Rewriting(self.tables, self.locks, self.delays)
        self.half_messages = HalfMessages(self)
        self.client_requests = ClientRequests()
        #: What was refused.
        self.refusals = Refusals()
        #: Messages given to consumers so far.
        self.messages_out = 0
        self.put_rate = Rate()
        self.get_rate = Rate()
        # What offset ids begin with: where the message is stored.
        self.id_prefix = (socket.inet_aton(host) + port.to_bytes(4, "big")).hex().upper()

    @property
    def address(self) -> str:
        """``host:port`` as clients are told it."""
        return f"{self.host}:{self.port}"

    @property
    def writable(self) -> bool:
        """Whether this broker may write, for its clients and for itself: it is a primary."""
        return self.replication.writable

    @staticmethod
    def now() -> int:
        """The broker's clock, ms since 1970."""
        return time.time_ns() // 1_000_000

    def change_settings(self, **changes: Any) -> None:
        """Change settings until the broker stops."""
        self.settings = replace(self.settings, **changes)
        if "create_groups" in changes:
            self.groups.creates = changes["create_groups"]

    def sample_rates(self) -> None:
        """Note how much was done so far; called now and then."""
        now = self.loop.time()
        self.put_rate.note(now=now, total=self.store.statistics().appended_records)
        self.get_rate.note(now=now, total=self.messages_out)

    def earliest(self) -> int:
        """Store time of the oldest message that is held, now when there is none, ms since 1970."""
        times = [
            self.store.store_time(*queue, bounds.min_offset)
            for queue in self.store.queues()
            if (bounds := self.store.bounds(*queue)).min_offset < bounds.max_offset
        ]
        return min(times, default=self.now())

    def retry_topic(self, group: str) -> TopicConfig:
        """Return the topic of a group's retries, created as the group's settings say.

        Raises
        ------
        GroupNotFoundError
            When there is no such group, and none may be created.
        """
        self.check_group(group)
        self.check_new_topic(RETRY_PREFIX + group)
        queues = max(1, self.groups.get(group).retry_queue_nums)
        self.tables.ensure_topic(RETRY_PREFIX + group, queues)
        return self.topics.get(RETRY_PREFIX + group)

    async def ensure_compacted(self, name: str) -> None:
        """Create a topic of one queue that keeps the newest message of each key, durably."""
        config = self.topics.create(name, queues=1, attributes=COMPACTED)
        if (kept := self.keep_as_configured(config)) is not None:
            await asyncio.wrap_future(kept)
        await self.tables.save()

    def show_group(self, name: str) -> None:
        """Let RocketMQ's tools find a group that has offsets but no members."""
        try:
            self.retry_topic(name)
        except (BrokerError, OSError) as error:
            logger.warning("group %r stays hidden from RocketMQ's tools: %s", name, error)

    async def delete_topic(self, name: str) -> bool:
        """Delete a topic with all that is known about it; False when there is none.

        Where a disk has failed half way, the next call deletes the rest.
        """
        known = self.topics.delete(name)
        self.static_topics.forget(name)
        self.offsets.forget_topic(name)
        self.jobs.forget(name)
        found = known or any(topic == name for topic, _ in self.store.queues())
        # All in one step: what comes next may be the first message of a topic of the same name.
        deleted = self.store.delete_topic(name) if found else None
        await self.tables.save()
        if deleted is not None:
            await asyncio.wrap_future(deleted)
        return found

    def arrived(self, queues: Collection[waiting.Queue]) -> None:
        """Wake who waits for messages of these queues; any thread may call."""
        # Safe from another thread: who waits registers first and looks again after that.
        if not self.polls.is_empty:
            self.work.post(partial(self._wake, queues))

    def _wake(self, queues: Collection[waiting.Queue]) -> None:
        for poll in self.polls.arrived(queues):
            poll.wake()

    def wait(
        self,
        queues: Collection[waiting.Queue],
        seconds: float,
        peer: Peer,
        wake: Callable[[], None],
    ) -> Callable[[], None]:
        """Call back on the next message of the queues or when time is up, while the peer is there.

        The caller must look for messages again afterwards: one may have come just before.
        Returns a call that ends the wait.
        """

        def woken() -> None:
            timer.cancel()
            wake()

        def expired() -> None:
            if self.polls.remove(poll):
                wake()

        def end() -> None:
            timer.cancel()
            self.polls.remove(poll)

        self.check_polls(peer)
        poll = self.polls.add(queues, owner=peer.number, wake=woken)
        timer = self.loop.call_later(seconds, expired)
        return end

    def turn(self, commit_topic: str) -> asyncio.Lock:
        """The lock under which the requests of one job follow one another."""
        return self._turns.setdefault(commit_topic, asyncio.Lock())

    def notify(self, notices: Iterable[Notify]) -> None:
        """Notify members that their groups changed."""
        for notice in notices:
            peer = self.peers.get(notice.peer)
            config = self.groups.peek(notice.group)
            if peer is not None and (config is None or config.notify_consumer_ids_changed_enable):
                code, ext = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": notice.group}
                self.client_requests.tell(peer, code, ext)

    def append(self, appends: list[QueueAppend], done: waiting.OnAppended) -> None:
        """Append messages and call back, on the loop, when they are stored or were refused."""
        if self.settings.min_replicas:
            done = self.replication.after(appends, done)
        self._appends.add(appends, done)

    async def put(self, draft: Draft) -> AppendResult:
        """Store one message of the broker's own making."""
        (result,) = await self.appended([draft.append()])
        if draft.topic in CLOSED_TOPICS:
            self.delays.wake()
        return result

    async def appended(self, appends: list[QueueAppend]) -> list[AppendResult]:
        """Append messages and wait until they are stored."""
        ended: asyncio.Future[waiting.AppendOutcome] = self.loop.create_future()
        self.append(appends, ended.set_result)
        outcome = await ended
        if outcome.error is not None:
            raise outcome.error
        return outcome.results

    async def read(self, request: Request, kind: type[T]) -> T:
        """Read a JSON body that may be large, and hold nobody up meanwhile."""
        if request.is_large:
            return await self.work.in_thread(request.large_body, kind)
        return request.large_body(kind)

    async def write(self, request: Request, answer: object) -> bytes:
        """Write the JSON body of an answer that is about as large as what was asked."""
        return await self.work.in_thread(dumps, answer) if request.is_large else dumps(answer)

    @staticmethod
    async def in_parts(many: Sequence[T]) -> AsyncIterator[Sequence[T]]:
        """Yield many things some at a time; others have their turn between two parts."""
        for begin in range(0, len(many), _PART):
            yield many[begin : begin + _PART]
            if begin + _PART < len(many):
                await asyncio.sleep(0)

    # Whether the tables take one more entry: what clients can make without being asked.

    def check_polls(self, peer: Peer) -> None:
        """Refuse to let one more request wait when too many do."""
        limits = self.settings.limits
        if self.polls.of(peer.number) >= limits.max_polls:
            message = f"{limits.max_polls} requests of this connection wait for messages already"
            raise BrokerBusyError(message, hint="The limit is max_polls; use more connections.")
        if len(self.polls) >= limits.max_polls_in_all:
            message = f"{limits.max_polls_in_all} requests wait for messages already"
            raise BrokerBusyError(message, hint="The broker's limit is max_polls_in_all.")

    def check_new_topic(self, name: str) -> None:
        """Refuse to create a topic that nobody asked for when there are too many."""
        most = self.settings.limits.max_topics
        if name not in self.topics and len(self.topics) >= most:
            message = f"topic {name!r} is not created: there are {len(self.topics)} topics already"
            raise BrokerBusyError(message, hint="Create it by hand, or raise the limit max_topics.")

    def check_staged(self, job: str, size: int) -> None:
        """Refuse to keep more for an account than it may have staged and not committed."""
        limits, owner = self.settings.limits, self.jobs.owner(job)
        found = [
            sums
            for each, sums in self.store.staged_sums().items()
            if self.jobs.owner(each) == owner
        ]
        parts, held = sum(each for each, _ in found), sum(each for _, each in found)
        if parts >= limits.max_staged_parts or held + size > limits.max_staged_bytes:
            whose = f"of the account {owner!r}" if owner else "that belong to no account"
            message = (
                f"the jobs {whose} have staged {held:,} bytes in {parts:,} parts: job {job!r} can"
            )
            hint = "They go with the next commit or epoch; the limits are max_staged_bytes and"
            raise BrokerBusyError(f"{message} stage no more", hint=f"{hint} max_staged_parts.")

    def check_group(self, name: str) -> None:
        """Refuse a consumer group that has never been seen when there are too many."""
        most = self.settings.limits.max_groups
        if name in self.groups or self.offsets.knows(name) or self.clients.group(name) is not None:
            return
        if max(len(self.groups), self.offsets.group_count, self.clients.group_count) >= most:
            message = f"group {name!r} is not let in: there are {most} consumer groups already"
            raise BrokerBusyError(message, hint="Delete groups, or raise the limit max_groups.")

    def check_heartbeat(self, beat: Heartbeat, peer: int) -> None:
        """Refuse a heartbeat that names more than a client can mean, with those before it."""
        limits = self.settings.limits
        named = self.clients.would_join(beat, peer)
        if named > limits.max_groups_per_client:
            message = f"a client is in {named} groups, {limits.max_groups_per_client} are possible"
            raise InvalidParameterError(message, hint="The limit is max_groups_per_client.")
        told = sum(len(consumer.subscription_data_set) for consumer in beat.consumer_data_set)
        if self.clients.subscription_count + told > limits.max_subscriptions + self._known(beat):
            message = (
                f"{told} subscriptions more are too many: {limits.max_subscriptions} are possible"
            )
            raise BrokerBusyError(message, hint="The broker's limit is max_subscriptions.")
        for consumer in beat.consumer_data_set:
            self.check_group(consumer.group_name)
        new = sum(not self.clients.producers(p.group_name) for p in beat.producer_data_set)
        if new and self.clients.producer_group_count + new > limits.max_groups:
            message = f"there are {limits.max_groups} producer groups already"
            raise BrokerBusyError(message, hint="The broker's limit is max_groups.")

    def _known(self, beat: Heartbeat) -> int:
        """Subscriptions that the heartbeat replaces."""
        groups = (self.clients.group(consumer.group_name) for consumer in beat.consumer_data_set)
        return sum(len(group.subscriptions) for group in groups if group is not None)

    def check_batch(self, batch: Buffer, topic: str, properties: str) -> None:
        """Refuse a batch that grows beyond reason: each message takes the header's properties."""
        most = self.settings.limits.max_batch_growth
        size = largest_records(batch, topic, len(properties), enough=most)
        if size > most:
            message = (
                f"a batch of {len(batch)} bytes for topic {topic!r} takes {size} bytes unpacked"
            )
            hint = "Send fewer messages at once; the limit is max_batch_growth."
            raise MessageRejectedError(message, hint=hint)

    def keep_as_configured(self, config: TopicConfig) -> Future[None] | None:
        """Have the store compact a topic that is to be compacted; None when it does, or need not."""
        if not is_compacted(config) or not self.writable:
            return None
        if config.topic_name in self.store.compacted_topics():
            return None
        return self.store.compact_topic(config.topic_name)

    def compact_all(self) -> None:
        """Compact every topic that is to be. Caller: the start of the broker."""
        started = [
            future
            for config in self.topics.configs()
            if (future := self.keep_as_configured(config))
        ]
        for future in started:
            try:
                future.result()
            except StoreError as error:
                # The broker serves what it has; the next start tries again.
                logger.warning("a topic could not be compacted: %s", error)

    async def close(self) -> None:
        """End what goes on by itself, save the tables and close the store."""
        self._appends.submit()
        if self.follower is not None:
            await self.follower.stop()
        await self.work.cancel()
        await self.work.in_thread(self.store.close)
        await self.tables.save(offsets=True)
        self.work.pool.shutdown()


Handler = Callable[[Core, Request], Outcome]
"""What answers a request."""
