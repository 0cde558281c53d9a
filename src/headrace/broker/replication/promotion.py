"""A follower becomes the primary, and the old primary hears of it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from headrace import errors
from headrace.broker.replication.remote import Remote
from headrace.broker.replication.replicas import Replication, Role
from headrace.protocol.codes import RequestCode
from headrace.protocol.replication import FenceAnswer, FenceRequest, PromoteAnswer, ReplicationInfo
from headrace.store.replication.following import next_term

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.replication.follower import FollowerTask


logger = logging.getLogger(__name__)

#: Seconds for the old primary to answer, and for its last bytes to come.
_PATIENCE = 2.0
_LAST_BYTES = 30.0
_PAUSE = 1.0


async def begin_replication(replication: Replication) -> None:
    """Take the part that the broker has. Caller: start of the broker."""
    replication.begin()
    if replication.role is Role.PRIMARY and replication.state.log:
        await _ask_around(replication)
        if replication.writable:
            # What followers have beyond this log's end, after a power cut, is told apart by it.
            await replication.open_epoch(replication.epoch + 1)
            if replication.state.tell:
                replication.work.keep("broker-telling", _tell_old_primary(replication))


async def promote(
    replication: Replication,
    follower: FollowerTask | None,
    restore: Callable[[], None],
    *,
    force: bool,
) -> PromoteAnswer:
    """Make a follower the primary: all that it can get first, then a new epoch.

    Parameters
    ----------
    restore
        Finds out from the log where everything stands, before anybody may write.

    Raises
    ------
    NoPermissionError
        This broker is no follower.
    """
    replication.require(Role.FOLLOWER)
    assert follower is not None
    follower.require_whole(force=force)
    old, epoch = replication.state.primary, next_term(replication.epoch)
    end = await _fence_old(replication, old, epoch)
    if end is not None:
        await follower.await_position(end, _LAST_BYTES)
        await follower.take_tables()
    await follower.stop()
    await replication.work.in_thread(replication.store.rebuilds.abandon)
    position = await replication.open_epoch(epoch)
    restore()
    replication.become(Role.PRIMARY, left=old, tell=end is None, primary="")
    logger.warning("promoted to epoch %d at position %d, in place of %s", epoch, position, old)
    if end is None:
        replication.work.keep("broker-telling", _tell_old_primary(replication))
    return PromoteAnswer(
        epoch=replication.port.epochs.latest, position=position, fenced=end is not None
    )


async def _fence_old(replication: Replication, old: str, epoch: int) -> int | None:
    """Have the old primary take no more; one past its last byte, None when it does not answer."""
    asked = FenceRequest(epoch=epoch, primary=replication.address, log=replication.state.log)
    try:
        async with Remote(old, _PATIENCE, replication.settings.peers) as remote:
            answer = await remote.ask(RequestCode.FENCE, msgspec.json.encode(asked))
        return msgspec.json.decode(answer.payload, type=FenceAnswer).end
    except errors.FencedError:
        raise
    except errors.HeadraceError as error:
        logger.warning("the old primary at %s was not asked: %s", old, error.message)
        return None


async def fence(replication: Replication, asked: FenceRequest) -> FenceAnswer:
    """Take no more writes; what was taken before is on disk on return."""
    if asked.log != replication.state.log:
        raise errors.FencedError(
            f"the broker at {asked.primary} has another log than the one at {replication.address}"
        )
    again = replication.role is Role.FENCED and replication.state.primary == asked.primary
    if not again:
        replication.refuse_stale(asked.epoch)
    replication.fence(asked.epoch, asked.primary)
    return FenceAnswer(end=await asyncio.wrap_future(replication.port.settle()))


async def _tell_old_primary(replication: Replication) -> None:
    """Inform the old primary, whenever it comes back, that it is none any more."""
    state = replication.state
    while state.tell and replication.role is Role.PRIMARY:
        asked = FenceRequest(epoch=replication.epoch, primary=replication.address, log=state.log)
        try:
            async with Remote(state.left, _PATIENCE, replication.settings.peers) as remote:
                await remote.ask(RequestCode.FENCE, msgspec.json.encode(asked))
            state.tell = False
            replication.save()
            logger.warning("the old primary at %s takes no more writes", state.left)
        except errors.FencedError as error:
            # It knows this epoch already, or a newer one: then it has told us.
            state.tell = False
            replication.save()
            logger.info("%s", error.message)
        except (errors.HeadraceError, OSError):
            await asyncio.sleep(_PAUSE)


async def _ask_around(replication: Replication) -> None:
    """Ask the brokers that had this log whether one was promoted."""
    state = replication.state
    others = sorted({*state.followers, state.left} - {"", replication.address})
    infos = await asyncio.gather(*(_info(replication, each) for each in others))
    for address, info in zip(others, infos, strict=True):
        newer = info is not None and info.epoch > replication.epoch
        if newer and info is not None and info.log == state.log and info.role == Role.PRIMARY:
            replication.fence(info.epoch, address)


async def _info(replication: Replication, address: str) -> ReplicationInfo | None:
    try:
        async with Remote(address, _PATIENCE, replication.settings.peers) as remote:
            answer = await remote.ask(RequestCode.LIST_REPLICAS)
        return msgspec.json.decode(answer.payload, type=ReplicationInfo)
    except (errors.HeadraceError, OSError, msgspec.MsgspecError):
        return None
