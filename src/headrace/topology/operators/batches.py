"""Operators that hand committed batches to code outside the transaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from headrace.topology.operators.core import Sink

if TYPE_CHECKING:
    from headrace.columns import Schema
    from headrace.serdes import Serde


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSink(Sink):
    """Writes to a topic of its own, from which committed batches are read back one by one."""

    #: Topic that says which batches are done.
    done_topic: str
    value_serde: Serde[Any]
    #: Columns of the values; None where they are not known.
    schema: Schema | None = None
    #: Type of the column of keys: text, unless the type of the keys is known.
    key_type: pa.DataType

    @property
    def value_type(self) -> pa.DataType:
        """Type of the column of values."""
        if self.schema is None:
            return pa.string() if self.value_serde.is_text else pa.binary()
        if self.schema.kind == "single":
            return self.schema.columns[0][1]
        return pa.struct(list(self.schema.columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class ForEachBatch(BatchSink):
    """Calls a function with the records of each committed batch, in a process of its own."""

    label: ClassVar[str] = "for_each_batch"

    function: Callable[..., object]


class DriverFunction:
    """A function that stays in the process that made it: a pickled copy has no function.

    Parameters
    ----------
    function
        The function.
    """

    def __init__(self, function: Callable[..., object] | None = None) -> None:
        self.function = function

    def __reduce__(self) -> tuple[type[DriverFunction], tuple[()]]:
        return DriverFunction, ()

    def __call__(self, *arguments: object) -> object:
        """Call the function."""
        assert self.function is not None, "the function is not here"
        return self.function(*arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkDataFrame(BatchSink):
    """Hands each committed batch to a writer, as a Spark data frame."""

    label: ClassVar[str] = "sink_dataframe"

    writer: DriverFunction
