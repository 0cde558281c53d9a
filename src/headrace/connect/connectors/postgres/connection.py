"""How connectors reach PostgreSQL: config keys, and connections that read and write plainly."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypeAlias

import psycopg
from psycopg import conninfo

from headrace.connect import Config, Secret, at_least, declare, key
from headrace.connect.connectors.sql import TableName
from headrace.errors import ConnectionFailedError, ConnectorConfigError

# The tables of a database: which there are, their columns and keys.

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


def quoted_name(name: str) -> str:
    """Write the name of a column for a statement that has values too."""
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


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


Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"

CONNECTION_KEYS = declare(
    key(
        "connection.url",
        str,
        "Where the database is: postgresql://host:port/database, libpq's words (host=... port=..."
        " dbname=...), or the same URL with jdbc: before it.",
        required=True,
        group="Connection",
    ),
    key("connection.user", str, "Whom to log in as.", group="Connection", importance="high"),
    key("connection.password", Secret, "The password.", group="Connection", importance="high"),
    key(
        "connection.timeout.ms",
        timedelta,
        "How long to wait for a connection.",
        default=timedelta(seconds=10),
        valid=at_least(timedelta(seconds=1)),
        group="Connection",
    ),
)

# Texts that do not depend on the server's own settings.
_SETTINGS = {
    "timezone": "UTC",
    "datestyle": "ISO, YMD",
    "intervalstyle": "iso_8601",
    "extra_float_digits": "1",
    "client_min_messages": "warning",
    "bytea_output": "hex",
}


def connection_words(config: Config, name: str, **more: str) -> str:
    """Write the config as libpq's words; ``name`` is what the server shows of the session."""
    url = config["connection.url"].removeprefix("jdbc:")
    words = {
        "application_name": name,
        "connect_timeout": str(round(config["connection.timeout.ms"].total_seconds())),
        "keepalives_idle": "30",
        "tcp_user_timeout": "30000",
    }
    if user := config["connection.user"]:
        words["user"] = user
    if password := config["connection.password"]:
        words["password"] = password.reveal()
    try:
        given = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        message = f"connection.url is none that libpq understands: {str(error).strip()}"
        raise ConnectorConfigError.of([("connection.url", message)]) from None
    settings = " ".join(
        f"-c {setting}={value.replace(' ', '')}" for setting, value in (_SETTINGS | more).items()
    )
    words["options"] = f"{given.get('options') or ''} {settings}".strip()
    # What the URL says itself counts, apart from the name.
    chosen = {one: word for one, word in words.items() if one not in given}
    return conninfo.make_conninfo(
        url, **{**chosen, "application_name": name, "options": words["options"]}
    )


# Shut down, not yet up, idle for too long; a standby where the primary was.
_SHUTDOWNS = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25006"})
#: Why a server refuses whoever it would take at another time; it gives no state with that.
_REFUSALS = re.compile(
    r"FATAL:\s+(?!the database system is|sorry, too many|remaining connection slots|terminating)"
)


def is_outage(error: BaseException) -> bool:
    """Return whether an error passes by itself: the server is away, starts, stops, or has no room.

    >>> is_outage(psycopg.OperationalError("connection refused"))
    True
    >>> is_outage(psycopg.OperationalError('FATAL:  password authentication failed for "u"'))
    False
    """
    if not isinstance(error, psycopg.OperationalError):
        return False
    if error.sqlstate is None:
        return _REFUSALS.search(str(error)) is None
    return error.sqlstate in _SHUTDOWNS or error.sqlstate.startswith(("08", "53"))


@contextmanager
def outages_told() -> Iterator[None]:
    """Raise what passes by itself as an error after which the same call is made again."""
    try:
        yield
    except psycopg.OperationalError as error:
        if not is_outage(error):
            raise
        raise ConnectionFailedError(
            f"PostgreSQL is away: {str(error).strip()}",
            hint="Check connection.url, the network and the server; it is tried again.",
        ) from error


def connect(words: str) -> Connection:
    """Open a connection on which each statement commits unless a transaction is begun."""
    return psycopg.connect(words, autocommit=True)
