"""A follower becomes the primary, and the old primary hears of it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from headrace.broker.handlers.jobs import restore_jobs
from headrace.broker.keeping import compact_all
from headrace.broker.replication.follower import FollowerTask
from headrace.broker.replication.remote import Remote
from headrace.broker.replication.replicas import Role
from headrace.errors import FencedError, HeadraceError
from headrace.protocol.codes import RequestCode
from headrace.protocol.replication import (
    FenceAnswer,
    FenceRequest,
    PromoteAnswer,
    ReplicationInfo,
)
from headrace.store.replication.following import next_term

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.broker.replication.follower import Reopen


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
    await core.in_thread(compact_all, core)
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
    except FencedError:
        raise
    except HeadraceError as error:
        logger.warning("the old primary at %s was not asked: %s", old, error.message)
        return None


async def fence(core: Core, asked: FenceRequest) -> FenceAnswer:
    """Take no more writes; what was taken before is on disk on return."""
    replication = core.replication
    if asked.log != replication.state.log:
        raise FencedError(
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
        except FencedError as error:
            # It knows this epoch already, or a newer one: then it has told us.
            state.tell = False
            core.replication.save()
            logger.info("%s", error.message)
        except (HeadraceError, OSError):
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
    except (HeadraceError, OSError, msgspec.MsgspecError):
        return None
