"""What the config of a task asks of the data plane, as its host has read it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal, Self

import msgspec

if TYPE_CHECKING:
    from headrace.connect.config import Config

__all__ = ["Begin", "Terms"]

Begin = Literal["first", "latest"] | int
"""Where a queue is begun: at its first message, after its latest, or at a time, ms since 1970."""


class Terms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the data plane has to know of a task, and nothing that is secret.

    The host says it, as it alone has the config with its values from outside.
    """

    #: Of a sink: topics, or a pattern of their names.
    topics: list[str] = []
    pattern: str = ""
    #: Where dead letters of a sink go; empty: nowhere.
    letters: str = ""
    #: Queues of topics that the task makes.
    queues: int = 4
    #: Where a sink begins in queues of which no offset was ever committed.
    begin: Begin = "first"
    #: Whether a sink takes columns: many records of those take little memory.
    columns: bool = False

    @classmethod
    def of_source(cls, config: Config) -> Self:
        """Read a source task's config."""
        return cls(queues=config["topic.creation.default.partitions"])

    @classmethod
    def of_sink(cls, config: Config, *, columns: bool = False) -> Self:
        """Read a sink task's config."""
        pattern = config["topics.regex"]
        return cls(
            topics=config["topics"],
            pattern="" if pattern is None else pattern.pattern,
            letters=config["errors.deadletterqueue.topic.name"].strip(),
            queues=config["errors.deadletterqueue.topic.queues"],
            begin=_begin(config["consume.from.where"]),
            columns=columns,
        )


def _begin(text: str) -> Begin:
    """Read where to begin.

    >>> _begin("Earliest"), _begin("latest"), _begin("2026-05-01T12:00:00Z")
    ('first', 'latest', 1777636800000)
    >>> _begin("2026-05-01T12:00:00.0009Z")
    1777636800000
    """
    word = text.strip().lower()
    if word == "latest":
        return "latest"
    if word in {"first", "earliest"}:
        return "first"
    from headrace.client.pulling import whole_milliseconds

    return whole_milliseconds(datetime.fromisoformat(text.strip()))
