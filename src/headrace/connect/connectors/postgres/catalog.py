"""The tables of a database: which there are, their columns and keys."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from headrace.connect.connectors.sql import TableName

if TYPE_CHECKING:
    from headrace.connect.connectors.postgres.connection import Connection


_TABLES = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = ANY(%s) AND NOT c.relispartition AND n.nspname NOT LIKE 'pg\\_%%'
AND n.nspname <> 'information_schema' ORDER BY 1, 2
"""
_KEY = """
SELECT a.attname FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k(attnum, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = to_regclass(%s) AND i.indisprimary ORDER BY k.place
"""
_REQUIRED = """
SELECT attname FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped AND attnotnull
"""


class TableInfo(NamedTuple):
    """What the catalog says of a table that a query's result does not."""

    keys: tuple[str, ...]
    required: frozenset[str]


def is_pattern(name: str) -> bool:
    """Whether a name stands for all tables that match it.

    >>> is_pattern("public.orders_*"), is_pattern("public.orders")
    (True, False)
    """
    return any(letter in name for letter in "*?[")


def qualified(name: str) -> TableName:
    """Read a table's name, or a pattern; without a schema it is in ``public``.

    >>> qualified("orders")
    TableName(schema='public', name='orders')
    """
    schema, dot, rest = name.partition(".")
    return TableName(schema, rest) if dot else TableName("public", name)


def quoted(table: TableName) -> str:
    """Write the name of a table for a statement."""
    parts = [part.replace('"', '""') for part in table if part is not None]
    return ".".join(f'"{part}"' for part in parts)


def find_tables(
    connection: Connection,
    include: Sequence[str],
    exclude: Sequence[str],
    *,
    views: bool,
) -> list[TableName]:
    """Return the tables that match one of the names or patterns, and none of the others."""
    kinds = ["r", "p", *(["v", "m", "f"] if views else [])]
    wanted = [str(qualified(name)) for name in include]
    unwanted = [str(qualified(name)) for name in exclude]
    return [
        TableName(*row)
        for row in connection.execute(_TABLES, (kinds,))
        if any(fnmatchcase(".".join(row), name) for name in wanted)
        and not any(fnmatchcase(".".join(row), name) for name in unwanted)
    ]


def table_info(connection: Connection, table: TableName) -> TableInfo:
    """Look up a table's primary key, and its columns that are never null."""
    name = (quoted(table),)
    keys = tuple(str(row[0]) for row in connection.execute(_KEY, name))
    required = frozenset(str(row[0]) for row in connection.execute(_REQUIRED, name))
    return TableInfo(keys, required)
