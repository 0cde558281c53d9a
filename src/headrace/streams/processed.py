"""What a processor gives."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.errors import TopologyError
from headrace.streams._calls import caller
from headrace.streams.stream import Stream
from headrace.topology import Output

if TYPE_CHECKING:
    from headrace.streams._flow import Flow
    from headrace.topology import Process

__all__ = ["ProcessedStream"]

K = TypeVar("K")
V = TypeVar("V")


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
