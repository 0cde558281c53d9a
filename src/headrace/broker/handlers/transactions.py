"""Requests of producers about their transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.transactions.book import Outcome
from headrace.broker.transactions.service import Ending
from headrace.protocol.codes import RequestCode, SysFlag

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.broker.requests import Request
    from headrace.protocol.frames import Command

__all__ = ["HANDLERS"]

_OUTCOMES = {
    int(SysFlag.COMMITTED): Outcome.COMMITTED,
    int(SysFlag.ROLLED_BACK): Outcome.ROLLED_BACK,
}


async def end_transaction(core: Core, request: Request) -> Command:
    """Deliver a half message, or drop it; a producer that does not know is asked again."""
    outcome = _OUTCOMES.get(request.number("commitOrRollback"))
    if outcome is not None:
        ending = Ending(
            request.text("producerGroup"),
            request.number("tranStateTableOffset"),
            request.number("commitLogOffset"),
            outcome,
            request.flag("fromTransactionCheck"),
            request.command.ext.get("topic"),
        )
        await core.transactions.end(ending)
    return request.reply()


HANDLERS = {RequestCode.END_TRANSACTION: end_transaction}
