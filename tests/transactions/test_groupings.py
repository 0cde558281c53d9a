"""Which task takes a tuple: each grouping, over a shuffle and without one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from headrace import TopologyTestDriver
from headrace.errors import RollbackError
from headrace.keys import encode_key, key_hash
from headrace.runtime.bolts.bolts import Sending, hashes_of, tasks_of
from headrace.runtime.bolts.states import task_of_ranges, tasks_in
from headrace.runtime.chunk import ANY_TASK, Chunk
from headrace.topology import BoltCollector, Grouping, GroupingKind, TaskContext, Tuple
from headrace.transactions import Bolt, FieldsDeclarer, Spout
from tests.transactions.wiring import Wiring

TAKEN: list[tuple[str, int, Tuple]] = []


class Numbers(Spout):
    """Emits numbers, on two streams, directly where it is told to."""

    def __init__(self, count: int, *, direct: bool = False) -> None:
        self.count, self.direct = count, direct

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("number", "word", direct=self.direct)
        declarer.declare_stream("odd", "number")

    def init_state(self, state: Any) -> None:
        self.at = state or 0

    def next_tuple(self, collector: Any) -> None:
        if self.at == self.count:
            return
        values = [self.at, ("to", "be", "or")[self.at % 3]]
        if self.direct:
            collector.emit_direct(self.at % 5, values)
        else:
            collector.emit(values)
        if self.at % 2:
            collector.emit([self.at], stream="odd")
        self.at += 1

    def finish_batch(self) -> int:
        return self.at


class Take(Bolt):
    """Keeps what it takes."""

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        self.context = context

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - the name of the interface
        TAKEN.append((self.context.component, self.context.task, tuple))


class ByLength:
    """Sends a word to the task of its length, and 'or' to nobody."""

    def choose(self, values: tuple[Any, ...], tasks: int) -> Sequence[int]:
        return [] if values[1] == "or" else [len(values[1]) % tasks, 0]


def taken_by(
    kind: GroupingKind,
    more: Any = None,
    *,
    tasks: int = 5,
    partitions: int = 3,
    spouts: int = 1,
    direct: bool = False,
) -> dict[int, list[Any]]:
    """Run twelve numbers through a grouping; give what each task got."""
    TAKEN.clear()
    wiring = Wiring().spout("spout", Numbers(12, direct=direct), spouts, batch_size=0)
    given: Any = ("spout", kind) if more is None else ("spout", kind, more)
    wiring.bolt("take", Take(), given, tasks=tasks)
    with TopologyTestDriver(wiring.build(), partitions=partitions) as driver:
        driver.run_batches(1)
    found = defaultdict(list)
    for _, task, one in TAKEN:
        found[task].append(one[0])
    return dict(found)


def test_shuffle_shares_out_evenly() -> None:
    found = taken_by("shuffle")
    assert sorted(map(len, found.values())) == [2, 2, 2, 3, 3]
    assert sorted(number for got in found.values() for number in got) == list(range(12))


def test_local_or_shuffle_stays_with_the_task_that_emits() -> None:
    assert taken_by("local_or_shuffle") == {0: list(range(12))}
    # Each of two spouts has a bolt of its own beside it.
    assert taken_by("local_or_shuffle", spouts=2) == {0: list(range(12)), 1: list(range(12))}


def test_fields_grouping_sends_equal_values_to_one_task() -> None:
    found = taken_by("fields", ["word"])
    tasks = {word: key_hash(encode_key(word)) % 5 for word in ("to", "be", "or")}
    for number in range(12):
        assert number in found[tasks[("to", "be", "or")[number % 3]]]
    assert sum(map(len, found.values())) == 12


def test_fields_grouping_by_several_fields_goes_by_all_of_them() -> None:
    found = taken_by("fields", ["word", "number"])
    for number in range(12):
        key = (("to", "be", "or")[number % 3], number)
        assert number in found[key_hash(encode_key(key)) % 5]


def test_all_grouping_sends_a_copy_to_every_task() -> None:
    assert taken_by("all") == {task: list(range(12)) for task in range(5)}


def test_all_grouping_with_fewer_tasks_than_partitions() -> None:
    assert taken_by("all", tasks=2, partitions=4) == {0: list(range(12)), 1: list(range(12))}


def test_global_grouping_sends_all_to_task_0() -> None:
    assert taken_by("global") == {0: list(range(12))}


def test_direct_grouping_sends_to_the_task_that_the_emitter_named() -> None:
    found = taken_by("direct", direct=True)
    assert found == {task: [n for n in range(12) if n % 5 == task] for task in range(5)}


def test_direct_grouping_refuses_a_task_that_there_is_not() -> None:
    with pytest.raises(RollbackError, match="task 3 was named; there are 0 to 2"):
        taken_by("direct", tasks=3, direct=True)


def test_custom_grouping_chooses_any_number_of_tasks() -> None:
    found = taken_by("custom", ByLength())
    assert found == {
        0: [n for n in range(12) if n % 3 != 2],
        2: [n for n in range(12) if n % 3 != 2],
    }


def test_custom_grouping_that_chooses_a_task_that_there_is_not() -> None:
    class Wrong:
        def choose(self, values: tuple[Any, ...], tasks: int) -> Sequence[int]:
            return [tasks]

    with pytest.raises(RollbackError, match=r"it chose task 5 for .*; there are 0 to 4"):
        taken_by("custom", Wrong())


def test_streams_go_to_those_who_subscribed_to_them() -> None:
    TAKEN.clear()
    wiring = Wiring().spout("spout", Numbers(6), batch_size=0)
    wiring.bolt("all", Take(), ("spout", "shuffle"))
    wiring.bolt("odd", Take(), ("spout", "shuffle"), stream="odd")
    with TopologyTestDriver(wiring.build()) as driver:
        driver.run_batches(1)
    found = {name: [t[0] for own, _, t in TAKEN if own == name] for name in ("all", "odd")}
    assert found == {"all": list(range(6)), "odd": [1, 3, 5]}
    last = TAKEN[-1][2]
    assert (last.source_component, last.source_stream, last.fields) == ("spout", "odd", ("number",))


def test_tuples_know_the_task_that_emitted_them() -> None:
    TAKEN.clear()
    wiring = Wiring().spout("spout", Numbers(4), 3, batch_size=0)
    wiring.bolt("take", Take(), ("spout", "global"))
    with TopologyTestDriver(wiring.build(), partitions=2) as driver:
        driver.run_batches(1)
    assert Counter(t.source_task for _, _, t in TAKEN) == {0: 4, 1: 4, 2: 4}
    # Those of one task come in the order in which it emitted them.
    for task in range(3):
        assert [t["number"] for _, _, t in TAKEN if t.source_task == task] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "rows",
    [
        [(1,), (1.0,), (True,), ("1",), (None,)],
        [("a",), ("b",), ("a",)],
        [(2.5,), (-0.0,), (0.0,)],
        [((1, "a"),), ((1, "a"),)],
        [(2**70,), (-1,)],
    ],
)
def test_hashes_are_those_of_the_canonical_bytes(rows: list[tuple[Any, ...]]) -> None:
    assert hashes_of(rows, (0,)).tolist() == [key_hash(encode_key(row[0])) for row in rows]


def test_hashes_of_several_fields_tell_1_from_true() -> None:
    rows = [(1, "a"), (True, "a"), (1.0, "a")]
    expected = [key_hash(encode_key((row[1], row[0]))) for row in rows]
    assert hashes_of(rows, (1, 0)).tolist() == expected
    assert len(set(expected)) == 3


def test_all_names_every_task_once() -> None:
    none = np.zeros(2, np.int64)
    chunk = Chunk(None, [(1,), (2,)], none, none)
    assert tasks_of(chunk, Sending(Grouping("all"), 4))[1].tolist() == [ANY_TASK, ANY_TASK]


@pytest.mark.parametrize(("partitions", "tasks"), [(1, 1), (3, 3), (4, 6), (8, 256), (5, 7)])
def test_every_key_range_has_one_task_in_its_own_partition(partitions: int, tasks: int) -> None:
    ranges = np.arange(256)
    of = task_of_ranges(ranges, partitions, tasks)
    assert (of % partitions == ranges % partitions).all()
    assert set(of.tolist()) == {
        t for p in range(partitions) for t in tasks_in(p, partitions, tasks)
    }
