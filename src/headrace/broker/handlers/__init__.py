"""Handlers of requests, one module per family, and the table of all of them."""

from __future__ import annotations

from collections.abc import Callable

from headrace.broker.core import Core
from headrace.broker.handlers import brokers, clients, jobs, pull, send, topics
from headrace.broker.replication import promotion
from headrace.broker.requests import Outcome, Request

__all__ = ["HANDLERS", "Handler"]

Handler = Callable[[Core, Request], Outcome]

_FAMILIES = (brokers, clients, jobs, pull, promotion, send, topics)

HANDLERS: dict[int, Handler] = {
    code: handler for family in _FAMILIES for code, handler in family.HANDLERS.items()
}
"""The handler of each request that this broker knows, by request code."""
