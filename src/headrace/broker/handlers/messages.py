"""Requests of tools for single messages: by id and by key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.transactions.book import Outcome
from headrace.broker.transactions.service import HalfMessageEnd
from headrace.errors import NotFoundError
from headrace.protocol.codes import RequestCode, ResponseCode, SysFlag
from headrace.store.keys import KeyQuery

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.broker.requests import Request
    from headrace.protocol.frames import Command


# Requests of producers about their transactions.

_OUTCOMES = {
    int(SysFlag.COMMITTED): Outcome.COMMITTED,
    int(SysFlag.ROLLED_BACK): Outcome.ROLLED_BACK,
}


async def end_transaction(core: Core, request: Request) -> Command:
    """Deliver a half message, or drop it; a producer that does not know is asked again."""
    outcome = _OUTCOMES.get(request.number("commitOrRollback"))
    if outcome is not None:
        ending = HalfMessageEnd(
            request.text("producerGroup"),
            request.number("tranStateTableOffset"),
            request.number("commitLogOffset"),
            outcome,
            request.flag("fromTransactionCheck"),
            request.command.ext.get("topic"),
        )
        await core.transactions.end(ending)
    return request.reply()


_MOST_MATCHES = 64


def view_message(core: Core, request: Request) -> Command:
    """Give the message at a position of the commit log."""
    try:
        record = core.store.read_at(request.number("offset"))
    except NotFoundError as error:
        return request.reply(ResponseCode.SYSTEM_ERROR, str(error))
    return request.reply(body=record)


async def query_message(core: Core, request: Request) -> Command:
    """Find messages of a topic by a word of their keys or by their unique id, the newest first."""
    topic = request.text("topic")
    core.topics.get(topic)
    query = KeyQuery(
        topic=topic,
        word=request.text("key"),
        unique=request.flag("_UNIQUE_KEY_QUERY"),
        begin=request.number("beginTimestamp"),
        end=request.number("endTimestamp"),
        limit=max(1, min(request.number("maxNum"), _MOST_MATCHES)),
    )
    found = await core.in_thread(core.store.keys.find, query)
    if not found:
        remark = "can not find message, maybe time range not correct"
        return request.reply(ResponseCode.QUERY_NOT_FOUND, remark)
    ext = {
        "indexLastUpdateTimestamp": str(core.now()),
        "indexLastUpdatePhyoffset": str(core.store.statistics().end),
    }
    return request.reply(ext=ext, body=b"".join(found))


HANDLERS = {
    RequestCode.VIEW_MESSAGE_BY_ID: view_message,
    RequestCode.QUERY_MESSAGE: query_message,
    RequestCode.END_TRANSACTION: end_transaction,
}
