"""Slots and publications: what the server keeps for a reader of its log of changes."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.connect.connectors.postgres.catalog import quoted
from headrace.connect.connectors.postgres.pgoutput import lsn_number
from headrace.connect.connectors.sql import TableName
from headrace.errors import ConnectorConfigError, StateError

if TYPE_CHECKING:
    from headrace.connect.connectors.postgres.connection import Connection
    from headrace.connect.connectors.postgres.pgoutput import Lsn

__all__ = [
    "check_position",
    "check_server",
    "default_name",
    "ensure_publication",
    "free_slot",
    "slot_exists",
]

_LONGEST_NAME = 63


def default_name(connector: str) -> str:
    """Make the name of a slot out of a connector's.

    >>> default_name("Orders (EU)")
    'headrace_orders__eu_'
    """
    return re.sub(r"[^a-z0-9_]", "_", f"headrace_{connector.lower()}")[:_LONGEST_NAME]


def check_server(connection: Connection) -> None:
    """Refuse a server that keeps no log of changes that can be decoded.

    Raises
    ------
    ConnectorConfigError
        Saying which setting of the server to change.
    """
    row = connection.execute("SHOW wal_level").fetchone()
    if row is not None and row[0] != "logical":
        message = (
            f"The server's wal_level is {row[0]}, and mode=logical needs logical: set it in"
            " postgresql.conf, and restart the server."
        )
        raise ConnectorConfigError.of([("mode", message)])


def slot_exists(connection: Connection, name: str) -> bool:
    """Tell whether a slot is there."""
    found = connection.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", (name,))
    return found.fetchone() is not None


def free_slot(connection: Connection, name: str, wait: float = 10.0) -> None:
    """End the session of a predecessor that the server still thinks alive.

    Raises
    ------
    StateError
        Somebody else reads the slot.
    """
    deadline = time.monotonic() + wait
    while True:
        row = connection.execute(
            "SELECT s.active_pid, a.application_name FROM pg_replication_slots s"
            " LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid"
            " WHERE s.slot_name = %s AND s.active_pid IS NOT NULL",
            (name,),
        ).fetchone()
        if row is None:
            return
        if not str(row[1]).startswith("headrace ") or time.monotonic() > deadline:
            raise StateError(
                f"The replication slot {name} is being read by process {row[0]} of the server"
                f" ({row[1] or 'without a name'}).",
                hint="Stop that reader, or set slot.name to another name.",
            )
        connection.execute("SELECT pg_terminate_backend(%s)", (row[0],))
        time.sleep(0.02)


def ensure_publication(
    connection: Connection, name: str, tables: Sequence[TableName], *, create: bool
) -> None:
    """Make sure that a publication has all these tables.

    Raises
    ------
    ConnectorConfigError
        It has not, and may not be changed.
    """
    missing = _unpublished(connection, name, tables)
    if not missing:
        return
    if not create:
        message = (
            f"The publication {name} lacks {', '.join(map(str, missing))}, and"
            " publication.autocreate is false: add them, or let the connector do it."
        )
        raise ConnectorConfigError.of([("publication.name", message)])
    names = ", ".join(quoted(table).replace("%", "%%") for table in missing)
    identifier = '"' + name.replace('"', '""').replace("%", "%%") + '"'
    exists = connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (name,))
    if exists.fetchone() is None:
        # Rows of partitions count as their table's.
        options = "WITH (publish_via_partition_root = true)"
        connection.execute(f"CREATE PUBLICATION {identifier} FOR TABLE {names} {options}", ())
    else:
        connection.execute(f"ALTER PUBLICATION {identifier} ADD TABLE {names}", ())


def _unpublished(connection: Connection, name: str, tables: Sequence[TableName]) -> list[TableName]:
    rows = connection.execute(
        "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s", (name,)
    )
    published = {TableName(*row) for row in rows.fetchall()}
    return [table for table in tables if table not in published]


def check_position(connection: Connection, lsn: Lsn) -> None:
    """Refuse to go on behind the end of the server's log: it is another server's position.

    Raises
    ------
    StateError
        Saying what happened to the server.
    """
    row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    if row is not None and lsn_number(row[0]) < lsn:
        raise StateError(
            f"The committed position stands behind the end of the server's log ({row[0]}): the"
            " server was restored from a backup, or is another one.",
            hint="Stop the connector and reset its offsets: it then takes a snapshot.",
        )
