"""Kafka: a source and a sink, both exactly once."""

from __future__ import annotations

from headrace.connect.connectors.kafka.sink import KafkaSinkConnector, KafkaSinkTask
from headrace.connect.connectors.kafka.source import KafkaSourceConnector, KafkaSourceTask

__all__ = ["KafkaSinkConnector", "KafkaSinkTask", "KafkaSourceConnector", "KafkaSourceTask"]
