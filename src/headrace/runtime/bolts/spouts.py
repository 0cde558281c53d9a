"""Processors of spouts: they emit tuples until their part of the batch ends."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from headrace.errors import DeserializationError, SerializationError
from headrace.keys import decode_key, encode_key, encode_keys, key_hash
from headrace.runtime.bolts.bolts import (
    BoltProcessor,
    StatefulBoltProcessor,
    TuplesRunner,
    key_getter,
)
from headrace.runtime.bolts.instances import BoltOutput, Instance, SpoutOutput
from headrace.runtime.bolts.states import (
    ComponentProcessor,
    KeyRangeLayout,
    StatefulTasks,
    TaskLayout,
    damaged_state,
    key_value_tasks,
    task_of_ranges,
)
from headrace.runtime.chunk import Chunk, spout_mark
from headrace.runtime.processors import Processor, ProcessorContext
from headrace.runtime.user_code import UserFunction
from headrace.topology.operators.bolts import (
    Bolt,
    KeyValueBoltNode,
    Spout,
    StatefulBoltNode,
    Subscription,
    Tuples,
)

if TYPE_CHECKING:
    from headrace.runtime.event_time.watermarks import Watermark
    from headrace.runtime.state.interface import StateStore
    from headrace.serdes import Serde
    from headrace.topology.operators.core import Operator


# Processors of key-value bolts: a mapping over the store, for each task its own ranges.

#: Types whose values cannot be changed in place.
_FIXED = frozenset({type(None), bool, int, float, str, bytes})
#: Types of keys that are the same key when they are equal.
_SIMPLE = frozenset({type(None), bool, int, bytes})


class _Gone:
    """In place of a value: the key has none."""


class _Unknown:
    """In place of a value: nobody has looked the key up."""


class KeyValues(MutableMapping[Any, Any]):
    """The state of one task of a key-value bolt, for one batch.

    Parameters
    ----------
    store
        The bolt's store in this partition.
    serde
        Writes the values.
    owns
        Tells whether a key, by its canonical bytes, belongs to the task.
    """

    def __init__(self, store: StateStore, serde: Serde[Any], owns: Any) -> None:
        self._store = store
        self._serde = serde
        self._owns = owns
        #: What was looked up or set, by the type of the key and the key: 1, 1.0 and True differ.
        self._values: dict[Any, Any] = {}
        self._encoded: dict[Any, bytes] = {}
        self._set: set[Any] = set()

    def fetch(self, keys: Sequence[Any]) -> None:
        """Look up many keys at once."""
        names = {_name(key): key for key in keys}
        missing = [name for name in names if name not in self._values]
        encoded = encode_keys([names[name] for name in missing])
        found = self._store.get_many(encoded)
        present = [data for data in found if data is not None]
        values = iter(self._serde.deserialize_many(pa.array(present, pa.binary())))
        for name, data, key in zip(missing, found, encoded, strict=True):
            self._encoded[name] = key
            self._values[name] = _Gone if data is None else next(values)

    def __getitem__(self, key: Any) -> Any:
        found = self.get(key, _Gone)
        if found is _Gone:
            raise KeyError(key)
        return found

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key, or something else where it has none."""
        name = key if key.__class__ is str else _name(key)
        found = self._values.get(name, _Unknown)
        if found is _Unknown:
            found = self._looked(name, key)
        return default if found is _Gone else found

    def __setitem__(self, key: Any, value: Any) -> None:
        name = key if key.__class__ is str else _name(key)
        if name not in self._set:
            if name not in self._encoded:
                self._encoded[name] = self._own(key)
            self._set.add(name)
        self._values[name] = value

    def __delitem__(self, key: Any) -> None:
        self[key]
        self[key] = _Gone

    def __iter__(self) -> Iterator[Any]:
        for name, key in self._all():
            if self._values.get(name) is not _Gone:
                yield key

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: object) -> bool:
        return self.get(key, _Gone) is not _Gone

    def keep(self) -> None:
        """Write what was set, and what may have been changed in place."""
        values = self._values
        changed = [
            name
            for name, value in values.items()
            if name in self._set or (value is not _Gone and type(value) not in _FIXED)
        ]
        live = [name for name in changed if values[name] is not _Gone]
        written = self._serde.serialize_many([values[name] for name in live]).to_pylist()
        self._store.put_many([self._encoded[name] for name in live], written)
        for name in changed:
            if values[name] is _Gone:
                self._store.delete(self._encoded[name])

    def _all(self) -> Iterator[tuple[Any, Any]]:
        """Yield the keys of the task: those of the last commit, and those that are new."""
        seen = set()
        for data, _ in list(self._store.scan()):
            if self._owns(data):
                key = decode_key(data)
                name = _name(key)
                seen.add(name)
                yield name, key
        for name in list(self._values):
            if name not in seen:
                yield name, decode_key(self._encoded[name])

    def _looked(self, name: Any, key: Any) -> Any:
        data = self._encoded[name] = self._own(key)
        found = self._store.get(data)
        value = self._values[name] = _Gone if found is None else self._serde.deserialize(found)
        return value

    def _own(self, key: Any) -> bytes:
        data = encode_key(key)
        if not self._owns(data):
            message = (
                f"the key {key!r:.200} belongs to another task: use the values of the fields that"
                " the fields grouping goes by (of several fields a tuple)"
            )
            raise LookupError(message)
        return data


def _name(key: Any) -> Any:
    """Return a form of a key that differs even where Python calls two keys equal."""
    kind = type(key)
    if kind is str:
        return key
    return (kind, key) if kind in _SIMPLE else encode_key(key)


class KeyValueProcessor(TuplesRunner[KeyValueBoltNode]):
    """Runs the tasks of a key-value bolt."""

    layout: ClassVar[Any] = KeyRangeLayout()

    def __init__(self, operator: KeyValueBoltNode, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._states: dict[int, KeyValues] = {}

    @property
    def parallelism(self) -> int:
        """How many tasks the bolt has: one in every partition at least."""
        return key_value_tasks(self.operator.parallelism, self.context.partitions)

    def run(self, inputs: Mapping[int, Chunk], watermarks: Sequence[Watermark]) -> Chunk:
        """Execute the tuples of each task, whose keys are looked up all at once."""
        for port, chunk in inputs.items():
            self._fetch(port, chunk)
        return super().run(inputs, watermarks)

    def instance(self, task: int) -> Instance:
        """Return the instance of a task with its state."""
        if task not in self.begun:
            instance = self.context.instances.begin(
                self.place(task), lambda: BoltOutput(self.operator), acks=True
            )
            instance.user.state = self._state(task)
            self.begun[task] = instance
        return self.begun[task]

    def finish(self) -> Chunk:
        """End the batch of every task, also of those that got no tuple."""
        for task in self.tasks:
            instance = self.instance(task)
            instance.call("finish_batch")
            self.collect(instance)
            self._keep(instance)
            instance.finish()
        return self._handed()

    def _keep(self, instance: Instance) -> None:
        own = self.operator
        try:
            instance.user.state.keep()
        except Exception as error:
            raise SerializationError(
                f"a value of key-value bolt '{own.name}', task {instance.place.task}, cannot be"
                f" written ({own.value_serde!r}): {type(error).__name__}: {error}",
                hint=f"it was added at {own.origin}; store what its serde writes",
            ) from error
        instance.user.state = {}

    def _state(self, task: int) -> KeyValues:
        if task not in self._states:
            operator, partitions = self.operator, self.context.partitions

            def owns(key: bytes) -> bool:
                ranges = np.array([key_hash(key) % operator.ranges])
                own = task_of_ranges(ranges, partitions, self.parallelism)
                return int(ranges[0]) % partitions == self.partition and int(own[0]) == task

            store = self.context.store(operator)
            self._states[task] = KeyValues(store, operator.value_serde, owns)
        return self._states[task]

    def _fetch(self, port: int, chunk: Chunk) -> None:
        grouping = self.operator.groupings[port]
        if grouping.kind != "fields" or not len(chunk):
            return
        assert chunk.targets is not None, "a bolt with state is always shuffled to"
        keys = list(map(key_getter(grouping.fields), chunk.values))
        for task in np.unique(chunk.targets).tolist():
            picks = np.flatnonzero(chunk.targets == task).tolist()
            try:
                self._state(task).fetch([keys[at] for at in picks])
            except DeserializationError as error:
                raise damaged_state(self.operator, error) from error


# Processors at the two ends of components: records become tuples, tuples go to a bolt.


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
    """Return what makes the values of a tuple out of a record's value.

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


#: A task whose batches follow each other at once emits for so long, s.
_LONGEST_TURN = 1.0


class SpoutProcessor(ComponentProcessor[Spout]):
    """Runs the tasks of a spout."""

    layout = TaskLayout()

    def __init__(self, operator: Spout, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._states = StatefulTasks(self)
        self._emitted = 0

    def process(self, chunk: Chunk) -> Chunk:
        """Return what comes: nothing does."""
        return chunk

    def finish(self) -> Chunk:
        """Let every task emit its part of the batch, and keep its state."""
        given: dict[str, list[Chunk]] = defaultdict(list)
        before = self._emitted
        for task in self.tasks:
            instance = self._states.begin(task, SpoutOutput)
            self._emit(instance)
            output: SpoutOutput = instance.output
            busy = output.emitted > 0
            self._states.finish(task, instance, busy=busy)
            for stream, chunk in self._taken(task, output).items():
                given[stream].append(chunk)
        if self.tasks:
            clock = self.context.wall_clock
            self.due = clock if self._emitted > before else clock + self.operator.delay_ms
        return self.hand_over(given)

    def _emit(self, instance: Instance) -> None:
        """Ask for tuples until the batch is full, the spout has none or ends it, or time is up."""
        output: SpoutOutput = instance.output
        most = self.operator.batch_size or float("inf")
        ends = time.monotonic() + (self.operator.delay_ms / 1000 or _LONGEST_TURN)
        next_tuple = instance.user.next_tuple
        try:
            while True:
                before = output.emitted
                next_tuple(output)
                if output.emitted == before or output.emitted >= most or output.barrier:
                    break
                if output.failed is not None or time.monotonic() >= ends:
                    break
        except Exception as error:
            raise instance.failure("next_tuple", error) from error
        instance.check("next_tuple")

    def _taken(self, task: int, output: SpoutOutput) -> dict[str, Chunk]:
        count = max(output.emitted, 1)
        first = spout_mark(self.partition) + self._emitted
        times = np.full(count, self.context.wall_clock, np.int64)
        taken = output.taken(times, np.arange(first, first + count), task)
        self._emitted += output.emitted
        counters = self.context.counters
        counters["records_in"] = counters.get("records_in", 0) + output.emitted
        return taken


# Which processor runs which operator of spouts and bolts.

#: Operator to processor.
BOLTS: Mapping[type[Operator], type[Processor[Any]]] = {
    Bolt: BoltProcessor,
    KeyValueBoltNode: KeyValueProcessor,
    Spout: SpoutProcessor,
    StatefulBoltNode: StatefulBoltProcessor,
    Subscription: SubscriptionProcessor,
    Tuples: TuplesProcessor,
}
