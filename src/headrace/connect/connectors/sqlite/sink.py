"""``sqlite-sink``: topics become tables of a file, exactly once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from headrace.connect import (
    Config,
    ConfigDeclaration,
    ConfigProblem,
    SinkConnector,
    SinkTask,
    declare,
    key,
    one_of,
)
from headrace.connect.connectors.sql import (
    SINK_KEYS,
    SqlDatabase,
    SqlSinkTask,
    alter_sink_offsets,
    sink_problems,
)
from headrace.connect.connectors.sqlite.database import SqliteDatabase
from headrace.connect.connectors.sqlite.keys import DATABASE_KEYS
from headrace.errors import ConnectorConfigError

if TYPE_CHECKING:
    from headrace.connect.records import Position

__all__ = ["SqliteSinkConnector", "SqliteSinkTask"]


class SqliteSinkTask(SqlSinkTask):
    """Writes rows and offsets to a file of SQLite in one transaction per batch."""

    def connect(self, config: Config, owner: str) -> SqlDatabase:
        """Open the file, or make it."""
        del owner
        return _opened(config)


def _opened(config: Config) -> SqliteDatabase:
    path = config["database"]
    if not path.parent.is_dir():
        message = f"The folder {path.parent} of the database {path} does not exist."
        raise ConnectorConfigError(message, hint="Make the folder, or correct the key database.")
    return SqliteDatabase(
        path,
        wait=config["busy.timeout.ms"].total_seconds(),
        journal=config["journal.mode"],
    )


class SqliteSinkConnector(SinkConnector):
    """Writes topics to tables of SQLite; see docs/connect-connectors.md."""

    version: ClassVar[str] = "1.0"
    task: ClassVar[type[SinkTask]] = SqliteSinkTask
    config: ClassVar[ConfigDeclaration] = (
        DATABASE_KEYS
        | SINK_KEYS
        | declare(
            key(
                "journal.mode",
                str,
                "The file's journal mode: with wal, others read while the sink writes.",
                default="wal",
                valid=one_of("wal", "delete", "truncate", "persist"),
                importance="low",
                group="Connection",
            )
        )
    )

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        """One file has one writer at a time, so more tasks would only wait for each other."""
        del max_tasks
        return [{}]

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Name keys that contradict each other."""
        return sink_problems(config)

    def alter_offsets(
        self, config: Config, offsets: Sequence[tuple[Position, Position | None]]
    ) -> bool:
        """Set the offsets that the database keeps."""
        if not config["exactly.once"]:
            return False
        database = _opened(config)
        # Asked of a connector that was made for this question alone, and has no context.
        name = config.texts.get("name") or self.context.connector
        try:
            alter_sink_offsets(database, config, name, offsets)
        finally:
            database.close()
        return True
