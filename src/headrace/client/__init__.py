"""Talk to a cluster: send, pull, consume in groups, look after topics.

Every class exists twice: with ``Async`` in its name for code on an event loop, and without for
code that waits.  Both work against ``headrace broker`` and against Apache RocketMQ 5.
"""

from __future__ import annotations

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
from headrace.client.deliveries import Delivery
from headrace.client.groups import AsyncGroupConsumer, GroupOptions, GroupStatistics
from headrace.client.jobs import AsyncJobs, JobsStatistics, StageTarget
from headrace.client.lag import GroupLag, QueueLag
from headrace.client.outcomes import DEAD_LETTER, Outcome, Retry
from headrace.client.producer import AsyncProducer, ProducerStatistics, SendResult
from headrace.client.pulling import AsyncPullConsumer, PullResult, PullStatistics, PullStatus
from headrace.client.push import AsyncPushConsumer
from headrace.client.push_options import PushOptions, PushStatistics
from headrace.client.queues import MessageQueue
from headrace.client.settings import ClientSettings
from headrace.client.standings import JobStanding, QueueProgress, QueueRange
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
