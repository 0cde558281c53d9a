"""``postgres-sink``: topics become tables, exactly once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from headrace.connect import (
    Config,
    ConfigDeclaration,
    ConfigProblem,
    SinkConnector,
    SinkTask,
)
from headrace.connect.connectors.postgres.connection import (
    CONNECTION_KEYS,
    connection_words,
    outages_told,
)
from headrace.connect.connectors.postgres.database import PostgresDatabase
from headrace.connect.connectors.sql import (
    SINK_KEYS,
    SqlDatabase,
    SqlSinkTask,
    alter_sink_offsets,
    sink_problems,
)

if TYPE_CHECKING:
    from headrace.connect.records import Position


class PostgresSinkTask(SqlSinkTask):
    """Writes rows and offsets to PostgreSQL in one transaction per batch."""

    def connect(self, config: Config, owner: str) -> SqlDatabase:
        """Open a connection that ends by itself when its task hangs inside a transaction."""
        # A process that stands still would keep its locks for ever.
        more = {"idle_in_transaction_session_timeout": "60s", "lock_timeout": "30s"}
        with outages_told():
            return PostgresDatabase(connection_words(config, owner, **more))


class PostgresSinkConnector(SinkConnector):
    """Writes topics to tables of PostgreSQL."""

    version: ClassVar[str] = "1.0"
    config: ClassVar[ConfigDeclaration] = CONNECTION_KEYS | SINK_KEYS
    task: ClassVar[type[SinkTask]] = PostgresSinkTask

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Name keys that contradict each other."""
        return sink_problems(config)

    def alter_offsets(
        self, config: Config, offsets: Sequence[tuple[Position, Position | None]]
    ) -> bool:
        """Set the offsets that the database keeps."""
        if not config["exactly.once"]:
            return False
        database = PostgresDatabase(connection_words(config, "headrace-offsets"))
        try:
            alter_sink_offsets(database, config, self.context.connector, offsets)
        finally:
            database.close()
        return True
