"""Whole files in folders and buckets: their rows become records, and records become files."""

from __future__ import annotations

from headrace.connect.connectors.storage.sink import FilesSinkConnector
from headrace.connect.connectors.storage.source import FilesSourceConnector

__all__ = ["FilesSinkConnector", "FilesSourceConnector"]
