"""Figures about topics, groups and brokers, as the protocol's JSON bodies.

Keys of tables by queue hold JSON: ``QueueRef.key`` writes and ``QueueRef.of_key`` reads them.
"""

from __future__ import annotations

from msgspec import field

from headrace.protocol.bodies import JsonBody

# msgspec reads the annotations at run time.
from headrace.protocol.groups import SubscriptionData  # noqa: TC001

__all__ = [
    "Connection",
    "ConsumeStats",
    "ConsumerConnections",
    "GroupOffset",
    "ProducerConnections",
    "ResetOffsets",
    "RuntimeInfo",
    "TopicOffset",
    "TopicStats",
]


class TopicOffset(JsonBody):
    """What a queue holds."""

    #: First offset.
    min_offset: int = 0
    #: One past the last offset.
    max_offset: int = 0
    #: When the last message was stored, ms since 1970; 0 for an empty queue.
    last_update_timestamp: int = 0


class TopicStats(JsonBody):
    """Answer to GET_TOPIC_STATS_INFO."""

    offset_table: dict[str, TopicOffset] = field(default_factory=dict)
    #: Messages per second.
    topic_put_tps: float = 0.0


class GroupOffset(JsonBody):
    """How far a group has come in a queue."""

    #: One past the last offset of the queue.
    broker_offset: int = 0
    #: Next offset that the group will read, as committed.
    consumer_offset: int = 0
    #: Next offset that the group will pull.
    pull_offset: int = 0
    #: When the last message that was read had been stored, ms since 1970.
    last_timestamp: int = 0


class ConsumeStats(JsonBody):
    """Answer to GET_CONSUME_STATS."""

    offset_table: dict[str, GroupOffset] = field(default_factory=dict)
    #: Messages per second.
    consume_tps: float = 0.0


class Connection(JsonBody):
    """A connected client."""

    client_id: str = ""
    client_addr: str = ""
    language: str = "OTHER"
    version: int = 0


class ProducerConnections(JsonBody):
    """Answer to GET_PRODUCER_CONNECTION_LIST."""

    connection_set: list[Connection] = field(default_factory=list)


class ConsumerConnections(JsonBody):
    """Answer to GET_CONSUMER_CONNECTION_LIST."""

    connection_set: list[Connection] = field(default_factory=list)
    #: What the group reads, by topic.
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: str = "CONSUME_ACTIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"


class RuntimeInfo(JsonBody):
    """Answer to GET_BROKER_RUNTIME_INFO."""

    table: dict[str, str] = field(default_factory=dict)


class ResetOffsets(JsonBody):
    """Answer to INVOKE_BROKER_TO_RESET_OFFSET: the new offset of each queue."""

    offset_table: dict[str, int] = field(default_factory=dict)
