"""Event time as the front door shows it."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from headrace.streams.sources import check_durations, check_function
from headrace.topology import SelectTimestamp

if TYPE_CHECKING:
    from headrace.streams.sources import Flow
    from headrace.topology import ErrorPolicy

__all__ = ["Times"]

K = TypeVar("K")
V = TypeVar("V")

_LATENESS = timedelta(seconds=2)
_IDLE = timedelta(seconds=10)


class Times(Generic[K, V]):
    """A place in the graph where records get other times."""

    _flow: Flow

    def select_timestamp(
        self,
        function: Callable[[V], datetime | int | None],
        *,
        name: str | None = None,
        allowed_lateness: timedelta = _LATENESS,
        idle_timeout: timedelta | None = _IDLE,
        max_future: timedelta | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> Self:
        """Give each record the time that the function finds in its value.

        New times begin new watermarks: what was late by the old time need not be by the new one,
        and the other way round.

        Parameters
        ----------
        function
            Takes the value, gives an aware datetime or ms since 1970; None leaves the time.
        name
            Name of the operator.
        allowed_lateness
            How far a record may lag behind the newest of its source queue (behind a shuffle: of
            its partition) before it is late.
        idle_timeout
            So long a queue or partition may be silent before event time goes on without it; None:
            the others wait for ever.
        max_future
            Records so far ahead of the wall clock are counted, as ``future``, and move no
            watermark; by default as ``JobSettings.max_future`` says.

        on_error
            What to do with a record for which the function raises or gives no time: ``"fail"``,
            ``"skip"`` or ``"topic:NAME"``, as in :meth:`StreamBuilder.source`.

        Raises
        ------
        TopologyError
            The function does not take one value, or a duration is negative.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> orders = StreamBuilder("job").source("orders", serdes.json)
        >>> orders.select_timestamp(lambda order: order["paid_at"])
        <stream 'select_timestamp-orders'>
        """
        step = self._flow.begin("select_timestamp", name, on_error=on_error)
        check_function("select_timestamp", function, ("value",), step.caller.origin)
        durations = {
            "allowed_lateness": allowed_lateness,
            "idle_timeout": idle_timeout,
            "max_future": max_future,
        }
        check_durations(f"operator '{step.name}' at {step.caller.origin}", durations)
        changed = copy(self)
        changed._flow = step.add(  # noqa: SLF001 - a copy of this very object
            SelectTimestamp(
                **step.fields,
                function=function,
                allowed_lateness=allowed_lateness,
                idle_timeout=idle_timeout,
                max_future=max_future,
            )
        )
        return changed
