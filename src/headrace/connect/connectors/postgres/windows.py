"""How far a table may be read: up to where no running transaction can still add rows.

A number from a sequence, or a time, is taken before its row is committed, so rows become visible
out of order: who remembers the highest number that he saw misses the rows below it that are
committed later.  So a window is closed first (its upper end is the highest value that is visible),
then whoever could still commit a row inside it is waited for, and only then it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.connect.connectors.postgres.catalog import quoted

if TYPE_CHECKING:
    from headrace.connect.connectors.postgres.connection import Connection
    from headrace.connect.connectors.sql import TableName

__all__ = ["Writers", "all_transactions", "writers_of"]

_DATABASE = "(SELECT oid FROM pg_database WHERE datname = current_database())"

# An INSERT locks its table before it takes the default of a column, and until it commits.
_WRITERS = f"""
SELECT virtualtransaction, pid FROM pg_locks
WHERE locktype = 'relation' AND database = {_DATABASE} AND pid IS DISTINCT FROM pg_backend_pid()
AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
"""
_OF_TABLE = (
    " AND relation IN (SELECT to_regclass(%s)::oid"
    " UNION SELECT relid::oid FROM pg_partition_tree(to_regclass(%s)))"
)
# now() is when a transaction began, whatever it has locked since; vacuums write no rows, nor do
# sources like this one, whose sessions have such names.
_ALL = f"""
SELECT l.virtualtransaction, l.pid FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'virtualxid' AND a.datid = {_DATABASE} AND l.pid <> pg_backend_pid()
AND a.backend_type IS DISTINCT FROM 'autovacuum worker' AND a.application_name NOT LIKE 'headrace %'
UNION SELECT '-1/' || transaction::text, NULL FROM pg_prepared_xacts
WHERE database = current_database()
"""
#: Stands before the number of a transaction that was prepared: no process runs it.
_PREPARED = "-1/"


@dataclass(slots=True)
class Writers:
    """Transactions that may still add rows to a window."""

    connection: Connection
    statement: str
    values: tuple[str, ...]
    #: Their names, and the processes that run them.
    running: dict[str, int | None]

    def gone(self) -> bool:
        """Look again; tell whether all of them have ended."""
        if not self.running:
            return True
        now = _running(self.connection, self.statement, self.values)
        # One of them may have been prepared meanwhile, under another name.
        self.running = {
            name: pid
            for name, pid in now.items()
            if name in self.running or name.startswith(_PREPARED)
        }
        return not self.running

    def __str__(self) -> str:
        pids = sorted(pid for pid in self.running.values() if pid is not None)
        prepared = len(self.running) - len(pids)
        words = [f"processes {', '.join(map(str, pids))}"] if pids else []
        words += [f"{prepared} prepared transactions"] if prepared else []
        return " and ".join(words) or "nobody"


def writers_of(connection: Connection, table: TableName | None) -> Writers:
    """Find who writes to a table right now; of a query, to any table of the database."""
    statement, values = _WRITERS, tuple[str, ...]()
    if table is not None:
        name = quoted(table)
        statement, values = _WRITERS + _OF_TABLE, (name, name)
    return Writers(connection, statement, values, _running(connection, statement, values))


def all_transactions(connection: Connection) -> Writers:
    """Find every transaction of the database that runs right now."""
    return Writers(connection, _ALL, (), _running(connection, _ALL, ()))


def _running(
    connection: Connection, statement: str, values: tuple[str, ...]
) -> dict[str, int | None]:
    return dict(connection.execute(statement, values or None).fetchall())
