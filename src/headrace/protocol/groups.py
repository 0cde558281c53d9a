"""Clients and consumer groups, as the protocol's JSON bodies."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import field

from headrace.protocol.routes import JsonBody, MessageQueue

# Java's string hash and string order: brokers compare tags and members by them.


def java_hash(text: str) -> int:
    """Hash a string as Java's ``String.hashCode`` does.

    >>> java_hash("TagA"), java_hash("polygenelubricants")
    (2598919, -2147483648)
    """
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for unit in struct.unpack(f">{len(units) // 2}H", units):
        value = (31 * value + unit) & 0xFFFF_FFFF
    return value - (1 << 32) if value & 0x8000_0000 else value


def java_order(text: str) -> bytes:
    r"""Make a sort key that orders strings as Java does, by UTF-16 code units.

    >>> sorted(["\uffff", "\U00010000"], key=java_order) == ["\U00010000", "\uffff"]
    True
    """
    return text.encode("utf-16-be", "surrogatepass")


class Ordered(Protocol):
    """Anything that can be sorted."""

    def __lt__(self, other: Any, /) -> bool:
        """Return whether this comes before the other."""
        ...


Q = TypeVar("Q", bound=Ordered)


def average_rule(queues: Iterable[Q], client_ids: Iterable[str], me: str) -> Sequence[Q]:
    """Work out which queues one member reads: RocketMQ's rule "AVG".

    All members must reach the same result, Java's included, so it depends on nothing but the
    arguments.

    Parameters
    ----------
    queues
        Queues of one topic; they sort by topic, broker name and queue id.
    client_ids
        Ids of all members.
    me
        Id of the member in question.  A member that is not among all gets nothing.

    Examples
    --------
    >>> [average_rule(range(7), ["a", "b", "c"], me) for me in "abc"]
    [[0, 1, 2], [3, 4], [5, 6]]
    """
    ids = sorted(set(client_ids), key=java_order)
    if me not in ids:
        return []
    ordered = sorted(queues)
    share, rest = divmod(len(ordered), len(ids))
    index = ids.index(me)
    start = index * share + min(index, rest)
    return ordered[start : start + share + (index < rest)]


#: The expression for all messages.
ALL_TAGS = "*"


def retry_topic(group: str) -> str:
    """Topic in which a group's failed messages come again.

    >>> retry_topic("readers")
    '%RETRY%readers'
    """
    return f"%RETRY%{group}"


def dead_letter_topic(group: str) -> str:
    """Topic for messages that a group could not process for good.

    >>> dead_letter_topic("readers")
    '%DLQ%readers'
    """
    return f"%DLQ%{group}"


def split_tags(expression: str | None) -> list[str]:
    """Read the tags of an expression like ``A || B``; none stands for all messages.

    >>> split_tags("red || blue"), split_tags("*"), split_tags("")
    (['red', 'blue'], [], [])
    """
    if expression is None or expression.strip() in ("", ALL_TAGS):
        return []
    tags = [tag.strip() for tag in expression.split("||")]
    return list(dict.fromkeys(tag for tag in tags if tag))


class SubscriptionData(JsonBody):
    """Which messages of a topic a group wants."""

    topic: str = ""
    sub_string: str = ALL_TAGS
    tags_set: list[str] = field(default_factory=list)
    #: Java's hash of each tag.
    code_set: list[int] = field(default_factory=list)
    #: When the subscription was made, ms since 1970.
    sub_version: int = 0
    #: TAG or SQL92.
    expression_type: str = "TAG"
    class_filter_mode: bool = False

    @classmethod
    def of(cls, topic: str, tags: str | None = None, version: int = 0) -> SubscriptionData:
        """Make the subscription of a topic by tags.

        >>> SubscriptionData.of("lines", "TagA").code_set
        [2598919]
        """
        wanted = split_tags(tags)
        return cls(
            topic=topic,
            sub_string=" || ".join(wanted) or ALL_TAGS,
            tags_set=wanted,
            code_set=[java_hash(tag) for tag in wanted],
            sub_version=version,
        )


class ProducerData(JsonBody):
    """A producer group that a client belongs to."""

    group_name: str = ""


class ConsumerData(JsonBody):
    """A consumer group that a client belongs to."""

    group_name: str = ""
    #: CONSUME_PASSIVELY (push) or CONSUME_ACTIVELY (pull).
    consume_type: str = "CONSUME_ACTIVELY"
    #: CLUSTERING or BROADCASTING.
    message_model: str = "CLUSTERING"
    #: CONSUME_FROM_LAST_OFFSET, CONSUME_FROM_FIRST_OFFSET or CONSUME_FROM_TIMESTAMP.
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False


class Heartbeat(JsonBody):
    """Body of HEART_BEAT: who the client is and what it takes part in."""

    client_id: str = field(default="", name="clientID")
    producer_data_set: list[ProducerData] = field(default_factory=list)
    consumer_data_set: list[ConsumerData] = field(default_factory=list)
    #: 0: the heartbeat is complete; any other number belongs to heartbeats of the second version.
    heartbeat_fingerprint: int = 0
    #: The subscriptions are left out because they have not changed.
    without_sub: bool = False


class ClientConfig(JsonBody):
    """Body of CHECK_CLIENT_CONFIG: a subscription that a client is about to use."""

    client_id: str = ""
    group: str = ""
    namespace: str = ""
    subscription_data: SubscriptionData = field(default_factory=SubscriptionData)


class ConsumerIds(JsonBody):
    """Answer to GET_CONSUMER_LIST_BY_GROUP: client ids of a group's members."""

    consumer_id_list: list[str] = field(default_factory=list)


class LockRequest(JsonBody):
    """Body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    consumer_group: str = ""
    client_id: str = ""
    only_this_broker: bool = False
    mq_set: list[MessageQueue] = field(default_factory=list)


class LockResult(JsonBody):
    """Answer to LOCK_BATCH_MQ: the queues that were granted."""

    granted: list[MessageQueue] = field(default_factory=list, name="lockOKMQSet")


class GroupList(JsonBody):
    """Names of consumer groups."""

    group_list: list[str] = field(default_factory=list)


class GroupRetryPolicy(JsonBody):
    """How long failed messages of a group wait."""

    type: str = "CUSTOMIZED"


class SubscriptionGroupConfig(JsonBody):
    """Settings of a consumer group."""

    group_name: str = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: GroupRetryPolicy = field(default_factory=GroupRetryPolicy)
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    attributes: dict[str, str] = field(default_factory=dict)


class SubscriptionGroupTable(JsonBody):
    """Answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    forbidden_table: dict[str, dict[str, int]] = field(default_factory=dict)


# Figures about topics, groups and brokers, as the protocol's JSON bodies.
#
# Keys of tables by queue are what ``MessageQueue.key`` writes and ``MessageQueue.of_key`` reads.


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


class ClientConnection(JsonBody):
    """A connected client."""

    client_id: str = ""
    client_addr: str = ""
    language: str = "OTHER"
    version: int = 0


class ConsumerConnections(JsonBody):
    """Answer to GET_CONSUMER_CONNECTION_LIST."""

    connection_set: list[ClientConnection] = field(default_factory=list)
    #: What the group reads, by topic.
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: str = "CONSUME_ACTIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"


class RuntimeInfo(JsonBody):
    """Answer to GET_BROKER_RUNTIME_INFO."""

    table: dict[str, str] = field(default_factory=dict)
