"""What SQL sources share: config keys of tables and queries that are read again and again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from headrace.connect import Config, ConfigProblem, at_least, between, declare, key

SOURCE_KEYS = declare(
    key("query", str, "A SELECT to read in place of tables.", group="Tables"),
    key(
        "topic.prefix",
        str,
        "What stands before a table's name in its topic; the whole topic of a query.",
        default="",
        importance="high",
        group="Topics",
    ),
    key(
        "key.fields",
        list,
        "Columns that become the record's key; the primary key where none is named.",
        default=[],
        group="Topics",
    ),
    key(
        "batch.max.rows",
        int,
        "Most records of one poll.",
        default=2000,
        valid=between(1, 100_000),
        group="Mode",
    ),
    key(
        "poll.interval.ms",
        timedelta,
        "The pause between two queries of a table that had nothing new; between two loads in mode"
        " bulk.",
        default=timedelta(seconds=1),
        valid=at_least(timedelta(0)),
        group="Mode",
    ),
)


def source_problems(config: Config) -> Iterator[ConfigProblem]:
    """Name what contradicts itself in a source's config."""
    mode = config["mode"]
    if bool(config["query"]) == bool(config["tables"]):
        yield ConfigProblem("tables", "Name either tables or a query.")
    if config["query"] and not config["topic.prefix"]:
        message = "A query's records go to the topic that topic.prefix names: it is missing."
        yield ConfigProblem("topic.prefix", message)
    for name in ("incrementing.column.name", "timestamp.column.name"):
        if name.partition(".")[0] in mode and not config[name]:
            yield ConfigProblem(name, f"mode={mode} needs {name}.")
