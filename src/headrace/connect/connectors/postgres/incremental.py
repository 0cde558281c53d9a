"""A task that reads tables by queries."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import psycopg

from headrace.connect.connectors.postgres.catalog import TableInfo, table_info
from headrace.connect.connectors.postgres.columns import TypeBook, TypeOptions
from headrace.connect.connectors.postgres.connection import (
    connect,
    connection_words,
    outages_told,
)
from headrace.connect.connectors.postgres.reading import Reader, ReadOptions, Source

if TYPE_CHECKING:
    from headrace.connect import Config, SourceRecord, SourceTaskContext
    from headrace.connect.connectors.postgres.connection import Connection
    from headrace.connect.connectors.sql import TableName
    from headrace.connect.records import Position

__all__ = ["IncrementalFeed", "read_options", "topic_of"]

_LONGEST_WAIT = 0.5


class IncrementalFeed:
    """Reads its share of the tables, one after the other.

    Parameters
    ----------
    config
        The task's config.
    tables
        Its share; nothing when it reads a query.
    context
        The task's context.
    """

    def __init__(
        self, config: Config, tables: Sequence[TableName], context: SourceTaskContext
    ) -> None:
        self._config = config
        self._tables = tables
        self._context = context
        self._limit: int = config["batch.max.rows"]
        #: Where records that were given end, which a new connection goes on from.
        self._given: dict[str, Position] = {}
        self._connection: Connection | None = None
        self._readers: list[Reader] = []
        self._open()

    def poll(self) -> Sequence[SourceRecord] | None:
        """Give what is new in one of the tables."""
        with outages_told():
            if self._connection is None:
                self._open()
            try:
                found = self._read()
            except psycopg.OperationalError:
                self.close()
                raise
        if found:
            self._given[found[0].topic] = found[-1].offset
        return found

    def commit(self) -> None:
        """Do nothing: the database need not know what was read."""

    def close(self) -> None:
        """End the connection."""
        for reader in self._readers:
            reader.close()
        self._readers = []
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _read(self) -> list[SourceRecord] | None:
        # The one that streams has the connection; the others wait.
        now = time.monotonic()
        streaming = [one for one in self._readers if one.streaming]
        for reader in streaming or self._readers:
            if reader.streaming or reader.due <= now:
                found = reader.read(self._limit)
                if found:
                    self._readers.remove(reader)
                    self._readers.append(reader)
                    return found
        due = min((one.due for one in self._readers), default=now + _LONGEST_WAIT)
        self._context.stopping.wait(max(0.0, min(_LONGEST_WAIT, due - time.monotonic())))
        return None

    def _open(self) -> None:
        name = f"headrace {self._context.connector}"
        connection = connect(connection_words(self._config, name))
        options = TypeOptions(self._config["numeric.mapping"], self._config["timestamp.mapping"])
        types = TypeBook(connection, options)
        try:
            self._readers = [
                self._reader(connection, source, types) for source in self._sources(connection)
            ]
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def _reader(self, connection: Connection, source: Source, types: TypeBook) -> Reader:
        position = self._given.get(source.topic) or self._context.offsets.get(source.partition)
        options = read_options(self._config)
        return Reader(connection, source, options, types, position, self._context.logger)

    def _sources(self, connection: Connection) -> list[Source]:
        config = self._config
        if query := config["query"]:
            topic = config["topic.prefix"]
            text = query.rstrip().rstrip(";")
            nothing = TableInfo((), frozenset())
            return [Source({"query": topic}, topic, None, text, nothing)]
        return [self._source(connection, table) for table in self._tables]

    def _source(self, connection: Connection, table: TableName) -> Source:
        topic = topic_of(self._config, table)
        return Source({"table": str(table)}, topic, table, "", table_info(connection, table))


def topic_of(config: Config, table: TableName) -> str:
    """Give the topic of a table."""
    text: str = config["topic.format"]
    named = text.replace("${table}", table.name).replace("${schema}", table.schema or "")
    return f"{config['topic.prefix']}{named}"


def read_options(config: Config) -> ReadOptions:
    """Say how tables are read."""
    mode = config["mode"]
    return ReadOptions(
        mode=mode,
        incrementing=config["incrementing.column.name"] if "incrementing" in mode else None,
        timestamps=tuple(config["timestamp.column.name"]) if "timestamp" in mode else (),
        interval=config["poll.interval.ms"].total_seconds(),
        delay=config["timestamp.delay.ms"].total_seconds(),
        wait=config["transactions.wait"],
        keys=tuple(config["key.fields"]),
    )
