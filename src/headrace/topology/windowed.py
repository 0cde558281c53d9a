"""Results with their windows, which travel in the value or in the message's properties."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Generic, TypeVar

from headrace.serdes import Serde
from headrace.topology.operators.core import Operator

V = TypeVar("V")

#: Properties of a message with the bounds of its value's window, ms since 1970, as RocketMQ Streams
#: names them.
WINDOW_START = "window_start_time"
WINDOW_END = "window_end_time"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_BOUNDS = struct.Struct(">qq")


@dataclass(frozen=True)
class Windowed(Generic[V]):
    """A result with the window that it is for.

    Examples
    --------
    >>> from headrace import Windowed
    >>> start = datetime(2024, 1, 1, tzinfo=UTC)
    >>> Windowed(7, start, start + timedelta(hours=1)).value
    7
    """

    value: V
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class WithWindow(Operator):
    """Replaces each result by a :class:`Windowed`, which also has its window."""

    label: ClassVar[str] = "with_window"


class WindowedSerde(Serde[Windowed[Any]]):
    """Writes a result with its window.

    Parameters
    ----------
    values
        Serde of the results.
    """

    def __init__(self, values: Serde[Any]) -> None:
        self._values = values

    def __repr__(self) -> str:
        return f"windowed {self._values!r}"

    @property
    def hint(self) -> Any:
        """The type of its values."""
        return Windowed

    def serialize(self, value: Windowed[Any]) -> bytes:
        """Write one result."""
        bounds = _BOUNDS.pack(_milliseconds(value.start), _milliseconds(value.end))
        return bounds + self._values.serialize(value.value)

    def deserialize(self, data: bytes) -> Windowed[Any]:
        """Read one result."""
        start, end = _BOUNDS.unpack_from(data)
        return windowed(self._values.deserialize(data[_BOUNDS.size :]), start, end)


def windowed(value: V, start: int, end: int) -> Windowed[V]:
    """Return a value with its window, whose bounds are in ms since 1970."""
    return Windowed(value, _EPOCH + start * _MILLISECOND, _EPOCH + end * _MILLISECOND)


def window_headers(start: int, end: int) -> dict[str, str]:
    """Return the properties with the bounds of a window, in ms since 1970."""
    return {WINDOW_START: str(start), WINDOW_END: str(end)}


def _milliseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND
