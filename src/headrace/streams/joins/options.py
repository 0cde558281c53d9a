"""What joins of streams take by name."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from headrace.streams._options import ValueOptions

if TYPE_CHECKING:
    from headrace.topology.windows import Windows

__all__ = ["JoinOptions"]


class JoinOptions(ValueOptions[Any], total=False):
    """What a join of two streams takes by name."""

    #: How much earlier, and how much later, than the left record the right one may be.
    within: timedelta | tuple[timedelta, timedelta] | None
    #: Which windows both share.
    window: Windows | None
    #: How much longer to wait for late records.
    grace: timedelta
