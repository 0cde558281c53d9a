"""RocketMQ: another cluster, both ways."""

from __future__ import annotations

from headrace.connect.connectors.rocketmq.sink import RocketMQSinkConnector, RocketMQSinkTask
from headrace.connect.connectors.rocketmq.source import RocketMQSourceConnector, RocketMQSourceTask

__all__ = [
    "RocketMQSinkConnector",
    "RocketMQSinkTask",
    "RocketMQSourceConnector",
    "RocketMQSourceTask",
]
