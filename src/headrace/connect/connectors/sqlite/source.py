"""``sqlite-source``: new and changed rows of tables."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from headrace.connect import (
    Config,
    ConfigDeclaration,
    ConfigProblem,
    SourceConnector,
    SourceRecord,
    SourceTask,
    declare,
    key,
    one_of,
)
from headrace.connect.connectors.sharing import TaskShare, is_pattern
from headrace.connect.connectors.sql import SOURCE_KEYS, source_problems
from headrace.connect.connectors.sqlite._tables import NewRowReader, table_names
from headrace.errors import ConnectorConfigError

# Config keys that the source and the sink share.

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


class SqliteSourceTask(SourceTask):
    """Reads its share of the tables, each in turn."""

    def start(self, config: Config) -> None:
        """Open the file."""
        self._config = config
        self._connection = _opened(config)
        self._share = TaskShare.of(config)
        self._interval = config["poll.interval.ms"].total_seconds()
        self._readers: dict[str, NewRowReader] = {}
        self._looked = float("-inf")

    def poll(self) -> Sequence[SourceRecord] | None:
        """Return the next rows of the table whose turn it is."""
        self._look()
        now = time.monotonic()
        for reader in sorted(self._readers.values(), key=lambda one: one.due):
            if reader.due > now:
                break
            if records := reader.read():
                reader.due = now
                return records
            reader.due = time.monotonic() + self._interval
        due = min((one.due for one in self._readers.values()), default=now + self._interval)
        self.context.stopping.wait(max(0.0, min(1.0, due - time.monotonic())))
        return None

    def stop(self) -> None:
        """Close the file."""
        if connection := getattr(self, "_connection", None):
            connection.close()

    def _look(self) -> None:
        """Find tables that are new."""
        if time.monotonic() - self._looked < self._interval:
            return
        self._looked = time.monotonic()
        query = self._config["query"]
        names = [""] if query else table_names(self._connection, self._config["tables"])
        for name in names:
            if (query or self._share.has(name)) and name not in self._readers:
                self._readers[name] = NewRowReader(
                    self._connection, name, self._config, self.context.offsets
                )


def _opened(config: Config) -> sqlite3.Connection:
    path: Path = config["database"]
    if not path.is_file():
        message = f"The database {path} does not exist."
        raise ConnectorConfigError(message, hint="Correct the key database.")
    return sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode=ro",
        uri=True,
        timeout=config["busy.timeout.ms"].total_seconds(),
        isolation_level=None,
        check_same_thread=False,
    )


class SqliteSourceConnector(SourceConnector):
    """Reads new and changed rows of SQLite's tables."""

    version = "1.0"
    task = SqliteSourceTask
    exactly_once = True
    config: ClassVar[ConfigDeclaration] = (
        DATABASE_KEYS
        | SOURCE_KEYS
        | declare(
            key(
                "mode",
                str,
                "Which rows are new: those with a higher number (incrementing), those with a later "
                "time (timestamp), or all, again and again (bulk).",
                default="incrementing",
                valid=one_of("incrementing", "timestamp", "bulk"),
                importance="high",
            ),
            key(
                "tables",
                list,
                "Tables and views to read; * and ? stand for other letters, and find tables that come "
                "later.",
                default=[],
                importance="high",
            ),
            key(
                "incrementing.column.name",
                str,
                "The column that rises with each new row; rowid is there in every ordinary table.",
                default="rowid",
            ),
            key(
                "timestamp.column.name",
                str,
                "The column that is set whenever a row changes, and sorts as time does.",
            ),
            key(
                "schemas",
                str,
                "Whether rows have the schema that their columns were declared with, or none.",
                default="none",
                valid=one_of("none", "declared"),
            ),
        )
    )

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        """Share the tables out by their names."""
        config = self.context.config
        several = any(map(is_pattern, config["tables"])) or len(config["tables"]) > 1
        return TaskShare.configs(max_tasks if several else 1)

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Name what does not fit together."""
        yield from source_problems(config)
        if config["query"] and config["schemas"] == "declared":
            yield ConfigProblem("schemas", "schemas=declared needs tables: a query declares none.")
