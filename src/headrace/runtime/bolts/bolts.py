"""Processors of bolts: their tasks take the tuples of a batch and emit others."""

from __future__ import annotations

import pickle
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec
import numpy as np
import orjson

from headrace.errors import HeadraceError, RollbackError, SerializationError
from headrace.keys import encode_key, encode_keys, key_hash, key_hashes
from headrace.runtime.bolts.instances import NO_TUPLE, BoltOutput, Instance
from headrace.runtime.bolts.states import (
    ComponentProcessor,
    StatefulTasks,
    TaskLayout,
    key_value_tasks,
    task_of_ranges,
)
from headrace.runtime.chunk import ANY_TASK, Chunk, Int64s
from headrace.runtime.control import BlockKind
from headrace.runtime.user_code import Original
from headrace.topology.operators.bolts import (
    Bolt,
    Grouping,
    KeyValueBoltNode,
    StatefulBoltNode,
    Subscription,
)
from headrace.topology.tuples import Tuple
from headrace.user_lines import user_line

if TYPE_CHECKING:
    from headrace.runtime.event_time.watermarks import Watermark
    from headrace.runtime.processors import Edge, ProcessorContext
    from headrace.topology import StagePlan


# Frames: tuples of one edge on their way to one partition, in columns.
#
# =============  ==================================================================
# part           what it holds
# =============  ==================================================================
# sender         partition that sends (8 bytes, big-endian), so that frames sort by it
# head           number of tuples (u32), how the values are written (u8)
# four columns   marks, times, emitting tasks, taking tasks: a byte that tells
#                whether one value stands for all, then i64 values
# values         MessagePack, or a pickle where that would not give back the same
# =============  ==================================================================

_SENDER_BYTES = 8
_HEAD = struct.Struct("<IB")
_PACKED, _PICKLED = 0, 1
_ONE, _MANY = b"\1", b"\0"
_INT64 = np.dtype("<i8")

#: Types that MessagePack reads back as they were.
_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[Any, ...]]).decode

Row = tuple[Any, ...]


class TupleFrame:
    """Tuples for the tasks of one partition.

    Parameters
    ----------
    rows
        The values of each tuple.
    columns
        Marks, times, emitting tasks and taking tasks.

    Examples
    --------
    >>> ones = np.ones(2, np.int64)
    >>> frame = TupleFrame([("to", 1), ("be", 2)], (ones, ones, ones, np.array([0, 2])))
    >>> chunk = unpack_frames([frame.pack(0)])
    >>> chunk.values, chunk.targets.tolist()
    ([('to', 1), ('be', 2)], [0, 2])
    """

    def __init__(self, rows: list[Row], columns: Sequence[Int64s]) -> None:
        self._rows = rows
        self._columns = columns

    def __len__(self) -> int:
        return len(self._rows)

    def pack(self, sender: int = 0) -> bytes:
        """Encode the frame, behind the number of the partition that sends it.

        Raises
        ------
        SerializationError
            A value is neither plain data nor can it be pickled.
        """
        form, values = _packed(self._rows)
        parts = [sender.to_bytes(_SENDER_BYTES, "big"), _HEAD.pack(len(self), form)]
        for column in self._columns:
            same = bool((column == column[0]).all())
            kept = column[:1] if same else column
            parts += (_ONE if same else _MANY, kept.astype(_INT64).tobytes())
        return b"".join([*parts, values])


def unpack_frames(payloads: Sequence[bytes]) -> Chunk:
    """Decode frames into one chunk, in the order of the marks; equal marks by their senders."""
    return Chunk.merge([_unpacked(payload) for payload in sorted(payloads)])


def _unpacked(payload: bytes) -> Chunk:
    count, form = _HEAD.unpack_from(payload, _SENDER_BYTES)
    at = _SENDER_BYTES + _HEAD.size
    columns = []
    for _ in range(4):
        same = payload[at : at + 1] == _ONE
        number = 1 if same else count
        column = np.frombuffer(payload, _INT64, number, at + 1)
        columns.append(np.repeat(column, count) if same else column)
        at += 1 + number * _INT64.itemsize
    data = memoryview(payload)[at:]
    # Pickles come from tasks of the same job, never from outside.
    values = _decode(data) if form == _PACKED else pickle.loads(data)  # noqa: S301
    marks, times, emitters, targets = columns
    return Chunk(None, values, times, marks, emitters=emitters, targets=targets)


def _packed(rows: list[Row]) -> tuple[int, bytes]:
    if _PLAIN.issuperset(map(type, chain.from_iterable(rows))):
        try:
            return _PACKED, _encode(rows)
        except (OverflowError, UnicodeEncodeError):
            pass
    try:
        return _PICKLED, pickle.dumps(rows, protocol=5)
    except Exception as error:
        raise _unpicklable(rows) from error


def _unpicklable(rows: list[Row]) -> SerializationError:
    for row in rows:
        for place, value in enumerate(row):
            try:
                pickle.dumps(value, protocol=5)
            except Exception as error:  # noqa: BLE001 - __reduce__ of any class may raise anything
                return SerializationError(
                    f"value {place} of the tuple {row!r:.200} cannot be sent to another task:"
                    f" {type(error).__name__}: {error}",
                    hint="emit plain data, or objects of classes that workers can import",
                )
    return SerializationError("tuples cannot be sent to another task")


# Groupings: which task takes a tuple, for many tuples at once.

#: Types of which equal values have equal encodings, as long as all are of one type.
_ALIKE = frozenset({str, int, bytes, bool, type(None)})


@dataclass(frozen=True, slots=True)
class Sending:
    """What tuples are sent by."""

    grouping: Grouping
    #: How many tasks may take them.
    tasks: int
    #: Where a sender begins to share tuples out.
    first: int = 0


def tasks_of(chunk: Chunk, sending: Sending) -> tuple[Chunk, Int64s]:
    """Choose the task of each tuple; a tuple may be left out, or come several times.

    :data:`~headrace.runtime.chunk.ANY_TASK` stands for all tasks.

    Raises
    ------
    ValueError
        A tuple names no task, or one that does not exist.
    """
    match sending.grouping.kind:
        case "shuffle" | "local_or_shuffle":
            return chunk, (np.arange(len(chunk)) + sending.first) % sending.tasks
        case "fields":
            hashes = hashes_of(chunk.values, sending.grouping.fields)
            return chunk, hashes % sending.tasks
        case "all":
            return chunk, np.full(len(chunk), ANY_TASK, np.int64)
        case "global":
            return chunk, np.zeros(len(chunk), np.int64)
        case "direct":
            return chunk, _named(chunk, sending)
        case "custom":
            return _chosen(chunk, sending)


def key_getter(fields: tuple[int, ...]) -> Callable[[Row], Any]:
    """Return what takes the key out of the values: of one field its value, of several a tuple.

    >>> key_getter((1,))(("a", "b")), key_getter((1, 0))(("a", "b"))
    ('b', ('b', 'a'))
    """
    return itemgetter(*fields)


def hashes_of(rows: Sequence[Row], fields: tuple[int, ...]) -> Int64s:
    """Hash the canonical bytes of some fields of each tuple, once per distinct value.

    Examples
    --------
    >>> hashes_of([("to",), ("be",), ("to",)], (0,)).tolist()
    [1068027680, 3286602729, 1068027680]
    """
    keys = list(map(key_getter(fields), rows))
    if not _are_alike(keys, several=len(fields) > 1):
        return key_hashes(encode_keys(keys)).astype(np.int64)
    table = _Hashes()
    return np.fromiter(map(table.__getitem__, keys), np.int64, len(keys))


class _Hashes(dict[Any, int]):
    """Hashes of keys, by key."""

    def __missing__(self, key: Any) -> int:
        found = self[key] = key_hash(encode_key(key))
        return found


def _are_alike(keys: list[Any], *, several: bool) -> bool:
    """Return whether keys that Python calls equal are the same key: 1, 1.0 and True are not."""
    columns = zip(*keys, strict=True) if several else (keys,)
    kinds = [set(map(type, column)) for column in columns]
    return all(len(found) == 1 and found <= _ALIKE for found in kinds)


def _named(chunk: Chunk, sending: Sending) -> Int64s:
    targets = chunk.targets
    if targets is None:
        targets = np.full(len(chunk), ANY_TASK, np.int64)
    wrong = np.flatnonzero((targets < 0) | (targets >= sending.tasks))
    if len(wrong):
        at = int(wrong[0])
        if targets[at] == ANY_TASK:
            message = f"the tuple {chunk.values[at]!r:.200} names no task: use emit_direct"
        else:
            message = f"task {targets[at]} was named; there are 0 to {sending.tasks - 1}"
        raise ValueError(message)
    return targets


def _chosen(chunk: Chunk, sending: Sending) -> tuple[Chunk, Int64s]:
    custom, tasks = sending.grouping.custom, sending.tasks
    assert custom is not None, "the front door takes no custom grouping without one"
    found: list[int] = []
    counts = np.zeros(len(chunk), np.intp)
    for at, row in enumerate(chunk.values):
        chosen = custom.choose(row, tasks)
        for task in chosen:
            if type(task) is not int or not 0 <= task < tasks:
                message = (
                    f"it chose task {task!r:.100} for {row!r:.200}; there are 0 to {tasks - 1}"
                )
                raise ValueError(message)
        found += chosen
        counts[at] = len(chosen)
    copies = [row for row, n in zip(chunk.values, counts.tolist(), strict=True) for _ in range(n)]
    return chunk.repeat(counts, copies), np.array(found, np.int64)


# Edges to bolts: tuples over a shuffle, a frame per partition.


class TupleEdge:
    """Sends tuples to the tasks that a grouping chooses.

    Parameters
    ----------
    bolt
        The bolt that takes them.
    port
        Number of the subscription that they come by.
    context
        The task that sends.
    """

    def __init__(self, bolt: Bolt, port: int, context: ProcessorContext) -> None:
        self._bolt = bolt
        self._port = port
        self._sender = context.partition
        self._batch = context.epoch_and_batch[1]
        self._chunks: list[Chunk] = []

    def add(self, chunk: Chunk) -> None:
        """Take tuples of the component that sends."""
        self._chunks.append(chunk)

    def flush(self, partitions: int) -> Iterator[tuple[BlockKind, int, TupleFrame]]:
        """Yield everything taken so far, by partition."""
        chunk = Chunk.merge(self._chunks)
        self._chunks = []
        if not len(chunk):
            return
        if chunk.emitters is None:
            chunk.emitters = np.full(len(chunk), self._sender, np.int64)
        chunk, tasks = self._tasks(chunk, partitions)
        for partition in range(min(partitions, self._count(partitions))):
            picks = np.flatnonzero((tasks == ANY_TASK) | (tasks % partitions == partition))
            if len(picks):
                yield BlockKind.TUPLES, partition, _frame(chunk, tasks, picks)

    def _count(self, partitions: int) -> int:
        bolt = self._bolt
        if isinstance(bolt, KeyValueBoltNode):
            return key_value_tasks(bolt.parallelism, partitions)
        return bolt.parallelism

    def _tasks(self, chunk: Chunk, partitions: int) -> tuple[Chunk, Int64s]:
        bolt, grouping = self._bolt, self._bolt.groupings[self._port]
        by_range = isinstance(bolt, KeyValueBoltNode) and grouping.kind == "fields"
        count = self._count(partitions)
        shares = bolt.ranges if isinstance(bolt, KeyValueBoltNode) and by_range else count
        try:
            sending = Sending(grouping, shares, self._sender + self._batch)
            chunk, tasks = tasks_of(chunk, sending)
        except SerializationError:
            raise
        except Exception as error:
            raise self._failure(error) from error
        return chunk, task_of_ranges(tasks, partitions, count) if by_range else tasks

    def _failure(self, error: Exception) -> RollbackError:
        bolt, line = self._bolt, user_line(error)
        return RollbackError(
            f"the {bolt.groupings[self._port].kind} grouping from '{bolt.parents[self._port]}' to"
            f" '{bolt.name}' failed in batch {self._batch}: {type(error).__name__}: {error}"
            + ("" if line is None else f"\n  at {line}"),
            hint=f"the bolt was added at {bolt.origin}; nothing of this batch was committed",
            component=bolt.name,
            batch=self._batch,
            line=line,
        )


def _frame(
    chunk: Chunk, tasks: Int64s, picks: np.ndarray[tuple[int], np.dtype[np.intp]]
) -> TupleFrame:
    assert chunk.emitters is not None, "set before tasks are chosen"
    if len(picks) == len(chunk):
        return TupleFrame(chunk.values, (chunk.marks, chunk.times, chunk.emitters, tasks))
    values = chunk.values
    rows = [values[at] for at in picks.tolist()]
    columns = (chunk.marks, chunk.times, chunk.emitters, tasks)
    return TupleFrame(rows, [column[picks] for column in columns])


# Tuples that came by the ports of a bolt, as each of its tasks takes them.


@dataclass(frozen=True, slots=True)
class TakenTuples:
    """The tuples of one task in the order of their marks."""

    tuples: Iterable[Tuple]
    times: Int64s
    marks: Int64s

    def __len__(self) -> int:
        return len(self.marks)


class TupleIntake:
    """Makes tuples of chunks, for the tasks that take them.

    Parameters
    ----------
    bolt
        The bolt.
    plan
        Knows the subscriptions that feed it.
    partition
        Where tuples are that no shuffle has brought.
    """

    def __init__(self, bolt: Bolt, plan: StagePlan, partition: int) -> None:
        self._ports = [_subscription(plan, name) for name in bolt.parents]
        self._partition = partition

    def by_task(
        self, inputs: Mapping[int, Chunk], tasks: range
    ) -> Iterator[tuple[int, TakenTuples]]:
        """Yield the tuples of each task that gets some; the first takes those that name none."""
        full = {port: _aimed(chunk, tasks) for port, chunk in inputs.items() if len(chunk)}
        if len(full) > 1:
            # Tuples of several ports are made first, and then brought into order.
            made = [
                chunk.with_values(list(self._tuples(port, chunk))) for port, chunk in full.items()
            ]
            yield from self._split(Chunk.merge(made), None, tasks)
        for port, chunk in full.items() if len(full) == 1 else ():
            yield from self._split(chunk, port, tasks)

    def _split(
        self, chunk: Chunk, port: int | None, tasks: range
    ) -> Iterator[tuple[int, TakenTuples]]:
        for task in tasks:
            own = chunk
            if chunk.targets is not None and len(tasks) > 1:
                mine = (chunk.targets == task) | (chunk.targets == ANY_TASK)
                if not mine.all():
                    own = chunk.take(np.flatnonzero(mine))
            if len(own):
                tuples = own.values if port is None else self._tuples(port, own)
                yield task, TakenTuples(tuples, own.times, own.marks)

    def _tuples(self, port: int, chunk: Chunk) -> Iterator[Tuple]:
        found = self._ports[port]
        emitters: Iterable[int] = repeat(self._partition)
        if chunk.emitters is not None:
            first = int(chunk.emitters[0])
            same = bool((chunk.emitters == first).all())
            emitters = repeat(first) if same else chunk.emitters.tolist()
        return map(
            Tuple,
            chunk.values,
            repeat(found.fields),
            repeat(found.source_component),
            emitters,
            repeat(found.stream),
        )


def _aimed(chunk: Chunk, tasks: range) -> Chunk:
    if chunk.targets is not None or len(tasks) == 1:
        return chunk
    return replace(chunk, targets=np.full(len(chunk), tasks[0], np.int64))


def _subscription(plan: StagePlan, name: str) -> Subscription:
    operators = (operator for stage in plan.stages for operator in stage.operators)
    found = next(operator for operator in operators if operator.name == name)
    assert isinstance(found, Subscription), "bolts are fed by subscriptions alone"
    return found


BoltT = TypeVar("BoltT", bound=Bolt)


class TuplesRunner(ComponentProcessor[BoltT]):
    """What processors of bolts have in common: tuples are executed task by task."""

    def __init__(self, operator: BoltT, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._intake = TupleIntake(operator, context.plan, self.partition)
        self._given: dict[str, list[Chunk]] = defaultdict(list)
        self._skips = operator.on_error != "fail"

    @classmethod
    def edge(cls, operator: Bolt, port: int, context: ProcessorContext) -> Edge:
        """Make the way to the bolt over a shuffle."""
        return TupleEdge(operator, port, context)

    def run(self, inputs: Mapping[int, Chunk], watermarks: Sequence[Watermark]) -> Chunk:
        """Execute the tuples of each task."""
        del watermarks
        for task, taken in self._intake.by_task(inputs, self.takers):
            self.execute(self.instance(task), taken)
        return self._handed()

    @property
    def takers(self) -> range:
        """The tasks that may take tuples here."""
        return self.tasks

    def instance(self, task: int) -> Instance:
        """Return the instance of a task, ready for tuples."""
        raise NotImplementedError

    def execute(self, instance: Instance, taken: TakenTuples) -> None:
        """Let a task execute tuples."""
        output: BoltOutput = instance.output
        execute = instance.user.execute
        tuples, one = iter(taken.tuples), None
        done = 0
        while done < len(taken):
            try:
                for output.cause, one in enumerate(tuples, done):
                    execute(one)
                done = len(taken)
            except Exception as error:  # noqa: BLE001 - users' code raises what it likes
                assert one is not None, "nothing but a tuple's execution raises here"
                done = output.cause + 1
                self._take_out(instance, int(taken.marks[output.cause]), one, error)
        output.cause = NO_TUPLE
        instance.check("execute")
        self.collect(instance, taken)

    def collect(self, instance: Instance, taken: TakenTuples | None = None) -> None:
        """Take what a task emitted; what no tuple caused has the last place."""
        time, mark = self.outside()
        if taken is not None:
            time, mark = np.append(taken.times, time), np.append(taken.marks, mark)
        for stream, chunk in instance.output.taken(time, mark, instance.place.task).items():
            self._given[stream].append(chunk)

    def _handed(self) -> Chunk:
        given, self._given = self._given, defaultdict(list)
        return self.hand_over(given)

    def _take_out(self, instance: Instance, mark: int, one: Tuple, error: Exception) -> None:
        """Raise what a tuple failed with, or follow the policy to go on without the tuple."""
        locator = self.context.locator
        passes = isinstance(error, HeadraceError) and error.retriable
        if not self._skips or passes:
            where = f" on a tuple of {locator.locate(mark)}" if mark >= 0 else ""
            raise instance.failure("execute", error, where) from error
        instance.output.forget_cause()
        if mark >= 0:
            locator.divert(self.operator, mark, error, user_line(error))
        else:
            # No message caused it: its values make one.
            body = orjson.dumps(one.values, default=repr, option=orjson.OPT_NON_STR_KEYS)
            original = Original("", 0, -1, body, b"", self.context.wall_clock)
            locator.divert_message(self.operator, original, error)


class BoltProcessor(TuplesRunner[Bolt]):
    """Runs the tasks of a bolt that keeps nothing."""

    @property
    def takers(self) -> range:
        """The tasks that may take tuples here: any stands in where no task of it belongs."""
        near = self.partition % self.parallelism
        return self.tasks or range(near, near + 1)

    def instance(self, task: int) -> Instance:
        """Return the instance of a task, prepared."""
        if task not in self.begun:
            self.begun[task] = self.context.instances.begin(
                self.place(task), lambda: BoltOutput(self.operator)
            )
        return self.begun[task]

    def finish(self) -> Chunk:
        """End the batch."""
        for instance in self.begun.values():
            instance.finish()
        return Chunk.empty()


class StatefulBoltProcessor(TuplesRunner[StatefulBoltNode]):
    """Runs the tasks of a bolt with one state each."""

    layout: ClassVar[Any] = TaskLayout()

    def __init__(self, operator: StatefulBoltNode, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._states = StatefulTasks(self)
        self._busy: set[int] = set()

    def instance(self, task: int) -> Instance:
        """Return the instance of a task, told all that comes before tuples."""
        return self._states.begin(task, BoltOutput)

    def execute(self, instance: Instance, taken: TakenTuples) -> None:
        """Let a task execute tuples."""
        self._busy.add(instance.place.task)
        super().execute(instance, taken)

    def finish(self) -> Chunk:
        """End the batch of every task, also of those that got no tuple."""
        for task in self.tasks:
            instance = self.instance(task)
            self._states.finish(task, instance, busy=task in self._busy)
            self.collect(instance)
        return self._handed()
