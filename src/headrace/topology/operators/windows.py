"""Operators that aggregate by windows."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from headrace.topology.operators.core import Operator
from headrace.topology.windows import (
    CountWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    Windows,
    told,
)

if TYPE_CHECKING:
    from headrace.serdes import Serde
    from headrace.topology.aggregations import Aggregation


WindowEmit = Literal["close", "update"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowAggregate(Operator):
    """Keeps one accumulator per key and window."""

    label: ClassVar[str] = "window"
    stateful: ClassVar[bool] = True
    refuses_updates: ClassVar[bool] = True

    aggregation: Aggregation
    #: Writes the records that travel one by one.
    value_serde: Serde[Any]
    emit: WindowEmit = "close"
    #: How long a window stays open after its end, and how much later a record may come, ms.
    grace: int = 0

    def input_serde(self, port: int) -> Serde[Any]:
        """Return the serde of the records that parent number ``port`` sends through a shuffle."""
        del port
        return self.value_serde

    @property
    def updates(self) -> bool:
        """Whether a result replaces the previous one."""
        return self.emit == "update"

    @property
    def state_serde(self) -> Serde[Any]:
        """Serde of the accumulators."""
        return self.aggregation.state_serde

    @property
    def shape(self) -> Windows:
        """The shape of its windows."""
        raise NotImplementedError

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        grace = [f"grace {told(self.grace)}"] if self.grace else []
        state = f"state {self.aggregation.state_serde!r}"
        return [str(self.aggregation), str(self.shape), *grace, f"emit {self.emit}", state]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindow(WindowAggregate):
    """Aggregates by windows that are fixed in time."""

    timed: ClassVar[bool] = True

    windows: TimeWindows

    @property
    def shape(self) -> Windows:
        """The shape of its windows."""
        return self.windows

    @property
    def delay(self) -> int:
        """How much older than its watermark its results may be, ms."""
        return self.windows.longest + self.grace

    @property
    def time_step(self) -> int:
        """Grid of the times at which it acts, ms."""
        return gcd(self.windows.step, self.grace)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindow(WindowAggregate):
    """Aggregates the records up to a fixed time before each record."""

    timed: ClassVar[bool] = True

    windows: SlidingWindows

    @property
    def shape(self) -> Windows:
        """The shape of its windows."""
        return self.windows

    @property
    def delay(self) -> int:
        """How much older than its watermark its results may be, ms."""
        return self.grace

    @property
    def time_step(self) -> int:
        """Grid of the times at which it acts, ms: its windows end at any time."""
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionWindow(WindowAggregate):
    """Aggregates records that follow each other closely."""

    timed: ClassVar[bool] = True

    windows: SessionWindows

    @property
    def shape(self) -> Windows:
        """The shape of its windows."""
        return self.windows

    @property
    def delay(self) -> int:
        """How much older than its watermark its results may be, ms."""
        return self.windows.gap + self.grace

    @property
    def time_step(self) -> int:
        """Grid of the times at which it acts, ms: its windows end at any time."""
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CountWindow(WindowAggregate):
    """Aggregates a fixed number of records at a time."""

    windows: CountWindows

    @property
    def shape(self) -> Windows:
        """The shape of its windows."""
        return self.windows
