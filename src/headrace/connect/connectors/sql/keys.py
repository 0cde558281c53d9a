"""Config keys that all SQL sinks share, by the names of Kafka Connect's JDBC sink."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from headrace.connect import Config, ConfigProblem, at_least, between, declare, key, one_of

SINK_KEYS = declare(
    key(
        "insert.mode",
        str,
        "How records become rows: insert adds a row for each, upsert replaces the row that has the"
        " same key, update changes rows that are there and adds none.",
        default="insert",
        valid=one_of("insert", "upsert", "update"),
        importance="high",
        group="Writing",
    ),
    key(
        "table.name.format",
        str,
        "The table of a topic; ${topic} stands for the topic's name, a dot parts schema and table.",
        default="${topic}",
        group="Mapping",
    ),
    key(
        "pk.mode",
        str,
        "What a row's primary key is made of: none, the record's key (record_key), fields of its"
        " value (record_value), or where it stands in its topic (coordinates).",
        default="none",
        valid=one_of("none", "record_key", "record_value", "coordinates", "kafka"),
        importance="high",
        group="Mapping",
        dependents=("pk.fields",),
    ),
    key(
        "pk.fields",
        list,
        "Columns of the primary key. With record_key: fields of the key, all of them where none is"
        " named, or the one name for a key that is a single value. With record_value: fields of the"
        " value. With coordinates: four names for topic, broker, queue and offset.",
        default=[],
        group="Mapping",
    ),
    key(
        "fields.include",
        list,
        "Fields of the value that become columns; all of them where none is named.",
        default=[],
        aliases=("fields.whitelist",),
        group="Mapping",
    ),
    key(
        "fields.exclude",
        list,
        "Fields of the value that are left out.",
        default=[],
        group="Mapping",
    ),
    key(
        "delete.enabled",
        bool,
        "Whether a record without a value deletes the row of its key; needs pk.mode=record_key.",
        default=False,
        group="Writing",
    ),
    key(
        "auto.create",
        bool,
        "Whether a missing table is created.",
        default=False,
        group="Tables",
    ),
    key(
        "auto.evolve",
        bool,
        "Whether missing columns are added to a table. Columns are never changed or dropped.",
        default=False,
        group="Tables",
    ),
    key(
        "exactly.once",
        bool,
        "Whether the offsets are kept in the database, in the transaction of the rows.",
        default=True,
        importance="high",
        group="Guarantee",
    ),
    key(
        "offsets.table",
        str,
        "The table that keeps the offsets.",
        default="headrace_connect_offsets",
        group="Guarantee",
    ),
    key(
        "offsets.name",
        str,
        "The name under which offsets are kept; the connector's name where none is given. Two"
        " clusters whose connectors share name and database need different ones.",
        group="Guarantee",
    ),
    key(
        "connection.attempts",
        int,
        "How often a transaction is tried again after a lost connection or a conflict.",
        default=5,
        valid=between(1, 100),
        group="Connection",
    ),
    key(
        "connection.backoff.ms",
        timedelta,
        "The pause before such a try; it doubles each time.",
        default=timedelta(seconds=0.2),
        valid=at_least(timedelta(0)),
        group="Connection",
    ),
)


def sink_problems(config: Config) -> Iterator[ConfigProblem]:
    """Name what contradicts itself in a sink's config."""
    mode, insert = config["pk.mode"], config["insert.mode"]
    fields = config["pk.fields"]
    if insert in {"upsert", "update"} and mode == "none":
        message = f"insert.mode={insert} needs a primary key: set pk.mode to another value."
        yield ConfigProblem("pk.mode", message)
    if config["delete.enabled"] and mode != "record_key":
        message = "delete.enabled=true needs pk.mode=record_key: deletes carry nothing but a key."
        yield ConfigProblem("delete.enabled", message)
    if mode == "record_value" and not fields:
        message = "pk.mode=record_value needs pk.fields: the fields of the value that are the key."
        yield ConfigProblem("pk.fields", message)
    if mode in {"coordinates", "kafka"} and len(fields) not in {0, 4}:
        message = "pk.fields must name four columns for topic, broker, queue and offset, or none."
        yield ConfigProblem("pk.fields", message)
    if mode == "none" and fields:
        message = "pk.fields says nothing while pk.mode=none."
        yield ConfigProblem("pk.fields", message)
