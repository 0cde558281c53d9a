"""Handlers of requests, one module per family, and the table of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.handlers import (
    brokers,
    changes,
    clients,
    groups,
    jobs,
    members,
    messages,
    offsets,
    progress,
    pull,
    registration,
    replication,
    retries,
    routes,
    send,
    subscriptions,
    topics,
    transactions,
)

if TYPE_CHECKING:
    from headrace.broker.dispatch import Handler

__all__ = ["HANDLERS"]

_FAMILIES = (
    brokers,
    changes,
    clients,
    groups,
    jobs,
    members,
    messages,
    offsets,
    progress,
    pull,
    registration,
    replication,
    retries,
    routes,
    send,
    subscriptions,
    topics,
    transactions,
)

HANDLERS: dict[int, Handler] = {
    code: handler for family in _FAMILIES for code, handler in family.HANDLERS.items()
}
"""The handler of each request that this broker knows, by request code."""
