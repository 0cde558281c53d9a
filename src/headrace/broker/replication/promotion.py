"""A follower becomes the primary, and the old primary hears of it."""

from __future__ import annotations

import asyncio
import logging
import zlib
from typing import TYPE_CHECKING

import msgspec

from headrace import errors
from headrace.broker.handlers.jobs import restore_jobs
from headrace.broker.replication.follower import FollowerTask, Reopen, changed, own_stamp
from headrace.broker.replication.remote import Remote
from headrace.broker.replication.replicas import Role, SessionLease
from headrace.protocol.codes import RequestCode, ResponseCode
from headrace.protocol.replication import (
    FenceAnswer,
    FenceRequest,
    Greeting,
    PromoteAnswer,
    ReplicationInfo,
    Welcome,
)
from headrace.store.replication.copyist import PositionVerdict, judge
from headrace.store.replication.following import Epoch, next_term

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.broker.requests import Request
    from headrace.protocol.frames import Command


logger = logging.getLogger(__name__)

#: Seconds for the old primary to answer, and for its last bytes to come.
_PATIENCE = 2.0
_LAST_BYTES = 30.0
_PAUSE = 1.0


async def begin_replication(core: Core, reopen: Reopen) -> None:
    """Take the part that the broker has. Caller: start of the broker."""
    replication = core.replication
    replication.begin()
    if replication.role is Role.FOLLOWER:
        core.follower = FollowerTask(core, reopen)
    elif replication.role is Role.PRIMARY and replication.state.log:
        await _ask_around(core)
        if replication.writable:
            # What followers have beyond this log's end, after a power cut, is told apart by it.
            await replication.open_epoch(replication.epoch + 1)
            if replication.state.tell:
                core.keep("broker-telling", _tell_old_primary(core))


async def promote(core: Core, *, force: bool = False) -> PromoteAnswer:
    """Make a follower the primary: all that it can get first, then a new epoch.

    Raises
    ------
    NoPermissionError
        This broker is no follower.
    """
    replication = core.replication
    replication.require(Role.FOLLOWER)
    follower = core.follower
    assert follower is not None
    follower.require_whole(force=force)
    old, epoch = replication.state.primary, next_term(replication.epoch)
    end = await _fence_old(core, old, epoch)
    if end is not None:
        await follower.await_position(end, _LAST_BYTES)
        await follower.take_tables()
    await follower.stop()
    await core.in_thread(core.store.rebuilds.abandon)
    position = await replication.open_epoch(epoch)
    restore_jobs(core)
    core.transactions.restore()
    replication.become(Role.PRIMARY, left=old, tell=end is None, primary="")
    core.follower = None
    await core.in_thread(core.compact_all)
    logger.warning("promoted to epoch %d at position %d, in place of %s", epoch, position, old)
    if end is None:
        core.keep("broker-telling", _tell_old_primary(core))
    return PromoteAnswer(
        epoch=replication.port.epochs.latest, position=position, fenced=end is not None
    )


async def _fence_old(core: Core, old: str, epoch: int) -> int | None:
    """Have the old primary take no more; one past its last byte, None when it does not answer."""
    asked = FenceRequest(epoch=epoch, primary=core.address, log=core.replication.state.log)
    try:
        async with Remote(old, _PATIENCE, core.settings.peers) as remote:
            answer = await remote.ask(RequestCode.FENCE, msgspec.json.encode(asked))
        return msgspec.json.decode(answer.payload, type=FenceAnswer).end
    except errors.FencedError:
        raise
    except errors.HeadraceError as error:
        logger.warning("the old primary at %s was not asked: %s", old, error.message)
        return None


async def fence(core: Core, asked: FenceRequest) -> FenceAnswer:
    """Take no more writes; what was taken before is on disk on return."""
    replication = core.replication
    if asked.log != replication.state.log:
        raise errors.FencedError(
            f"the broker at {asked.primary} has another log than the one at {core.address}"
        )
    again = replication.role is Role.FENCED and replication.state.primary == asked.primary
    if not again:
        replication.refuse_stale(asked.epoch)
    replication.fence(asked.epoch, asked.primary)
    return FenceAnswer(end=await core.stored(replication.port.settle()))


async def _tell_old_primary(core: Core) -> None:
    """Tell the old primary, whenever it comes back, that it is none any more."""
    state = core.replication.state
    while state.tell and core.replication.role is Role.PRIMARY:
        asked = FenceRequest(epoch=core.replication.epoch, primary=core.address, log=state.log)
        try:
            async with Remote(state.left, _PATIENCE, core.settings.peers) as remote:
                await remote.ask(RequestCode.FENCE, msgspec.json.encode(asked))
            state.tell = False
            core.replication.save()
            logger.warning("the old primary at %s takes no more writes", state.left)
        except errors.FencedError as error:
            # It knows this epoch already, or a newer one: then it has told us.
            state.tell = False
            core.replication.save()
            logger.info("%s", error.message)
        except (errors.HeadraceError, OSError):
            await asyncio.sleep(_PAUSE)


async def _ask_around(core: Core) -> None:
    """Ask the brokers that had this log whether one was promoted."""
    state = core.replication.state
    others = sorted({*state.followers, state.left} - {"", core.address})
    infos = await asyncio.gather(*(_info(core, each) for each in others))
    for address, info in zip(others, infos, strict=True):
        newer = info is not None and info.epoch > core.replication.epoch
        if newer and info is not None and info.log == state.log and info.role == Role.PRIMARY:
            core.replication.fence(info.epoch, address)


async def _info(core: Core, address: str) -> ReplicationInfo | None:
    try:
        async with Remote(address, _PATIENCE, core.settings.peers) as remote:
            answer = await remote.ask(RequestCode.LIST_REPLICAS)
        return msgspec.json.decode(answer.payload, type=ReplicationInfo)
    except (errors.HeadraceError, OSError, msgspec.MsgspecError):
        return None


# Requests of followers, and of those who look after them.

_MOST_BYTES = 64 * 1024 * 1024
_MOST_RECORDS = 65_536
_encode = msgspec.json.Encoder().encode


def greet(core: Core, request: Request) -> Command:
    """Tell a follower about the log, and take it up."""
    replication = core.replication
    if replication.role is Role.FOLLOWER:
        replication.require(Role.PRIMARY)
    asked = request.strict_body(Greeting)
    if (asked.broker, asked.cluster) != (core.name, core.cluster):
        message = f"the follower is called {asked.broker!r} of {asked.cluster!r}, this broker"
        hint = "give both the same --broker-name and --cluster: clients ask for them by these"
        raise errors.InvalidParameterError(
            f"{message} {core.name!r} of {core.cluster!r}", hint=hint
        )
    number = replication.admit(asked.follower, asked.address, request.peer.number)
    head = replication.port.head()
    answer = Welcome(
        log=replication.state.log,
        epochs=[(each.number, each.start, each.mark) for each in head.epochs.epochs],
        begin=head.begin,
        end=replication.port.end,
        newest=head.newest,
        number=number,
    )
    return request.reply(body=_encode(answer))


async def follow_log(core: Core, request: Request) -> Command:
    """Return bytes of the log from a position on, or wait for some."""
    replication, number = core.replication, request.number
    if replication.role is Role.FOLLOWER:
        replication.require(Role.PRIMARY)
    position = number("position")
    follower, address = request.text("follower"), request.text("address")
    newest = Epoch(number("epoch"), number("epochStart"), number("epochMark", signed=False))
    head = replication.port.head(replication.state.log)
    verdict = judge(head, request.text("log"), newest, position)
    if verdict is PositionVerdict.STALE:
        replication.fence(newest.number, "")
        raise errors.FencedError(
            f"the follower at {address} knows epoch {newest.number}: this broker was replaced"
        )
    if verdict is not PositionVerdict.FITS:
        remark = f"position {position} of {request.text('log')!r} is {verdict.value}"
        return request.reply(ResponseCode.PULL_OFFSET_MOVED, remark)
    replication.heard(follower, address, position, number("durable"))
    if replication.port.end <= position:
        await replication.more(position, number("wait") / 1000)
        if replication.is_here(request.peer.number):
            replication.heard(follower, address, position, number("durable"))
    stretch = replication.port.read(position, min(number("maxBytes"), _MOST_BYTES))
    ext = {
        "base": str(stretch.base),
        "position": str(position),
        "end": str(stretch.end),
        # Topics are made before their messages: a follower asks for them before it goes on.
        "topics": own_stamp(core),
        # Somebody may be waiting for an acknowledgement.
        "sync": "true" if replication.book.needed else "false",
    }
    return request.reply(ext=ext, body=stretch.content)


async def pull_records(core: Core, request: Request) -> Command:
    """Return old records of a compacted queue to a follower that rebuilds its log."""
    replication = core.replication
    if replication.role is Role.FOLLOWER:
        replication.require(Role.PRIMARY)
    key = (request.text("topic"), request.number("queueId"), request.number("birth"))
    if core.store.rebuilds.birth(*key[:2]) != key[2]:
        raise errors.NotFoundError(f"queue {key[1]} of topic {key[0]!r} is not that one any more")
    session = request.text("session")
    if request.flag("end"):
        replication.leases.end(key, session)
        return request.reply()
    first, now = request.flag("first"), core.loop.time()
    lease = replication.leases.touch(key, session, first=first, now=now)
    if lease is SessionLease.BUSY:
        raise errors.BrokerBusyError(f"queue {key[1]} of topic {key[0]!r} is being compacted")
    if lease is SessionLease.LOST:
        remark = f"session {session!r} took too long a break: begin again"
        return request.reply(ResponseCode.PULL_OFFSET_MOVED, remark)
    most = min(request.number("maxBytes"), _MOST_BYTES)
    offset, upto = request.number("offset"), request.number("upto")
    found = await core.in_thread(core.store.read, *key[:2], offset, _MOST_RECORDS, most)
    body = b"".join(found.slices)
    # Behind the last record that is left there may be a gap.
    following = found.next_offset if found.count else upto
    ext = {"nextOffset": str(following), "crc": str(zlib.crc32(body))}
    return request.reply(ext=ext, body=body)


def follow_tables(core: Core, request: Request) -> Command:
    """Return the tables that have changed."""
    have = request.strict_body(dict[str, int])
    return request.reply(body=_encode(changed(core, request.number("started"), have)))


async def promote_broker(core: Core, request: Request) -> Command:
    """Make this follower a primary."""
    answer = await promote(core, force=request.flag("force"))
    return request.reply(body=_encode(answer))


async def fence_broker(core: Core, request: Request) -> Command:
    """Take no more writes, as another broker takes them from here on."""
    answer = await fence(core, request.strict_body(FenceRequest))
    return request.reply(body=_encode(answer))


def list_replicas(core: Core, request: Request) -> Command:
    """Describe this broker's part in replication, and its followers."""
    return request.reply(body=_encode(core.replication.info()))


HANDLERS = {
    RequestCode.GREET_PRIMARY: greet,
    RequestCode.FOLLOW_LOG: follow_log,
    RequestCode.FOLLOW_TABLES: follow_tables,
    RequestCode.PULL_RECORDS: pull_records,
    RequestCode.PROMOTE: promote_broker,
    RequestCode.FENCE: fence_broker,
    RequestCode.LIST_REPLICAS: list_replicas,
}
