"""``postgres-source``: tables become topics, by queries or by logical replication."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
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
    at_least,
    declare,
    key,
    matching,
    one_of,
)
from headrace.connect.connectors.postgres.connection import (
    CONNECTION_KEYS,
    connect,
    connection_words,
    find_tables,
    outages_told,
    qualified,
)
from headrace.connect.connectors.postgres.logical import LogicalFeed
from headrace.connect.connectors.postgres.reading import IncrementalFeed
from headrace.connect.connectors.sharing import ShareWatch, dealt, dealt_to, is_pattern
from headrace.connect.connectors.sql import SOURCE_KEYS, TableName, source_problems
from headrace.errors import ConnectorConfigError, HeadraceError

# Config keys of the PostgreSQL source.

_WHERE = declare(
    key(
        "mode",
        str,
        "How changes are found: logical (from the server's log of changes: inserts, updates and"
        " deletes), incrementing (new rows, by a number that rises), timestamp (new and changed"
        " rows, by a time), timestamp+incrementing (by both), bulk (all rows, again and again).",
        required=True,
        valid=one_of("logical", "incrementing", "timestamp", "timestamp+incrementing", "bulk"),
        group="Mode",
    ),
    key(
        "tables",
        list,
        "Tables to read, as schema.table; * and ? stand for other letters; without a schema a table"
        " is in public.",
        default=[],
        importance="high",
        aliases=("table.whitelist", "table.include.list"),
        group="Tables",
    ),
    key(
        "tables.exclude",
        list,
        "Tables to leave out, written likewise.",
        default=[],
        aliases=("table.blacklist", "table.exclude.list"),
        group="Tables",
    ),
    key(
        "topic.format",
        str,
        "What follows the prefix: ${table} and ${schema} stand for the table's.",
        default="${table}",
        group="Topics",
    ),
    key(
        "tables.poll.interval.ms",
        timedelta,
        "How often to look for tables that came or went.",
        default=timedelta(seconds=60),
        valid=at_least(timedelta(seconds=1)),
        aliases=("table.poll.interval.ms",),
        group="Tables",
    ),
    key(
        "numeric.mapping",
        str,
        "What numeric columns become: precise (decimals where the column says its digits behind the"
        " point, else text), string, or double.",
        default="precise",
        valid=one_of("precise", "string", "double"),
        group="Types",
    ),
    key(
        "timestamp.mapping",
        str,
        "What timestamps become: connect (Connect's type, in milliseconds once a converter has"
        " written it), micros (a number since 1970), or string (which knows infinity too).",
        default="connect",
        valid=one_of("connect", "micros", "string"),
        group="Types",
    ),
)
_QUERIES = declare(
    key(
        "incrementing.column.name",
        str,
        "The column that rises with each new row.",
        group="Mode",
    ),
    key(
        "timestamp.column.name",
        list,
        "The column that is set whenever a row changes; of several, the first that is not null.",
        default=[],
        group="Mode",
    ),
    key(
        "timestamp.delay.ms",
        timedelta,
        "How far to stay behind the present: for times that applications set by clocks of their"
        " own.",
        default=timedelta(0),
        aliases=("timestamp.delay.interval.ms",),
        group="Mode",
    ),
    key(
        "transactions.wait",
        bool,
        "Whether to wait for transactions that may still commit rows below those that are there"
        " already; without, such rows are lost.",
        default=True,
        group="Mode",
    ),
)
_NAME = matching(r"[a-z0-9_]{1,63}", "up to 63 lower-case letters, digits and _")
_LOGICAL = declare(
    key(
        "slot.name",
        str,
        "The replication slot; made from the connector's name where none is given.",
        valid=_NAME,
        group="Logical replication",
    ),
    key(
        "publication.name",
        str,
        "The publication; named like the slot where none is given.",
        group="Logical replication",
    ),
    key(
        "publication.autocreate",
        bool,
        "Whether to create the publication, and to add tables to it.",
        default=True,
        group="Logical replication",
    ),
    key(
        "slot.drop.on.stop",
        bool,
        "Whether the slot goes when the task stops: changes until the next start are then lost,"
        " and the next start takes a snapshot.",
        default=False,
        group="Logical replication",
    ),
    key(
        "snapshot.mode",
        str,
        "Whether the rows that are there come first: initial (once), or never.",
        default="initial",
        valid=one_of("initial", "never"),
        group="Logical replication",
    ),
    key(
        "output.format",
        str,
        "What a value is: row (the row after the change; nothing for a delete), or envelope (before,"
        " after, op, source and ts_ms, as Debezium has it).",
        default="row",
        valid=one_of("row", "envelope"),
        group="Logical replication",
    ),
    key(
        "tombstones.on.delete",
        bool,
        "Whether a delete's envelope is followed by a record without a value.",
        default=True,
        group="Logical replication",
    ),
    key(
        "unchanged.values",
        str,
        "What stands for a large value that an update left alone, which the server does not send:"
        " read (the value that the row has now), null, or fail.",
        default="read",
        valid=one_of("read", "null", "fail"),
        group="Logical replication",
    ),
    key(
        "heartbeat.interval.ms",
        timedelta,
        "How often the server hears how far it may forget its log.",
        default=timedelta(seconds=5),
        valid=at_least(timedelta(milliseconds=10)),
        group="Logical replication",
    ),
)

_SHARE = "task.tables"


class RecordFeed(Protocol):
    """Where a task's records come from."""

    def poll(self) -> Sequence[SourceRecord] | SourceBatch | None:
        """Return what is new."""

    def commit(self) -> None:
        """Learn that records were committed."""

    def close(self) -> None:
        """Let go of everything."""


class PostgresSourceTask(SourceTask):
    """Reads its share of the tables."""

    _feed: RecordFeed | None = None

    def start(self, config: Config) -> None:
        """Connect, and go on where the last life was committed."""
        tables = [TableName(*names) for names in dealt_to(config, _SHARE)]
        kind = LogicalFeed if config["mode"] == "logical" else IncrementalFeed
        with outages_told():
            self._feed = kind(config, tables, self.context)

    def poll(self) -> Sequence[SourceRecord] | SourceBatch | None:
        """Return what is new."""
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
    config: ClassVar[ConfigDeclaration] = (
        CONNECTION_KEYS | SOURCE_KEYS | _WHERE | _QUERIES | _LOGICAL
    )
    task: ClassVar[type[SourceTask]] = PostgresSourceTask
    exactly_once: ClassVar[bool | None] = True

    _watch: ShareWatch | None = None

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Name keys that contradict each other."""
        yield from source_problems(config)
        if config["mode"] == "logical" and config["query"]:
            message = "mode=logical reads tables: leave query out, name tables."
            yield ConfigProblem("query", message)

    def start(self, config: Config) -> None:
        """Watch for tables that come or go, where tables are named by patterns."""
        self._config = config
        if any(is_pattern(name) for name in config["tables"]):
            self._watch = ShareWatch(
                self.context,
                self._tables,
                config["tables.poll.interval.ms"],
                what="tables",
                passing=(HeadraceError, psycopg.Error),
            )
            self._watch.start()

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        """Share the tables out among tasks; a query, or one slot, has a task to itself."""
        if self._config["query"]:
            return [{}]
        return dealt(_SHARE, self._tables(), 1 if self._config["mode"] == "logical" else max_tasks)

    def stop(self) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.stop()

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
