"""Folders of whole files: CSV, JSON lines, Parquet; read as they come, written a batch each."""

from __future__ import annotations

from headrace.connect.connectors.directory.sink import DirectorySinkConnector, DirectorySinkTask
from headrace.connect.connectors.directory.source import (
    DirectorySourceConnector,
    DirectorySourceTask,
)

__all__ = [
    "DirectorySinkConnector",
    "DirectorySinkTask",
    "DirectorySourceConnector",
    "DirectorySourceTask",
]
