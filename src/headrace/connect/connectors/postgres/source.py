"""``postgres-source``: tables become topics, by queries or by logical replication."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Protocol

import psycopg

from headrace.connect import (
    Config,
    ConfigDeclaration,
    ConfigProblem,
    SourceBatch,
    SourceConnector,
    SourceRecord,
    SourceTask,
)
from headrace.connect.connectors.postgres.catalog import find_tables, is_pattern, qualified
from headrace.connect.connectors.postgres.connection import (
    connect,
    connection_words,
    outages_told,
)
from headrace.connect.connectors.postgres.incremental import IncrementalFeed
from headrace.connect.connectors.postgres.logical import LogicalFeed
from headrace.connect.connectors.postgres.source_keys import SOURCE_KEYS, source_problems
from headrace.connect.connectors.sql import TableName
from headrace.errors import ConnectionFailedError, ConnectorConfigError
from headrace.watched import watched_thread

__all__ = ["PostgresSourceConnector", "PostgresSourceTask"]

_SHARE = "task.tables"


class Feed(Protocol):
    """Where a task's records come from."""

    def poll(self) -> Sequence[SourceRecord] | SourceBatch | None:
        """Give what is new."""

    def commit(self) -> None:
        """Learn that records were committed."""

    def close(self) -> None:
        """Let go of everything."""


class PostgresSourceTask(SourceTask):
    """Reads its share of the tables."""

    _feed: Feed | None = None

    def start(self, config: Config) -> None:
        """Connect, and go on where the last life was committed."""
        tables = [TableName(*names) for names in json.loads(config.texts.get(_SHARE, "[]"))]
        kind = LogicalFeed if config["mode"] == "logical" else IncrementalFeed
        with outages_told():
            self._feed = kind(config, tables, self.context)

    def poll(self) -> Sequence[SourceRecord] | SourceBatch | None:
        """Give what is new."""
        assert self._feed is not None
        return self._feed.poll()

    def commit(self) -> None:
        """Let the server forget what is committed."""
        assert self._feed is not None
        self._feed.commit()

    def stop(self) -> None:
        """End the connections."""
        if self._feed is not None:
            self._feed.close()


class PostgresSourceConnector(SourceConnector):
    """Brings tables of PostgreSQL into topics."""

    version: ClassVar[str] = "1.0"
    config: ClassVar[ConfigDeclaration] = SOURCE_KEYS
    task: ClassVar[type[SourceTask]] = PostgresSourceTask
    exactly_once: ClassVar[bool | None] = True

    _watching: threading.Thread | None = None

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Name keys that contradict each other."""
        return source_problems(config)

    def start(self, config: Config) -> None:
        """Watch for tables that come or go, where tables are named by patterns."""
        self._config = config
        if any(is_pattern(name) for name in config["tables"]):
            self._watching = watched_thread(self._watch, name="tables", on_failure=self._fail)
            self._watching.start()

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        """Share the tables out among tasks; a query, or one slot, has a task to itself."""
        if self._config["query"]:
            return [{}]
        tables = self._tables()
        if not tables:
            return []
        count = 1 if self._config["mode"] == "logical" else min(max_tasks, len(tables))
        return [{_SHARE: json.dumps(tables[number::count])} for number in range(count)]

    def stop(self) -> None:
        """Stop watching."""
        self.context.stopping.set()
        if self._watching is not None:
            self._watching.join()

    def _tables(self) -> list[TableName]:
        config = self._config
        names = config["tables"]
        with (
            outages_told(),
            connect(connection_words(config, "headrace-tables")) as connection,
        ):
            views = config["mode"] != "logical"
            found = find_tables(connection, names, config["tables.exclude"], views=views)
        missing = [one for one in names if not is_pattern(one) and qualified(one) not in found]
        if missing and not config["tables.exclude"]:
            message = f"PostgreSQL has no table {', '.join(missing)} that this user can see."
            raise ConnectorConfigError.of([("tables", message)])
        return found

    def _fail(self, error: BaseException) -> None:
        self.context.fail(f"tables are watched no more: {type(error).__name__}: {error}")

    def _watch(self) -> None:
        pause = self._config["tables.poll.interval.ms"].total_seconds()
        known: list[TableName] | None = None
        while not self.context.stopping.wait(0 if known is None else pause):
            try:
                found = self._tables()
            except (psycopg.Error, ConnectionFailedError, ConnectorConfigError) as error:
                self.context.logger.warning("tables could not be listed: %s", error)
                found = known or []
            if known is not None and found != known:
                self.context.request_task_reconfiguration()
            known = found
