"""A shuffle by a topic that people can see: one part of a job writes it, another one reads it.

What one batch publishes, the next one reads.  Two operators stand for it: :class:`Through` writes,
and :class:`ThroughSource`, whose parent it is, reads.  What a record carries besides key, value,
time and headers travels in properties of its message; how far event time has come travels in
messages of its own, marked by :data:`WATERMARK`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.topology.operators.core import Operator, Sink, Source

if TYPE_CHECKING:
    from headrace.serdes import Serde

__all__ = [
    "LATE_BELOW",
    "NO_VALUE",
    "RETRACTS",
    "SENDER",
    "THROUGH_PROPERTIES",
    "TIME",
    "WATERMARK",
    "Through",
    "ThroughSource",
    "is_loop",
]

WATERMARK = "HEADRACE_WATERMARK"
"""Property of a message that is no record: event time has come so far, ms since 1970."""

SENDER = "HEADRACE_JOB"
"""Property of such a message: the job whose event time it is."""

TIME = "HEADRACE_TIME"
"""Property of a record: when it happened, ms since 1970; a batch of messages has one born time."""

LATE_BELOW = "HEADRACE_LATE_BELOW"
"""Property of a record that was late at its source: the watermark that it came after."""

RETRACTS = "HEADRACE_RETRACTS"
"""Property of a record that takes an earlier one back."""

NO_VALUE = "HEADRACE_NO_VALUE"
"""Property of a record whose value is None; an empty body may be a value."""

THROUGH_PROPERTIES = frozenset({WATERMARK, SENDER, TIME, LATE_BELOW, RETRACTS, NO_VALUE})
"""All of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Through(Sink):
    """Writes what the next batch reads."""

    label: ClassVar[str] = "through"

    value_serde: Serde[Any]
    #: Whether records have keys, which decide their queues.
    keyed: bool = True
    #: So many the topic is made with where it is missing.
    queues: int = 8

    @property
    def gathers(self) -> bool:
        """Whether records of a key come together first, so that they are written in their order."""
        return self.keyed

    def input_serde(self, port: int) -> Serde[Any]:
        """Give the serde of the records that parent number ``port`` sends through a shuffle."""
        del port
        return self.value_serde

    def facts(self) -> list[str]:
        """Say what ``describe()`` shows of it."""
        return [f"writes {self.topic}", f"serde {self.value_serde!r}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughSource(Source):
    """Reads what a :class:`Through`, its parent, has written in an earlier batch."""

    label: ClassVar[str] = "through_source"

    #: Whether records have keys.
    keyed: bool = True

    def facts(self) -> list[str]:
        """Say what ``describe()`` shows of it."""
        return [f"reads {', '.join(self.topics)}"]


def is_loop(operator: Operator) -> bool:
    """Tell whether what comes to an operator was published in an earlier batch of the same job."""
    return isinstance(operator, ThroughSource)
