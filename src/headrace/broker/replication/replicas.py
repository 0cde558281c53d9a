"""A broker's part in replication: its role, its followers, and who waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable
from dataclasses import replace
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.broker.requests import Request, failure
from headrace.broker.snapshots import load_snapshot, save_snapshot
from headrace.errors import (
    BrokerBusyError,
    FencedError,
    HeadraceError,
    NoPermissionError,
    NotPrimaryError,
    NotReplicatedError,
)
from headrace.protocol.codes import RequestCode, ResponseCode
from headrace.protocol.replication import ReplicaRow, ReplicationInfo
from headrace.store.replication.copyist import ReplicaBook, Settled

if TYPE_CHECKING:
    from headrace.broker.settings import BrokerSettings
    from headrace.broker.waiting import BackgroundWork, OnAppended
    from headrace.protocol.frames import Command
    from headrace.store import AppendResult, MessageStore, QueueAppend
    from headrace.store.replication.port import Rebuilds


# What a broker remembers of its part in replication, over restarts.


class Role(StrEnum):
    """A broker's part in replication."""

    #: It takes writes.
    PRIMARY = "primary"
    #: It copies another broker's log.
    FOLLOWER = "follower"
    #: It was a primary until another broker was promoted.
    FENCED = "fenced"


class ReplicaState(msgspec.Struct, kw_only=True):
    """The broker's file ``replication.json``."""

    role: Role = Role.PRIMARY
    #: Identity of the log, empty until somebody follows it.
    log: str = ""
    #: Own id as a follower.
    follower: str = ""
    #: Broker to follow; of a fenced broker: who was promoted.
    primary: str = ""
    #: Whom this broker followed until it was promoted.
    left: str = ""
    #: Whether that one has yet to be told that it is no primary any more.
    tell: bool = False
    #: Whether this follower may have messages of the time when it was a primary itself, which no
    #: other has: until it has been compared with its primary.
    differs: bool = False
    #: Highest epoch that was heard of.
    epoch: int = 0
    #: Where the followers were last heard.
    followers: list[str] = []


class ReplicaStart(msgspec.Struct, frozen=True):
    """How to begin, and what to say about it."""

    role: Role
    warning: str = ""


def role_at_start(state: ReplicaState, follow: str | None) -> ReplicaStart:
    """Decide what a broker is when it starts, by its file and by what it is told to follow.

    Examples
    --------
    >>> role_at_start(ReplicaState(), None).role, role_at_start(ReplicaState(), "h:1").role
    (<Role.PRIMARY: 'primary'>, <Role.FOLLOWER: 'follower'>)
    """
    if follow is None:
        if state.role is Role.FOLLOWER:
            return ReplicaStart(
                Role.FOLLOWER,
                f"this broker goes on following {state.primary}: it was never promoted",
            )
        return ReplicaStart(state.role)
    if state.role is Role.PRIMARY and state.left == follow:
        # The command line of old: to follow now would throw away what was written since.
        return ReplicaStart(
            Role.PRIMARY,
            f"this broker was promoted in place of {follow}, which it is told to follow: it "
            "stays a primary",
        )
    return ReplicaStart(Role.FOLLOWER)


def load_state(folder: Path) -> ReplicaState:
    """Read the file of a data folder; a broker that never took part has an empty one."""
    state = load_snapshot(folder / "replication.json", ReplicaState) or ReplicaState()
    state.follower = state.follower or uuid.uuid4().hex
    return state


def save_state(folder: Path, state: ReplicaState) -> None:
    """Make the file durable."""
    save_snapshot(folder / "replication.json", state)


# What a broker that is no primary refuses.

#: Requests that change something, but for those of replication itself.
_WRITES = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.OPEN_JOB,
        RequestCode.STAGE,
        RequestCode.COMMIT_BATCH,
        RequestCode.PLAN_BATCH,
    }
)
_PULLS = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
#: Requests that read queues, or ask how far they go.
_READS = _PULLS | {
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
}
_COMMIT = 1


class Gate:
    """Answers requests that a broker must refuse.

    Parameters
    ----------
    error
        Why it refuses them.
    rebuilds
        Queues that lack something: nobody reads from them meanwhile.
    reads
        Whether its messages are those of the primary, as far as it has them.
    """

    def __init__(self, error: HeadraceError, rebuilds: Rebuilds, *, reads: bool) -> None:
        self._error = error
        self._reads = reads
        self._rebuilds = rebuilds

    def __call__(self, request: Request) -> Command | None:
        """Return the refusal, None for a request that may go on."""
        code = request.command.code
        if code in _WRITES or (code in _READS and not self._reads):
            return failure(request, self._error)
        if code in _PULLS:
            # A consumer may read here; how far it came is its primary's to know.
            flags = request.number("sysFlag", 0)
            request.command.ext["sysFlag"] = str(flags & ~_COMMIT)
            topic, queue_id = request.text("topic", ""), request.number("queueId", -1)
            if self._rebuilds.is_rebuilding(topic, queue_id):
                message = f"queue {queue_id} of topic {topic!r} is being rebuilt here"
                return failure(request, BrokerBusyError(message, hint="Read from the primary."))
        return None


# Queues that followers read from the beginning: nothing of them is compacted meanwhile.
#
# A follower that has got a value, and not the delete behind it, would keep the value for ever if
# the delete went now.  No I/O: what to pause is asked for, time is given.

Key = tuple[str, int, int]
"""Topic, queue id and birth."""


class SessionLease(Enum):
    """What became of a session."""

    #: The queue stays as it is until the session ends.
    GRANTED = "granted"
    #: The queue is being compacted: try again soon.
    BUSY = "busy"
    #: The session is over, the queue may have been compacted since: begin again.
    LOST = "lost"


class RebuildLeases:
    """Who reads which queue.

    Parameters
    ----------
    expiry
        Seconds after which a session that asks for nothing is over.
    pause
        Keeps a queue from being compacted; False while it is being compacted just now.
    resume
        Lets a queue be compacted again.

    Examples
    --------
    >>> leases = RebuildLeases(60, lambda key: True, lambda key: print("again", key))
    >>> leases.touch(("t", 0, 0), "s1", first=True, now=0)
    <SessionLease.GRANTED: 'granted'>
    >>> leases.end(("t", 0, 0), "s1")
    again ('t', 0, 0)
    """

    def __init__(
        self, expiry: float, pause: Callable[[Key], bool], resume: Callable[[Key], None]
    ) -> None:
        self._expiry = expiry
        self._pause = pause
        self._resume = resume
        #: Until when, by queue and session.
        self._queues: dict[Key, dict[str, float]] = {}

    def touch(self, key: Key, session: str, *, first: bool, now: float) -> SessionLease:
        """Begin a session, or go on with it."""
        sessions = self._queues.get(key)
        if first:
            if sessions is None and not self._pause(key):
                return SessionLease.BUSY
            sessions = self._queues.setdefault(key, {})
        elif sessions is None or session not in sessions:
            return SessionLease.LOST
        sessions[session] = now + self._expiry
        return SessionLease.GRANTED

    def end(self, key: Key, session: str) -> None:
        """End a session."""
        sessions = self._queues.get(key)
        if sessions is not None:
            sessions.pop(session, None)
            if not sessions:
                del self._queues[key]
                self._resume(key)

    def expire(self, *, now: float) -> None:
        """End the sessions that nobody goes on with."""
        for key, sessions in list(self._queues.items()):
            for session in [one for one, until in sessions.items() if until <= now]:
                self.end(key, session)


logger = logging.getLogger(__name__)


class Replication:
    """Everything that one broker knows of the others that have the same log.

    Caller: the loop's thread.

    Parameters
    ----------
    folder
        Where the broker keeps everything.
    store, settings
        Its messages, and how it behaves.
    work
        Where its tasks go on.
    address
        ``host:port`` as clients are told it.
    """

    def __init__(
        self,
        folder: Path,
        store: MessageStore,
        settings: BrokerSettings,
        work: BackgroundWork,
        address: str,
    ) -> None:
        self.folder = folder
        self.store = store
        self.settings = settings
        self.address = address
        self.work = work
        self.port = store.replication
        self.state: ReplicaState = load_state(folder)
        #: Refuses what only a primary may do; None: this is one.
        self.gate: Callable[[Request], Command | None] | None = None
        self.book = ReplicaBook(
            settings.min_replicas,
            settings.replica_timeout.total_seconds(),
            settings.replica_expiry.total_seconds(),
        )
        #: Bytes that the primary has and this follower has not, as last heard.
        self.lag: int | None = None
        #: What a follower is doing, for those who look.
        self.doing = ""
        self.number = 1
        #: In the order in which they came.
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._peers: dict[int, str] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: Lowest position that a follower still needs, for retention's thread to read.
        self._lowest: int | None = None
        store.hold(self._keep_from)
        #: Queues that followers read from the beginning.
        self.leases = RebuildLeases(
            settings.rebuild_expiry.total_seconds(),
            store.rebuilds.pause,
            store.rebuilds.resume,
        )

    @property
    def role(self) -> Role:
        """The broker's part."""
        return self.state.role

    @property
    def writable(self) -> bool:
        """Whether this broker may write for its clients and for itself."""
        return self.state.role is Role.PRIMARY

    @property
    def epoch(self) -> int:
        """The newest epoch that this broker knows."""
        return max(self.port.epochs.latest, self.state.epoch)

    def save(self) -> None:
        """Make what must be remembered durable."""
        save_state(self.folder, self.state)

    # Roles

    def begin(self) -> None:
        """Take the role that the file and the settings say. Caller: start of the broker."""
        start = role_at_start(self.state, self.settings.follow)
        if start.warning:
            logger.warning("%s", start.warning)
        before = self.state.role
        self.state.role = start.role
        if start.role is Role.FOLLOWER:
            self.state.primary = self.settings.follow or self.state.primary
            self.state.tell = False
            self.state.differs = self.state.differs or before is not Role.FOLLOWER
        if start.role is not before or start.role is Role.FOLLOWER:
            self.save()
        self._apply_role()

    async def open_epoch(self, number: int) -> int:
        """Begin an epoch of this broker's own; its first position."""
        opened = await asyncio.wrap_future(self.port.open_epoch(number))
        return opened.start

    def become(self, role: Role, **changes: Any) -> None:
        """Change the role, durably.

        A primary is one when its disk says so; a broker that was replaced is none at once.
        """
        changes = {"epoch": max(self.state.epoch, self.port.epochs.latest)} | changes
        state = msgspec.structs.replace(self.state, role=role, **changes)
        if role is Role.PRIMARY:
            save_state(self.folder, state)
        self.state = state
        self._apply_role()
        if role is not Role.PRIMARY:
            self.save()

    def fence(self, epoch: int, primary: str) -> None:
        """Take no more writes: another broker was promoted."""
        if self.state.role is Role.FOLLOWER:
            return
        logger.warning(
            "this broker takes no more writes: %s was promoted to epoch %d, and this log has "
            "epoch %d; start it with --follow to let it follow",
            primary or "another broker",
            epoch,
            self.port.epochs.latest,
        )
        newest = max(self.epoch, epoch)
        self.become(Role.FENCED, epoch=newest, primary=primary or self.state.primary)

    def _apply_role(self) -> None:
        error = self._refusal()
        self.port.refuse(error)
        reads = self.role is Role.FOLLOWER and not self.state.differs
        self.gate = None if error is None else Gate(error, self.store.rebuilds, reads=reads)

    def compared(self) -> None:
        """Note that the log of this follower is a beginning of its primary's."""
        if self.state.differs:
            self.state.differs = False
            self.save()
            self._apply_role()

    def _refusal(self) -> NotPrimaryError | None:
        own, primary = self.address, self.state.primary
        if self.role is Role.FOLLOWER:
            return NotPrimaryError(
                f"the broker at {own} follows {primary} and is read-only",
                primary=primary,
                hint=f"write to {primary}, or promote this one: headrace broker promote {own}",
            )
        if self.role is Role.FENCED:
            return NotPrimaryError(
                f"the broker at {own} is no primary any more: {primary or 'another'} was promoted",
                primary=primary,
                hint=f"write to {primary or 'the new primary'}; this broker can follow it: "
                "headrace broker --follow HOST:PORT",
            )
        return None

    def require(self, role: Role) -> None:
        """Refuse what only a broker of some role does.

        Raises
        ------
        NoPermissionError
            This broker has another role.
        """
        if self.role is not role:
            whom = f" of {self.state.primary}" if self.state.primary else ""
            message = f"the broker at {self.address} is a {self.role}{whom}, no {role}"
            raise NoPermissionError(message, hint="see: headrace broker replicas HOST:PORT")

    def require_topics(self, message: str) -> None:
        """Refuse to say that there is no topic: a broker that is no primary may lack new ones.

        Raises
        ------
        NotPrimaryError
            This broker is none.
        """
        if not self.writable:
            number, primary = ResponseCode.TOPIC_NOT_EXIST, self.state.primary
            raise NotPrimaryError(message, primary=primary, hint=f"ask {primary}", number=number)

    def addresses(self) -> dict[str, str]:
        """The brokers of one name, by id, as routes show them."""
        own, primary = self.address, self.state.primary
        if self.role is Role.PRIMARY:
            present = self.book.present(now=self.work.loop.time())
            return {"0": own} | {str(each.number): each.address for each in present}
        if self.role is Role.FENCED:
            return {"0": primary or own}
        return {"0": primary, str(self.number): own}

    # Followers

    def admit(self, follower: str, address: str, peer: int) -> int:
        """Take up a follower; its broker id."""
        if not self.state.log:
            self.state.log = uuid.uuid4().hex
            self.save()
        if address not in self.state.followers:
            self.state.followers.append(address)
            self.save()
        now = self.work.loop.time()
        known = {each.follower: each for each in self.book.replicas()}
        held = known.get(follower)
        if held is None:
            self.book.heard(follower, address, 0, 0, now=now)
        self._peers[peer] = follower
        self.port.tell(self._published)
        return next(each.number for each in self.book.replicas() if each.follower == follower)

    def heard(self, follower: str, address: str, position: int, durable: int) -> None:
        """Note how far a follower has come."""
        now = self.work.loop.time()
        self.book.heard(follower, address, position, durable, now=now)
        self._lowest = self.book.lowest(now=now)

    def look_around(self) -> None:
        """Forget what followers that are gone have needed. Caller: now and then."""
        now = self.work.loop.time()
        self._lowest = self.book.lowest(now=now)
        self.leases.expire(now=now)

    def _keep_from(self) -> int | None:
        # Caller: retention's thread.  A follower that is too far behind starts over instead.
        lowest = self._lowest
        return None if lowest is None else max(lowest, self.port.end - self.settings.replica_hold)

    def disconnected(self, peer: int) -> None:
        """Note that a connection ended."""
        follower = self._peers.pop(peer, None)
        if follower is not None and follower not in self._peers.values():
            self.book.lost(follower)
            self.look_around()

    def is_here(self, peer: int) -> bool:
        """Whether the connection of a follower is still there."""
        return peer in self._peers

    async def more(self, position: int, seconds: float) -> None:
        """Wait until the log goes on behind a position, or time is up."""
        waiting: asyncio.Future[None] = self.work.loop.create_future()
        self._waiting[waiting] = None
        try:
            # Looked at after the wait was noted: bytes that come now wake it.
            if self.port.end <= position:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(waiting, seconds)
        finally:
            del self._waiting[waiting]

    def _published(self, _end: int) -> None:
        # Caller: whichever thread wrote.
        if self._waiting:
            self.work.post(self._wake)

    def _wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    # Acknowledgements

    def after(self, appends: list[QueueAppend], done: OnAppended) -> OnAppended:
        """Have a call about an append made when enough followers have it, or will not."""

        def appended(outcome: object) -> None:
            from headrace.broker.waiting import AppendOutcome

            assert isinstance(outcome, AppendOutcome)
            if outcome.error is not None:
                done(outcome)
                return
            end = _end(appends[-1], outcome.results[-1])
            self.wait(end, lambda how: done(replace(outcome, error=self._shortfall(how))))

        return appended

    async def settled(self, position: int) -> None:
        """Wait until enough followers have everything before a position.

        Raises
        ------
        NotReplicatedError
            They do not, or not in time; what was written stays.
        """
        if not self.book.needed:
            return
        ended: asyncio.Future[Settled] = self.work.loop.create_future()
        self.wait(position, lambda how: None if ended.done() else ended.set_result(how))
        error = self._shortfall(await ended)
        if error is not None:
            raise error

    def wait(self, position: int, done: Callable[[Settled], None]) -> None:
        """Call back when enough followers have everything before a position, or will not."""
        self.book.wait(position, done, now=self.work.loop.time())
        if self._timer is None:
            self._set_timer()

    def _set_timer(self) -> None:
        deadline = self.book.next_deadline()
        loop = self.work.loop
        self._timer = None if deadline is None else loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self.book.expire(now=self.work.loop.time())
        self._set_timer()

    def _shortfall(self, how: Settled) -> NotReplicatedError | None:
        if how is Settled.ENOUGH:
            return None
        needed = self.book.needed
        if how is Settled.TOO_FEW:
            count = len(self.book.present(now=self.work.loop.time()))
            return NotReplicatedError(
                f"stored here, but {count} of {needed} followers are there",
                hint="start the followers, or lower min_replicas of the broker",
                number=ResponseCode.SLAVE_NOT_AVAILABLE,
            )
        seconds = self.settings.replica_timeout.total_seconds()
        return NotReplicatedError(
            f"stored here, but not on {needed} followers within {seconds:g} s",
            hint="see how far they are: headrace broker replicas HOST:PORT",
            number=ResponseCode.FLUSH_SLAVE_TIMEOUT,
        )

    # What others see

    def info(self) -> ReplicationInfo:
        """Describe this broker's part."""
        now, end = self.work.loop.time(), self.port.end
        rows = [
            ReplicaRow(
                number=each.number,
                address=each.address,
                position=each.position,
                durable=each.durable,
                lag=max(end - each.durable, 0),
                heard=None if each.heard == float("-inf") else now - each.heard,
            )
            for each in self.book.replicas()
        ]
        head = self.port.head()
        following = self.role is not Role.PRIMARY
        return ReplicationInfo(
            role=self.role.value,
            log=self.state.log,
            epoch=self.epoch,
            begin=head.begin,
            end=end,
            primary=self.state.primary if following else "",
            state=self.doing if self.role is Role.FOLLOWER else "",
            lag=self.lag if self.role is Role.FOLLOWER else None,
            replicas=rows,
        )

    def refuse_stale(self, epoch: int) -> None:
        """Refuse a broker that was promoted earlier than this one.

        Raises
        ------
        FencedError
            Its epoch is not newer.
        """
        if epoch <= self.epoch:
            message = f"epoch {epoch} is over: the broker at {self.address} knows epoch"
            raise FencedError(f"{message} {self.epoch}", hint="follow the newest primary instead")


def _end(append: QueueAppend, result: AppendResult) -> int:
    return result.first_position + len(memoryview(append.records.data))
