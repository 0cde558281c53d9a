"""Talk to a cluster: send, pull, consume in groups, look after topics.

Every class exists twice: with ``Async`` in its name for code on an event loop, and without for
code that waits.  Both work against ``headrace broker`` and against Apache RocketMQ 5.
"""

from __future__ import annotations

from headrace.client.admin import AsyncAdmin
from headrace.client.blocking import Admin, Client, GroupConsumer, Jobs, Producer, PullConsumer
from headrace.client.client import AsyncClient, ClientStatistics
from headrace.client.groups import AsyncGroupConsumer, GroupOptions, GroupStatistics
from headrace.client.jobs import AsyncJobs, JobsStatistics, StageTarget
from headrace.client.producer import AsyncProducer, ProducerStatistics, SendResult
from headrace.client.pulling import AsyncPullConsumer, PullResult, PullStatistics, PullStatus
from headrace.client.queues import MessageQueue
from headrace.client.settings import ClientSettings
from headrace.client.standings import JobStanding, QueueProgress, QueueRange
from headrace.protocol.messages import Message, StoredMessage

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncClient",
    "AsyncGroupConsumer",
    "AsyncJobs",
    "AsyncProducer",
    "AsyncPullConsumer",
    "Client",
    "ClientSettings",
    "ClientStatistics",
    "GroupConsumer",
    "GroupOptions",
    "GroupStatistics",
    "JobStanding",
    "Jobs",
    "JobsStatistics",
    "Message",
    "MessageQueue",
    "Producer",
    "ProducerStatistics",
    "PullConsumer",
    "PullResult",
    "PullStatistics",
    "PullStatus",
    "QueueProgress",
    "QueueRange",
    "SendResult",
    "StageTarget",
    "StoredMessage",
]
