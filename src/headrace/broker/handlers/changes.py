"""Requests of tools that change the broker's settings while it runs, or tidy it up."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.errors import InvalidParameterError
from headrace.protocol.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.broker.requests import Request
    from headrace.protocol.frames import Command

__all__ = ["HANDLERS"]


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _positive(text: str) -> int:
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


#: RocketMQ's name of each setting that may change, with ours and how its value is read.
_CHANGEABLE: dict[str, tuple[str, Callable[[str], object]]] = {
    "autoCreateTopicEnable": ("create_topics", _truth),
    "autoCreateSubscriptionGroup": ("create_groups", _truth),
    "defaultTopicQueueNums": ("default_queues", _positive),
}


def update_broker_config(core: Core, request: Request) -> Command:
    """Change settings until the broker stops: none of them, or all that were named."""
    changes: dict[str, object] = {}
    for line in request.lines():
        key, _, value = (part.strip() for part in line.partition("="))
        if not key or key.startswith("#"):
            continue
        if key not in _CHANGEABLE:
            message = f"the setting {key!r} cannot be changed while the broker runs"
            hint = f"These can: {', '.join(_CHANGEABLE)}."
            raise InvalidParameterError(message, hint=hint)
        name, read = _CHANGEABLE[key]
        try:
            changes[name] = read(value)
        except ValueError:
            raise InvalidParameterError(f"{key} cannot be {value!r}") from None
    core.change_settings(**changes)
    return request.reply()


async def tidy(core: Core, request: Request) -> Command:
    """Delete now what has expired; by itself it goes within seconds."""
    await core.in_thread(core.store.expire)
    return request.reply()


async def delete_unused_topics(core: Core, request: Request) -> Command:
    """Delete retry topics of groups that do not exist any more, if they hold no message."""
    for name in list(core.topics):
        group = name.removeprefix("%RETRY%")
        if group != name and group not in core.groups and core.clients.group(group) is None:
            bounds = core.store.bounds(name, 0)
            if bounds.min_offset == bounds.max_offset:
                await core.delete_topic(name)
    return request.reply()


def view_stats(_core: Core, request: Request) -> Command:
    """Tell a figure per minute, hour and day, of which this broker keeps none."""
    name, key = request.text("statsName"), request.text("statsKey")
    return request.reply(ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")


HANDLERS = {
    RequestCode.UPDATE_BROKER_CONFIG: update_broker_config,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: tidy,
    RequestCode.DELETE_EXPIRED_COMMITLOG: tidy,
    RequestCode.CLEAN_UNUSED_TOPIC: delete_unused_topics,
    RequestCode.VIEW_BROKER_STATS_DATA: view_stats,
}
