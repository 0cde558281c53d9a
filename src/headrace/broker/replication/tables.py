"""The tables that a follower takes over from its primary, beside the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.protocol.groups import SubscriptionGroupConfig
from headrace.protocol.replication import TableRow, Tables
from headrace.protocol.routes import MappingDetail, TopicConfig

if TYPE_CHECKING:
    from headrace.broker.core import Core

__all__ = ["TABLES", "Table", "Versions", "changed", "own_stamp", "stamp", "take_over"]

Versions = dict[str, int]
"""Version of each table, by name."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table: how to read it here, and how to replace it there."""

    version: Callable[[Core], int]
    read: Callable[[Core], object]
    #: Type of what is read.
    kind: Any
    replace: Callable[[Core, Any], None]


def _topics(core: Core) -> list[TopicConfig]:
    system = set(core.topics.system)
    return [config for config in core.topics.configs() if config.topic_name not in system]


def _replace_topics(core: Core, configs: list[TopicConfig]) -> None:
    core.topics.replace(configs)


def _replace_groups(core: Core, configs: list[SubscriptionGroupConfig]) -> None:
    core.groups.replace(configs)


def _replace_offsets(core: Core, table: dict[str, dict[str, dict[int, int]]]) -> None:
    core.offsets.replace(table)


TABLES: dict[str, Table] = {
    # Mappings first: a topic without its mapping would be read by the wrong numbers.
    "static_topics": Table(
        lambda core: core.static_topics.version,
        lambda core: list(core.static_topics.details().values()),
        list[MappingDetail],
        lambda core, details: core.static_topics.replace(details),
    ),
    "topics": Table(lambda core: core.topics.version, _topics, list[TopicConfig], _replace_topics),
    "groups": Table(
        lambda core: core.groups.version,
        lambda core: core.groups.configs(),
        list[SubscriptionGroupConfig],
        _replace_groups,
    ),
    "offsets": Table(
        lambda core: core.offsets.version,
        lambda core: core.offsets.table(),
        dict[str, dict[str, dict[int, int]]],
        _replace_offsets,
    ),
}
"""All tables, by name; they are taken over in this order."""


def stamp(versions: Versions, started: int) -> str:
    """Name the state of the tables that messages cannot do without."""
    return f"{started}-{versions.get('topics')}-{versions.get('static_topics')}"


def own_stamp(core: Core) -> str:
    """Name the state of this broker's tables."""
    return stamp({name: table.version(core) for name, table in TABLES.items()}, core.started)


def changed(core: Core, started: int, have: Versions) -> Tables:
    """Give the tables whose version is another than the follower's."""
    if started != core.started:
        have = {}
    rows = {
        name: TableRow(version, msgspec.Raw(msgspec.json.encode(table.read(core))))
        for name, table in TABLES.items()
        if (version := table.version(core)) != have.get(name)
    }
    return Tables(started=core.started, tables=rows)


def take_over(core: Core, tables: Tables) -> Versions:
    """Replace the tables that came; their versions at the primary."""
    for name, table in TABLES.items():
        row = tables.tables.get(name)
        if row is not None:
            table.replace(core, msgspec.json.decode(row.content, type=table.kind))
    return {name: row.version for name, row in tables.tables.items()}
