"""Made-up rows: the same row at the same place, however often and in whatever pieces it is made."""

from __future__ import annotations

from headrace.connect.connectors.datagen.source import DatagenSourceConnector, DatagenSourceTask

__all__ = ["DatagenSourceConnector", "DatagenSourceTask"]
