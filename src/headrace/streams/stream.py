"""Stream: records that flow, and what can be done with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from headrace.errors import TopologyError
from headrace.serdes import key
from headrace.serdes.inference import result_hint
from headrace.streams.batches import Batches
from headrace.streams.columns import Columns
from headrace.streams.joins.chain import check_keyed
from headrace.streams.joins.ways import Joins
from headrace.streams.outputs import Outputs
from headrace.streams.processing import Processing
from headrace.streams.routing import Routing
from headrace.streams.times import Times
from headrace.topology import KeyBy, Output
from headrace.topology.callers import caller

if TYPE_CHECKING:
    from headrace.streams._options import StepOptions
    from headrace.streams.keyed import KeyedStream
    from headrace.streams.sources import Flow
    from headrace.topology import ErrorPolicy, Process


K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")


class Stream(
    Joins[K, V],
    Routing[K, V],
    Processing[K, V],
    Times[K, V],
    Columns[K, V],
    Batches[K, V],
    Outputs[K, V],
):
    """Records with keys of type ``K`` and values of type ``V``.

    Made by :meth:`StreamBuilder.source` and by the operators.  A stream can be used more than
    once: each operator added to it is a branch that gets all records.  None is a value like any
    other; ``filter`` and ``flat_map`` drop records.

    Where values must travel between Spark's stages or lie in a state store, they do so by the
    serde that ``serde=`` names on the operator that makes them, else by the one that follows from
    the function's annotations, else as plain data.
    """

    @overload
    def key_by(
        self,
        selector: Callable[[V], K2],
        **options: Unpack[StepOptions],
    ) -> KeyedStream[K2, V]: ...
    @overload
    def key_by(
        self,
        selector: Callable[[K, V], K2],
        **options: Unpack[StepOptions],
    ) -> KeyedStream[K2, V]: ...
    def key_by(
        self,
        selector: Callable[..., Any],
        *,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> Any:
        """Give each record the key that the selector finds in its value.

        Keys are plain data (see :mod:`headrace.keys`); ``1``, ``1.0`` and ``True`` are three keys.

        Parameters
        ----------
        selector
            Takes the value, or key and value, gives the key.
        name
            Name of the operator.
        on_error
            What becomes of a record on which the selector raises: ``"fail"`` stops the job,
            ``"skip"`` counts it, ``"topic:NAME"`` sends its message to that topic.

        Raises
        ------
        TopologyError
            The selector's annotation promises keys that are not plain data.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> StreamBuilder("job").source("words", serdes.string).key_by(str.lower)
        <keyed stream 'key_by-words'>
        """
        from headrace.streams.keyed import KeyedStream

        step, takes_key = self._record_step("key_by", selector, name, on_error)
        known = step.known(result_hint(selector, step.caller.names))
        known.check_key(step.name)
        operator = KeyBy(**step.fields, selector=selector, takes_key=takes_key, key_serde=key)
        return KeyedStream(step.add(operator, key=known))

    def group_by_key(self) -> KeyedStream[K, V]:
        """Go on by the keys that the records have.

        Adds no operator.  A shuffle follows only where the key is not the one of the last shuffle.

        Raises
        ------
        TopologyError
            The keys are of a known type that is not plain data.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> counts = StreamBuilder("job").source("counts", serdes.with_key(serdes.json))
        >>> counts.group_by_key()
        <keyed stream 'source-counts'>
        """
        from headrace.streams.keyed import KeyedStream

        self._flow.key.check_key("group_by_key")
        check_keyed(self._flow, "group_by_key", caller().origin)
        return KeyedStream(self._flow)


# What a processor gives.


class ProcessedStream(Stream[K, V]):
    """The records that a processor forwards.

    Parameters
    ----------
    flow
        Where they are.
    process
        The operator that forwards them.
    """

    def __init__(self, flow: Flow, process: Process) -> None:
        super().__init__(flow)
        self._process = process

    def output(self, name: str) -> Stream[Any, Any]:
        """Give the records that it forwards to the child with a name.

        Raises
        ------
        TopologyError
            The processor declares no such output.

        Examples
        --------
        >>> from headrace import Processor, Record, StreamBuilder, serdes
        >>> class Split(Processor[None, int, None, int]):
        ...     def init(self, context):
        ...         self.context = context
        ...
        ...     def process(self, record: Record[None, int]) -> None:
        ...         self.context.forward(record, child="odd" if record.value % 2 else "")
        >>> numbers = StreamBuilder("job").source("numbers", serdes.int)
        >>> numbers.process(Split, outputs=["odd"]).output("odd")
        <stream 'process-numbers-odd'>
        """
        flow, process = self._flow, self._process
        made_by = caller()
        if name not in process.outputs:
            raise TopologyError(
                f"operator '{process.name}' (made at {process.origin}) has no output '{name}':"
                f" it declares {', '.join(process.outputs) or 'none'}",
                hint=f"process(..., outputs=[{name!r}])",
            )
        output = Output(
            name=f"{process.name}-{name}",
            parents=(process.name,),
            output=name,
            origin=made_by.origin,
        )
        flow.builder.add(output)
        return Stream(replace(flow, operator=output.name))
