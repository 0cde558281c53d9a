"""Operators that give records their times."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from headrace.topology.operators.core import Function, Operator

__all__ = ["SelectTimestamp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectTimestamp(Operator):
    """Sets the time to ``function(value)``, and begins watermarks of its own."""

    label: ClassVar[str] = "select_timestamp"
    keeps_time: ClassVar[bool] = True

    function: Function
    #: How far a record may lag behind the newest of its queue, or partition, before it is late.
    allowed_lateness: timedelta = timedelta(seconds=2)
    #: So long a queue, or partition, may be silent before the others go on; None: for ever.
    idle_timeout: timedelta | None = timedelta(seconds=10)
    #: Records so far ahead of the wall clock move no watermark; None: as the job's settings say.
    max_future: timedelta | None = None
