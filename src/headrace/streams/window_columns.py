"""Groups of columns in windows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.columns import Measure, Schema
from headrace.columns.rows import CellsOf
from headrace.errors import TopologyError
from headrace.streams.aggregates.descriptions import Gathering
from headrace.streams.columns import Row, cells_serde, results_of
from headrace.streams.stream import Stream
from headrace.streams.windowed import WindowedStream, WindowedTable
from headrace.topology.aggregations import Aggregation
from headrace.topology.operators.columns import WINDOW_COLUMNS, WindowRows
from headrace.topology.updates import gives_updates

if TYPE_CHECKING:
    from datetime import timedelta

    from headrace.streams._flow import Flow
    from headrace.topology import ErrorPolicy
    from headrace.topology.operators.windows import WindowEmit
    from headrace.topology.windows import Windows

__all__ = ["WindowedColumns", "WindowedGroups"]

_BOUND = pa.timestamp("ms", "UTC")


class WindowedGroups(WindowedStream[Any, Any]):
    """Groups of columns in windows; made by :meth:`ColumnGroups.window`."""

    def __init__(self, flow: Flow, keys: Schema, windows: Windows, grace: timedelta) -> None:
        super().__init__(flow, windows, grace)
        self._keys = keys

    def agg(
        self,
        *measures: Measure,
        emit: WindowEmit = "close",
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
        **named: Measure,
    ) -> WindowedColumns:
        """Compute measures of each group and window.

        Values are dicts of the columns of the key, the measures, ``window_start`` and
        ``window_end``.  Where windows lie fixed in time, groups are combined in Arrow before the
        shuffle; the others gather record by record.

        Parameters
        ----------
        measures
            Made with ``count``, ``sum``, ``min``, ``max`` and ``avg`` of :mod:`headrace.columns`.
        emit
            ``"close"``: one result when a window closes; ``"update"``: the latest of each window
            that changed, once per batch.
        name
            Name of the operator and of its state store.
        on_error
            What becomes of a record of which a measure cannot be computed; see
            :meth:`Stream.map_values`.
        named
            Measures by the name of the column that they give.

        Raises
        ------
        TopologyError
            Two columns have one name, a measure does not fit its column, or the records are
            updates.

        Examples
        --------
        >>> from datetime import timedelta
        >>> from headrace import StreamBuilder, serdes, tumbling
        >>> from headrace.columns import count
        >>> words = StreamBuilder("job").source("words", serdes.string).group_by("value")
        >>> words.window(tumbling(timedelta(minutes=1))).agg(count())
        <windows of columns 'agg-words'>
        """
        step = self._flow.begin("agg", name, on_error=on_error)
        if gives_updates(self._flow.builder.operators, self._flow.operator):
            raise TopologyError(
                f"agg at {step.caller.origin} gathers updates by windows, and an old value has no"
                " window of its own",
                hint="put windows in front of what gives the updates",
            )
        chosen, types = results_of(step, self._flow, measures, named)
        bounds = tuple((column, _BOUND) for column in WINDOW_COLUMNS)
        results = Schema(self._keys.columns + types + bounds)
        try:
            results.check_names()
        except ValueError as error:
            raise TopologyError(
                f"agg at {step.caller.origin}: {error}", hint="name one of them with name=..."
            ) from None
        schema = self._flow.value.columns
        assert schema is not None
        aggregation = Aggregation(
            kind="columns",
            state_serde=cells_serde(types),
            value_serde=self._flow.value.serde_or_plain(),
            function=CellsOf(schema, chosen, self._keys.columns),
        )
        group = self._gathering(emit)
        table = group._gather(step, Gathering(aggregation, step.known(dict)), "update")  # noqa: SLF001 - its kin
        return WindowedColumns(self._table(table), table._flow, self._keys, results)  # noqa: SLF001


class WindowedColumns:
    """The measures of each group and window."""

    def __init__(
        self, table: WindowedTable[Any, Any, Any], flow: Flow, keys: Schema, results: Schema
    ) -> None:
        self._table = table
        self._flow = flow
        self._keys = keys
        self._results = results

    def __repr__(self) -> str:
        return f"<windows of columns '{self._flow.operator}'>"

    @property
    def name(self) -> str:
        """Name of the operator that keeps the windows, and of its state store."""
        return self._flow.operator

    def to_stream(self, *, name: str | None = None) -> Stream[Any, Row]:
        """Give the results as a stream, which has columns again."""
        step = self._flow.begin("to_stream", name)
        operator = WindowRows(**step.fields, keys=tuple(self._keys.names), results=self._results)
        known = replace(step.known(dict), columns=self._results)
        return Stream(step.add(operator, value=known))

    def late(self, *, name: str | None = None) -> Stream[Any, Any]:
        """Give the records that came too late for their windows, as they were."""
        return self._table.late(name=name)
