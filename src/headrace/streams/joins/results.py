"""The results of a join of two streams."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.errors import TopologyError
from headrace.streams.flow import Flow, Known
from headrace.streams.keyed import KeyedStream
from headrace.topology import TimedJoin, ToStream

if TYPE_CHECKING:
    from headrace.streams.stream import Stream


K = TypeVar("K")
V = TypeVar("V")


class JoinedStream(KeyedStream[K, V]):
    """The results of a join of two streams.

    Parameters
    ----------
    flow
        The place after the operator that makes the results.
    meetings
        The place after the operator that keeps both sides.
    """

    def __init__(self, flow: Flow, meetings: Flow) -> None:
        super().__init__(flow)
        self._meetings = meetings

    def late(self, *, name: str | None = None) -> Stream[K, Any]:
        """Return the records of both sides that came too late to be joined, unchanged.

        Joins of the same streams with the same keys and times share their late records.

        Parameters
        ----------
        name
            Name of the operator.

        Raises
        ------
        TopologyError
            The join has neither ``within`` nor ``window``, so nothing is late for it.

        Examples
        --------
        >>> from datetime import timedelta
        >>> from headrace import StreamBuilder, serdes
        >>> builder = StreamBuilder("job")
        >>> orders = builder.source("orders", serdes.with_key(serdes.json))
        >>> payments = builder.source("payments", serdes.with_key(serdes.json))
        >>> chain = orders.join(payments).within(timedelta(minutes=5))
        >>> paid = chain.apply(lambda order, payment: order)
        >>> paid.late()
        <stream 'late-orders-payments'>
        """
        from headrace.streams.stream import Stream

        meetings = replace(self._meetings, value=Known())
        step = meetings.begin("late", name)
        known = {operator.name: operator for operator in meetings.builder.operators}
        if not isinstance(known[meetings.operator], TimedJoin):
            raise TopologyError(
                f"late at {step.caller.origin}: nothing is late for a join of last values",
                hint="leave late() out, or bound the join with within(...) or window(...)",
            )
        return Stream(step.add(ToStream(**{**step.fields, "output": "late"})))
