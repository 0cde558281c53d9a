"""Operators that run the users' own processors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.topology.operators.core import Operator

if TYPE_CHECKING:
    from headrace.serdes import Serde
    from headrace.topology.low_level import Processor, StateSpec, TimerSpec


_MS = timedelta(milliseconds=1)
_STEPS = (1000, 500, 200, 100, 50, 20, 10, 5, 2, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process(Operator):
    """Runs a processor that keeps nothing between batches."""

    label: ClassVar[str] = "process"
    changes_key: ClassVar[bool] = True
    carries_back: ClassVar[bool] = False
    reads_headers: ClassVar[bool] = True

    #: Makes a processor, in each task.
    factory: Callable[[], Processor[Any, Any, Any, Any]]
    #: Names of the children that it may forward to.
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedProcess(Process):
    """Runs a processor with state and timers of each key."""

    stateful: ClassVar[bool] = True
    timed: ClassVar[bool] = True

    value_serde: Serde[Any]
    key_serde: Serde[Any]
    states: tuple[StateSpec, ...] = ()
    timers: tuple[TimerSpec, ...] = ()
    #: How much older than event time the records that it forwards may be.
    lag: timedelta = field(default=timedelta(0))

    @property
    def gathers(self) -> bool:
        """Whether all records of a key are in one partition after it; it may forward any key."""
        return False

    def input_serde(self, port: int) -> Serde[Any]:
        """Return the serde of the records that parent number ``port`` sends through a shuffle."""
        del port
        return self.value_serde

    @property
    def delay(self) -> int:
        """How much older than its watermark its results may be, ms."""
        return math.ceil(self.lag / _MS)

    @property
    def time_step(self) -> int:
        """Grid of the times at which it acts, ms."""
        timers = [step_of(timer.step) for timer in self.timers if timer.clock == "event"]
        kept = [ttl_step(state.ttl) for state in self.states if state.ttl is not None]
        return math.gcd(*timers, *kept)

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        return [*map(str, self.states), *map(str, self.timers)]


def step_of(step: timedelta) -> int:
    """Return a timer's step in ms."""
    return max(1, step // _MS)


def ttl_step(ttl: timedelta) -> int:
    """Return the grid of expiry times, in ms: a hundredth of ``ttl``, at most 1 s."""
    hundredth = ttl // _MS // 100
    return next((step for step in _STEPS if step <= hundredth), 1)
