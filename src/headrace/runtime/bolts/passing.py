"""Processors at the two ends of components: records become tuples, tuples go to a bolt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.runtime.processors import Processor, ProcessorContext
from headrace.runtime.user_code.calls import UserFunction
from headrace.topology.operators.bolts import Subscription, Tuples

if TYPE_CHECKING:
    from headrace.runtime.chunk import Chunk

__all__ = ["SubscriptionProcessor", "TuplesProcessor"]


class SubscriptionProcessor(Processor[Subscription]):
    """Passes tuples on: the edge behind it chooses their tasks."""

    def process(self, chunk: Chunk) -> Chunk:
        """Pass tuples on; only a direct grouping asks for the task that they were emitted to."""
        if chunk.targets is None or self.operator.grouping.kind == "direct":
            return chunk
        return replace(chunk, targets=None)


class TuplesProcessor(Processor[Tuples]):
    """Makes tuples of records; the task that emits them is the one that reads their topic."""

    def __init__(self, operator: Tuples, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        values = values_getter(operator.fields)
        keyed = operator.key_field is not None
        function = (lambda key, value: (key, *values(value))) if keyed else values
        self._function = UserFunction(operator, function, context.locator)
        self._takes_key = keyed

    def process(self, chunk: Chunk) -> Chunk:
        """Make a tuple of each record."""
        columns = (chunk.key_list(), chunk.values) if self._takes_key else (chunk.values,)
        kept, rows = self._function.each(chunk, *columns)
        task = self.context.partition
        emitters = np.full(len(kept), task, np.int64)
        return replace(kept.with_values(rows), keys=None, headers=None, emitters=emitters)


def values_getter(fields: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Give what makes the values of a tuple out of a record's value.

    Examples
    --------
    >>> values_getter(("word",))("be"), values_getter(("a", "b"))({"b": 2, "a": 1})
    (('be',), (1, 2))
    >>> values_getter(("a", "b"))([1, 2])
    (1, 2)
    """
    if len(fields) == 1:
        return lambda value: (value,)
    items, attributes, count = itemgetter(*fields), attrgetter(*fields), len(fields)

    def values(value: Any) -> tuple[Any, ...]:
        if isinstance(value, Mapping):
            return tuple(items(value))
        if not isinstance(value, (list, tuple)):
            return tuple(attributes(value))
        if len(value) != count:
            message = f"{len(value)} values for the {count} fields {', '.join(fields)}"
            raise ValueError(message)
        return tuple(value)

    return values
