"""Config keys that the source and the sink share."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from headrace.connect import declare, key

__all__ = ["DATABASE_KEYS"]

DATABASE_KEYS = declare(
    key("database", Path, "The file of the database.", required=True, group="Connection"),
    key(
        "busy.timeout.ms",
        timedelta,
        "How long to wait while another process writes to the file.",
        default=timedelta(seconds=30),
        importance="low",
        group="Connection",
    ),
)
