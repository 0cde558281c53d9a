"""Making topics and groups on brokers."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

from headrace.errors import NoPermissionError, TopicNotFoundError
from headrace.protocol.bodies import dumps
from headrace.protocol.codes import Perm, RequestCode
from headrace.protocol.frames import Command
from headrace.protocol.groups import SubscriptionGroupConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.client.client import AsyncClient

__all__ = ["ensure_group", "topic_fields"]


def topic_fields(
    name: str,
    queues: int,
    attributes: Mapping[str, str],
    perm: Perm = Perm.READ | Perm.WRITE,
) -> dict[str, str]:
    """Fields of the request that creates or changes a topic."""
    fields = {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": str(int(perm)),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    if attributes:
        fields["attributes"] = ",".join(f"+{key}={value}" for key, value in attributes.items())
    return fields


async def ensure_group(client: AsyncClient, group: str, brokers: Iterable[str]) -> None:
    """Make a group and its retry topic, as a member's first heartbeat would.

    A stock broker refuses offsets of a group that it does not know, and RocketMQ's tools show the
    progress of a group only if there is a route of its retry topic.
    """
    retry_topic = f"%RETRY%{group}"
    try:
        await client.route(retry_topic)
    except TopicNotFoundError:
        body = dumps(SubscriptionGroupConfig(group_name=group))
        make_group = partial(Command, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
        fields = topic_fields(retry_topic, 1, {})
        make_topic = partial(Command, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        # Only an admin may; where an account is none, its group was made for it, or the request
        # that needs the group says that it is missing.
        with contextlib.suppress(NoPermissionError):
            for broker in sorted(set(brokers)):
                await client.ask_broker(broker, make_group)
                await client.ask_broker(broker, make_topic)
