"""Requests of followers, and of those who look after them."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import msgspec

from headrace.broker.replication.follower import changed, own_stamp
from headrace.broker.replication.promotion import fence, promote
from headrace.broker.replication.replicas import Role, SessionLease
from headrace.errors import (
    BrokerBusyError,
    FencedError,
    InvalidParameterError,
    NotFoundError,
)
from headrace.protocol.codes import RequestCode, ResponseCode
from headrace.protocol.replication import FenceRequest, Greeting, Welcome
from headrace.store.replication.following import Epoch
from headrace.store.replication.leading import PositionVerdict, judge

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.broker.requests import Request
    from headrace.protocol.frames import Command


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
        raise InvalidParameterError(f"{message} {core.name!r} of {core.cluster!r}", hint=hint)
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
        raise FencedError(
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
        raise NotFoundError(f"queue {key[1]} of topic {key[0]!r} is not that one any more")
    session = request.text("session")
    if request.flag("end"):
        replication.leases.end(key, session)
        return request.reply()
    first, now = request.flag("first"), core.loop.time()
    lease = replication.leases.touch(key, session, first=first, now=now)
    if lease is SessionLease.BUSY:
        raise BrokerBusyError(f"queue {key[1]} of topic {key[0]!r} is being compacted")
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
