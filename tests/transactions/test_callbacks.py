"""Which callbacks tasks get, in which order and with what: R7 to R20, R35 and R36."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from headrace import TopologyTestDriver
from headrace.errors import RollbackError
from headrace.topology import Topology
from tests.transactions.automaton import judge
from tests.transactions.traced import Count, KeyedCount, Sentences, Split, Trace, words_of
from tests.transactions.wiring import Wiring


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return Trace(tmp_path)


def word_count(trace: Trace, *, limit: int | None = None, spouts: int = 1) -> Topology:
    wiring = Wiring().spout("spout", Sentences(trace, limit), spouts)
    wiring.bolt("split", Split(trace), ("spout", "local_or_shuffle"), tasks=2)
    wiring.bolt("count", Count(trace), ("split", "fields", ["word"]), tasks=2)
    return wiring.sink("out", "count", "counts").build()


@pytest.fixture
def driver(trace: Trace) -> Iterator[TopologyTestDriver]:
    with TopologyTestDriver(word_count(trace)) as made:
        yield made


def counted(driver: TopologyTestDriver) -> Counter[str]:
    total: Counter[str] = Counter()
    for counts in driver.state("count").all().values():
        total.update(counts)
    return total


def test_r7_a_new_task_begins_with_no_state_before_any_tuple(
    driver: TopologyTestDriver, trace: Trace
) -> None:
    driver.run_batches(1)
    for component, first in (("spout", "next_tuple"), ("count", "execute")):
        calls = trace.calls(component, 0)
        assert [call.name for call in calls[:3]] == ["prepare", "init_state", first]
        assert calls[1].state is None


def test_r8_and_r10_each_batch_is_finished_once_and_committed_with_what_that_gave(
    driver: TopologyTestDriver, trace: Trace
) -> None:
    driver.run_batches(3)
    assert trace.names("spout") == [
        "prepare()",
        "init_state()",
        "finish_batch()",
        "commit(1)",
        "ack_commit(1)",
        "finish_batch()",
        "commit(2)",
        "ack_commit(2)",
        "finish_batch()",
        "commit(3)",
    ]
    given = [call.state for call in trace.calls("spout") if call.name == "finish_batch"]
    kept = [call.state for call in trace.calls("spout") if call.name == "commit"]
    assert given == kept == [3, 6, 9]


def test_r9_a_task_without_a_tuple_ends_its_batch_too(trace: Trace) -> None:
    with TopologyTestDriver(word_count(trace, limit=0)) as driver:
        driver.run_batches(2)
    names = trace.names("count", 1)
    assert [name for name in names if name.startswith("commit")] == ["commit(1)", "commit(2)"]
    assert not [call for call in trace.calls("count") if call.name == "execute"]


def test_r11_what_commit_gets_is_kept_as_it_was(trace: Trace) -> None:
    with TopologyTestDriver(word_count(trace)) as driver:
        driver.run_batches(1)
        first = counted(driver)
        driver.run_batches(1)
        assert first == words_of(3)
        assert counted(driver) == words_of(6)


def test_r16_and_r20_every_stateful_task_hears_of_commits_and_no_other(
    driver: TopologyTestDriver, trace: Trace
) -> None:
    driver.run_batches(3)
    told = {(call.task, call.batch) for call in trace.calls() if call.name == "ack_commit"}
    tasks = [("spout", 0), ("count", 0), ("count", 1)]
    assert told == {(task, batch) for task in tasks for batch in (1, 2)}
    assert {call.name for call in trace.calls("split")} == {"prepare", "execute"}


@pytest.mark.parametrize(
    ("component", "callback"),
    [
        ("spout", "next_tuple"),
        ("spout", "finish_batch"),
        ("spout", "commit"),
        ("split", "execute"),
        ("count", "execute"),
        ("count", "finish_batch"),
        ("count", "commit"),
        ("count", "ack_commit"),
    ],
)
def test_r15_and_r35_a_failure_rolls_every_task_back_to_the_last_commit(
    driver: TopologyTestDriver, trace: Trace, component: str, callback: str
) -> None:
    driver.run_batches(2)
    trace.fail(component, callback)
    with pytest.raises(
        RollbackError, match=f"'{component}', task 0, batch 3: failed in {callback}"
    ):
        driver.run_batches(1)
    assert counted(driver) == words_of(6)
    driver.run_batches(2)
    assert counted(driver) == words_of(12)
    assert judge(trace.calls(), committed=4) == []
    for task in (("spout", 0), ("count", 0), ("count", 1)):
        rolled = [call for call in trace.calls(*task) if call.name == "roll_back"]
        assert len(rolled) == 1
        assert rolled[0].state == (6 if task[0] == "spout" else dict(rolled[0].state))
    back = [call.state for call in trace.calls("count") if call.name == "roll_back"]
    assert sum(map(Counter, back), Counter()) == words_of(6)


def test_r13_commit_fail_rolls_the_batch_back(driver: TopologyTestDriver, trace: Trace) -> None:
    driver.run_batches(1)
    (trace.folder / "count-refuse").touch()
    with pytest.raises(RollbackError, match="commit gave COMMIT_FAIL"):
        driver.run_batches(1)
    driver.run_batches(1)
    assert counted(driver) == words_of(6)


def test_r15_and_r43_a_failure_in_the_first_batch_resets_to_none(
    driver: TopologyTestDriver, trace: Trace
) -> None:
    trace.fail("count", "commit")
    with pytest.raises(RollbackError):
        driver.run_batches(1)
    driver.run_batches(1)
    rolled = [call for call in trace.calls() if call.name == "roll_back"]
    assert {call.task for call in rolled} == {("spout", 0), ("count", 0), ("count", 1)}
    assert {call.state for call in rolled} == {None}
    assert counted(driver) == words_of(3)
    assert judge(trace.calls(), committed=1) == []


def test_r36_a_copy_that_failed_is_dropped_and_the_others_go_back(
    driver: TopologyTestDriver, trace: Trace
) -> None:
    driver.run_batches(1)
    before = {call.instance for call in trace.calls("count", 0)}
    trace.fail("count", "commit", task=0)
    with pytest.raises(RollbackError):
        driver.run_batches(1)
    trace.forget()
    driver.run_batches(1)
    failed = [str(call) for call in trace.calls("count", 0) if call.instance in before]
    assert failed == ["cleanup()"]
    anew = [str(call) for call in trace.calls("count", 0) if call.instance not in before]
    assert anew[:4] == ["prepare()", "init_state()", "roll_back()", "ack_commit(1)"]
    # It heard of the commit before, in the batch that was rolled back.
    assert trace.names("spout")[:3] == ["roll_back()", "finish_batch()", "commit(2)"]


def test_error_names_component_task_batch_and_the_users_line(
    driver: TopologyTestDriver, trace: Trace
) -> None:
    trace.fail("count", "execute", task=1)
    with pytest.raises(RollbackError) as caught:
        driver.run_batches(1)
    error = caught.value
    assert (error.component, error.task, error.batch) == ("count", 1, 1)
    assert error.line is not None
    assert "traced.py" in error.line
    assert "job.py:7" in str(error)


def test_r19_a_spout_ends_its_batch_by_size_by_barrier_or_by_having_nothing(trace: Trace) -> None:
    endings = {
        "size": (Sentences(trace), {"batch_size": 4}, [4, 8]),
        "barrier": (Sentences(trace, barrier=2), {"batch_size": 100}, [2, 4]),
        "nothing": (Sentences(trace, limit=5), {"batch_size": 0}, [5, 5]),
    }
    for name, (spout, options, expected) in endings.items():
        trace.forget()
        wiring = Wiring().spout("spout", spout, **options)
        wiring.bolt("split", Split(trace), ("spout", "shuffle"))
        with TopologyTestDriver(wiring.build()) as driver:
            driver.run_batches(2)
        kept = [call.state for call in trace.calls("spout") if call.name == "commit"]
        assert kept == expected, name


def test_an_idle_spout_is_asked_again_after_its_delay(trace: Trace) -> None:
    with TopologyTestDriver(word_count(trace, limit=3)) as driver:
        driver.advance_wall_clock(timedelta(0))
        driver.advance_wall_clock(timedelta(0))
        assert [c.batch for c in trace.calls("spout") if c.name == "commit"] == [1, 2]
        driver.advance_wall_clock(timedelta(milliseconds=999))
        assert [c.batch for c in trace.calls("spout") if c.name == "commit"] == [1, 2]
        driver.advance_wall_clock(timedelta(milliseconds=1))
        assert [c.batch for c in trace.calls("spout") if c.name == "commit"] == [1, 2, 3]


def test_key_value_bolt_counts_and_hears_of_commits(trace: Trace) -> None:
    wiring = Wiring().spout("spout", Sentences(trace), 2)
    wiring.bolt("split", Split(trace), ("spout", "shuffle"), tasks=3)
    wiring.bolt("count", KeyedCount(trace), ("split", "fields", ["word"]), tasks=5)
    with TopologyTestDriver(wiring.build(), partitions=3) as driver:
        driver.run_batches(2)
        trace.fail("count", "execute", task=4)
        with pytest.raises(RollbackError):
            driver.run_batches(1)
        driver.run_batches(1)
        state = driver.state("count").all()
        assert state == {word: 2 * n for word, n in words_of(9).items()}
        assert driver.state("count").get("be") == state["be"]
    assert judge(trace.calls(), committed=3) == []
    tasks = {call.task[1] for call in trace.calls("count")}
    assert tasks == set(range(5))
    told = {(c.task[1], c.batch) for c in trace.calls("count") if c.name == "ack_commit"}
    assert told == {(task, batch) for task in range(5) for batch in (1, 2)}
