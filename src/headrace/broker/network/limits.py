"""How much a broker gives to its clients before it says no: every bound, in this one place."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from headrace._setting import named_values
from headrace.errors import SettingsError

_KIB = 1024
_MIB = 1024 * 1024


def _limit(default: int | timedelta, unit: str, doc: str) -> Any:
    return dataclasses.field(default=default, metadata={"unit": unit, "doc": doc})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds that hold whatever clients do.

    Each is an option too: ``--limit max_connections=500``; durations are given in seconds there.

    Raises
    ------
    SettingsError
        When a limit is not positive.

    Examples
    --------
    >>> Limits(max_connections=500).max_connections
    500
    """

    max_frame: int = _limit(16 * _MIB, "bytes", "Largest frame.")
    max_header: int = _limit(256 * _KIB, "bytes", "Largest header of a frame.")
    max_fields: int = _limit(256, "fields", "Most fields of a header.")
    max_json_body: int = _limit(4 * _MIB, "bytes", "Largest JSON body of a request.")
    max_json_items: int = _limit(200_000, "items", "Most items of a JSON body.")
    max_batch_growth: int = _limit(
        64 * _MIB, "bytes", "Most bytes that one batch of messages takes once it is unpacked."
    )
    max_connections: int = _limit(
        10_000, "connections", "Most connections in all; fewer where descriptors are few."
    )
    max_connections_per_address: int = _limit(
        2_000, "connections", "Most connections from one address."
    )
    greeting_timeout: timedelta = _limit(
        timedelta(seconds=30), "seconds", "A new connection must say something within this time."
    )
    frame_timeout: timedelta = _limit(
        timedelta(seconds=60), "seconds", "A frame that has begun must end within this time."
    )
    idle_timeout: timedelta = _limit(
        timedelta(seconds=120), "seconds", "A connection that is silent for so long is closed."
    )
    stall_timeout: timedelta = _limit(
        timedelta(seconds=30),
        "seconds",
        "A client that takes nothing of its answers for so long is cut off.",
    )
    max_in_flight: int = _limit(
        1_024, "requests", "Requests of a connection that are worked on; more are not read."
    )
    max_polls: int = _limit(16_384, "requests", "Most requests of a connection that wait.")
    max_polls_in_all: int = _limit(131_072, "requests", "Most requests that wait for messages.")
    max_held: int = _limit(
        64 * _MIB, "bytes", "Requests of a connection that are worked on; more are not read."
    )
    max_held_in_all: int = _limit(
        512 * _MIB, "bytes", "Requests that are worked on; no more is read until some are done."
    )
    max_receiving_in_all: int = _limit(
        256 * _MIB, "bytes", "Frames that have not come whole; a further large one has to wait."
    )
    max_unsent: int = _limit(
        _MIB, "bytes", "Answers that a client has not taken; its next requests wait."
    )
    max_unsent_in_all: int = _limit(
        512 * _MIB, "bytes", "Answers that nobody takes; the slowest clients are cut off."
    )
    max_topics: int = _limit(
        50_000, "topics", "From so many topics on, none is created by a message or a heartbeat."
    )
    max_groups: int = _limit(20_000, "groups", "Most consumer groups, and most producer groups.")
    max_groups_per_client: int = _limit(1_000, "groups", "Most groups that a client is in.")
    max_subscriptions: int = _limit(
        200_000, "subscriptions", "Most subscriptions of all groups together."
    )
    max_staged_bytes: int = _limit(
        64 << 30, "bytes", "Most bytes that the jobs of an account have staged and not committed."
    )
    max_staged_parts: int = _limit(
        100_000, "parts", "Most parts that they have staged, which are files."
    )
    max_locks: int = _limit(200_000, "queues", "Most queues that are locked.")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value <= type(value)():
                message = f"the limit {field.name} is {value}: it must be positive"
                raise SettingsError(message, hint=field.metadata["doc"])

    @property
    def shortest_timeout(self) -> timedelta:
        """The shortest of the time limits."""
        return min(self.greeting_timeout, self.frame_timeout, self.idle_timeout, self.stall_timeout)

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Limits:
        """Read limits given as ``name=value``.

        Raises
        ------
        SettingsError
            When one has no such name or no such value.

        Examples
        --------
        >>> Limits.parse(["idle_timeout=30"]).idle_timeout
        datetime.timedelta(seconds=30)
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        given: dict[str, Any] = {}
        for name, value in named_values(texts, fields, "there is no limit {}"):
            field = fields[name]
            try:
                number = float(value)
            except ValueError:
                message = f"the limit {name} is {value!r}, which is no number"
                hint = f"Write {name}=NUMBER, in {field.metadata['unit']}."
                raise SettingsError(message, hint=hint) from None
            duration = isinstance(field.default, timedelta)
            given[name] = timedelta(seconds=number) if duration else int(number)
        return cls(**given)

    @classmethod
    def table(cls) -> str:
        """Write the table of all limits, as docs/security.md has it."""
        lines = ["| limit | default | unit | meaning |", "| --- | --- | --- | --- |"]
        for field in dataclasses.fields(cls):
            default = field.default
            shown = (
                f"{default.total_seconds():g}" if isinstance(default, timedelta) else f"{default:,}"
            )
            meta = field.metadata
            lines.append(f"| `{field.name}` | {shown} | {meta['unit']} | {meta['doc']} |")
        return "\n".join(lines)
