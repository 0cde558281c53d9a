"""S3-compatible storage: objects whose rows become records, and records written as objects."""

from __future__ import annotations

from headrace.connect.connectors.s3.sink import S3SinkConnector, S3SinkTask
from headrace.connect.connectors.s3.source import S3SourceConnector, S3SourceTask

__all__ = ["S3SinkConnector", "S3SinkTask", "S3SourceConnector", "S3SourceTask"]
