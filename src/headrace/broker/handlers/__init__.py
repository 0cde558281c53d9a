"""Handlers of requests, one module per family, and the table of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.handlers import brokers, clients, jobs, pull, send, topics

if TYPE_CHECKING:
    from headrace.broker.core import Handler

__all__ = ["HANDLERS"]

_FAMILIES = (brokers, clients, jobs, pull, send, topics)

HANDLERS: dict[int, Handler] = {
    code: handler for family in _FAMILIES for code, handler in family.HANDLERS.items()
}
"""The handler of each request that this broker knows, by request code."""
