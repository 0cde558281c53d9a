"""Whole files in folders and buckets: their rows become records, and records become files."""

from __future__ import annotations

from headrace.connect.connectors.storage.sink import DirectorySinkConnector, S3SinkConnector
from headrace.connect.connectors.storage.source import DirectorySourceConnector, S3SourceConnector

__all__ = [
    "DirectorySinkConnector",
    "DirectorySourceConnector",
    "S3SinkConnector",
    "S3SourceConnector",
]
