"""What joins take by name."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from headrace.serdes import Serde
    from headrace.topology import ErrorPolicy
    from headrace.topology.windows import Windows

__all__ = ["JoinOptions", "LookupOptions"]


class LookupOptions(TypedDict, total=False):
    """What a join with a table takes by name."""

    #: Name of the operator that keeps state.
    name: str | None
    #: Writes the results.
    serde: Serde[Any] | None
    #: What becomes of records on which the joiner raises.
    on_error: ErrorPolicy


class JoinOptions(LookupOptions, total=False):
    """What a join of two streams takes by name."""

    #: How much earlier, and how much later, than the left record the right one may be.
    within: timedelta | tuple[timedelta, timedelta] | None
    #: Which windows both share.
    window: Windows | None
    #: How much longer to wait for late records.
    grace: timedelta
