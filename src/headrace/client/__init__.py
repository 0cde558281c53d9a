"""Talk to a cluster: send, pull, consume in groups, look after topics.

Every class exists twice: with ``Async`` in its name for code on an event loop, and without for
code that waits.  Both work against ``headrace broker`` and against Apache RocketMQ 5.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.client.admin import AsyncAdmin
    from headrace.client.blocking import (
        Admin,
        Client,
        GroupConsumer,
        Jobs,
        Producer,
        PullConsumer,
        PushConsumer,
        TableReader,
        TableWriter,
        TransactionProducer,
    )
    from headrace.client.client import AsyncClient, ClientStatistics
    from headrace.client.deliveries import DEAD_LETTER, Delivery, Outcome, Retry
    from headrace.client.groups import AsyncGroupConsumer, GroupOptions, GroupStatistics
    from headrace.client.jobs import AsyncJobs, JobsStatistics, StageTarget
    from headrace.client.lag import GroupLag, JobStanding, QueueLag, QueueProgress, QueueRange
    from headrace.client.membership import MemberRole, Membership
    from headrace.client.producer import AsyncProducer, ProducerStatistics, SendResult
    from headrace.client.pulling import AsyncPullConsumer, PullStatistics
    from headrace.client.push import AsyncPushConsumer
    from headrace.client.push_options import MessageQueue, PushOptions, PushStatistics
    from headrace.client.results import PullResult, PullStatus
    from headrace.client.settings import ClientSettings
    from headrace.client.tables import AsyncTableReader, AsyncTableWriter, TableStatistics
    from headrace.client.transactions import (
        AsyncTransactionProducer,
        LocalTransactionState,
        Transaction,
        TransactionStatistics,
    )
    from headrace.protocol.messages import Message, StoredMessage

__all__ = [
    "DEAD_LETTER",
    "Admin",
    "AsyncAdmin",
    "AsyncClient",
    "AsyncGroupConsumer",
    "AsyncJobs",
    "AsyncProducer",
    "AsyncPullConsumer",
    "AsyncPushConsumer",
    "AsyncTableReader",
    "AsyncTableWriter",
    "AsyncTransactionProducer",
    "Client",
    "ClientSettings",
    "ClientStatistics",
    "Delivery",
    "GroupConsumer",
    "GroupLag",
    "GroupOptions",
    "GroupStatistics",
    "JobStanding",
    "Jobs",
    "JobsStatistics",
    "LocalTransactionState",
    "MemberRole",
    "Membership",
    "Message",
    "MessageQueue",
    "Outcome",
    "Producer",
    "ProducerStatistics",
    "PullConsumer",
    "PullResult",
    "PullStatistics",
    "PullStatus",
    "PushConsumer",
    "PushOptions",
    "PushStatistics",
    "QueueLag",
    "QueueProgress",
    "QueueRange",
    "Retry",
    "SendResult",
    "StageTarget",
    "StoredMessage",
    "TableReader",
    "TableStatistics",
    "TableWriter",
    "Transaction",
    "TransactionProducer",
    "TransactionStatistics",
]

# Imported at first use: who only parses the name of a queue loads no network code.
_HOMES = {
    "AsyncAdmin": "headrace.client.admin",
    "Admin": "headrace.client.blocking",
    "Client": "headrace.client.blocking",
    "GroupConsumer": "headrace.client.blocking",
    "Jobs": "headrace.client.blocking",
    "Producer": "headrace.client.blocking",
    "PullConsumer": "headrace.client.blocking",
    "PushConsumer": "headrace.client.blocking",
    "TableReader": "headrace.client.blocking",
    "TableWriter": "headrace.client.blocking",
    "TransactionProducer": "headrace.client.blocking",
    "AsyncClient": "headrace.client.client",
    "ClientStatistics": "headrace.client.client",
    "Delivery": "headrace.client.deliveries",
    "AsyncGroupConsumer": "headrace.client.groups",
    "GroupOptions": "headrace.client.groups",
    "GroupStatistics": "headrace.client.groups",
    "AsyncJobs": "headrace.client.jobs",
    "JobsStatistics": "headrace.client.jobs",
    "StageTarget": "headrace.client.jobs",
    "GroupLag": "headrace.client.lag",
    "QueueLag": "headrace.client.lag",
    "MemberRole": "headrace.client.membership",
    "Membership": "headrace.client.membership",
    "DEAD_LETTER": "headrace.client.deliveries",
    "Outcome": "headrace.client.deliveries",
    "Retry": "headrace.client.deliveries",
    "AsyncProducer": "headrace.client.producer",
    "ProducerStatistics": "headrace.client.producer",
    "SendResult": "headrace.client.producer",
    "AsyncPullConsumer": "headrace.client.pulling",
    "PullResult": "headrace.client.pulling",
    "PullStatistics": "headrace.client.pulling",
    "PullStatus": "headrace.client.pulling",
    "AsyncPushConsumer": "headrace.client.push",
    "PushOptions": "headrace.client.push_options",
    "PushStatistics": "headrace.client.push_options",
    "MessageQueue": "headrace.client.push_options",
    "ClientSettings": "headrace.client.settings",
    "JobStanding": "headrace.client.lag",
    "QueueProgress": "headrace.client.lag",
    "QueueRange": "headrace.client.lag",
    "AsyncTableReader": "headrace.client.tables",
    "AsyncTableWriter": "headrace.client.tables",
    "TableStatistics": "headrace.client.tables",
    "AsyncTransactionProducer": "headrace.client.transactions",
    "LocalTransactionState": "headrace.client.transactions",
    "Transaction": "headrace.client.transactions",
    "TransactionStatistics": "headrace.client.transactions",
    "Message": "headrace.protocol.messages",
    "StoredMessage": "headrace.protocol.messages",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        message = f"module 'headrace.client' has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(home), name)
