"""The table of window operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.runtime.windows.counts import CountProcessor
from headrace.runtime.windows.sessions import SessionProcessor
from headrace.runtime.windows.sliding import SlidingProcessor, WithWindowProcessor
from headrace.runtime.windows.time_windows import TimeWindowProcessor
from headrace.topology.operators.windows import (
    CountWindow,
    SessionWindow,
    SlidingWindow,
    TimeWindow,
)
from headrace.topology.windowed import WithWindow

if TYPE_CHECKING:
    from headrace.runtime.processors import Processor
    from headrace.topology.operators.core import Operator


#: Operator to processor: a new kind of window is a line here.
WINDOWS: dict[type[Operator], type[Processor[Any]]] = {
    CountWindow: CountProcessor,
    SessionWindow: SessionProcessor,
    SlidingWindow: SlidingProcessor,
    TimeWindow: TimeWindowProcessor,
    WithWindow: WithWindowProcessor,
}
