"""Lines of files: a source that follows them as they grow and rotate, and a sink that appends."""

from __future__ import annotations

from headrace.connect.connectors.file.sink import FileSinkConnector, FileSinkTask
from headrace.connect.connectors.file.source import FileSourceConnector, FileSourceTask

__all__ = ["FileSinkConnector", "FileSinkTask", "FileSourceConnector", "FileSourceTask"]
