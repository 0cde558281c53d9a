"""Processors that users write: state, time to live, timers, children, errors."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace import (
    Context,
    Fired,
    Processor,
    Record,
    StreamBuilder,
    TopologyTestDriver,
    event_timer,
    list_state,
    map_state,
    serdes,
    value_state,
    wall_timer,
    window_state,
)
from headrace.errors import HeadraceError, TopologyError, UserCodeError
from headrace.runtime.low_level.processor import KeyedProcessProcessor
from headrace.topology import StateSpec, TimerSpec

START = datetime(2025, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)

Handle = Callable[[Any, Record[Any, Any]], None]
States = dict[str, StateSpec]


class Scripted(Processor[Any, Any, Any, Any]):
    """Does what a test says; everything declared is an attribute."""

    def __init__(
        self,
        handle: Handle,
        states: tuple[StateSpec, ...],
        timers: tuple[TimerSpec, ...],
        fire: Callable[[Any, Fired[Any]], None] | None = None,
    ) -> None:
        self.handle, self.states, self.timers, self.on_fire = handle, states, timers, fire

    def init(self, context: Context) -> None:
        self.context = context
        for spec in self.states:
            setattr(self, spec.name, getattr(context, spec.kind)(spec.name))
        for timer in self.timers:
            setattr(self, timer.name, context.timer(timer.name))

    def process(self, record: Record[Any, Any]) -> None:
        self.handle(self, record)

    def fire(self, timer: Fired[Any]) -> None:
        if self.on_fire is None:
            super().fire(timer)
        else:
            self.on_fire(self, timer)


def give(self: Any, key: Any, value: Any, time: datetime = START) -> None:
    self.context.forward(Record(key, value, time))


def driver_of(
    handle: Handle,
    *,
    states: tuple[StateSpec, ...] = (),
    timers: tuple[TimerSpec, ...] = (),
    fire: Callable[[Any, Fired[Any]], None] | None = None,
    **options: Any,
) -> TopologyTestDriver:
    builder = StreamBuilder("job")
    source = builder.source(
        "in", serdes.with_key(serdes.plain, of=object), allowed_lateness=timedelta(0)
    )
    source.process(
        lambda: Scripted(handle, states, timers, fire),
        states=states,
        timers=timers,
        name="own",
        **options,
    ).sink("out", serdes.plain)
    return TopologyTestDriver(builder.build(), partitions=2, start=START)


def send(
    driver: TopologyTestDriver, value: Any, *, key: Any = "k", at: float = 0.0
) -> list[tuple[Any, Any]]:
    driver.input("in", serdes.plain).send(value, key=key, time=START + at * SECOND)
    return results(driver)


def results(driver: TopologyTestDriver) -> list[tuple[Any, Any]]:
    return [(r.key, r.value) for r in driver.output("out", serdes.plain).read_all()]


def entries(driver: TopologyTestDriver) -> int:
    return sum(len(base.entries) for base in driver._job.state("own"))


def test_value_map_list_and_window_keep_what_was_written_for_the_key() -> None:
    def handle(self: Any, record: Record[Any, Any]) -> None:
        word = record.value
        self.last.put((self.last.get() or "") + word)
        self.seen.put(word, (self.seen.get(word) or 0) + 1)
        self.words.append(word)
        self.times.put(record.time, word)
        found = [word for _, word in self.times.before(START + 2 * SECOND)]
        give(self, record.key, [self.last.get(), dict(self.seen.items()), list(self.words), found])

    states = (
        value_state("last", serdes.string),
        map_state("seen", serdes.int),
        list_state("words"),
        window_state("times", serdes.string),
    )
    with driver_of(handle, states=states) as driver:
        assert send(driver, "b") == [("k", ["b", {"b": 1}, ["b"], ["b"]])]
        assert send(driver, "other", key="other") != []
        assert send(driver, "a", at=1) == [("k", ["ba", {"a": 1, "b": 1}, ["b", "a"], ["b", "a"]])]
        assert send(driver, "b", at=2) == [
            ("k", ["bab", {"a": 1, "b": 2}, ["b", "a", "b"], ["b", "a"]])
        ]


def test_what_is_deleted_leaves_nothing_behind() -> None:
    def handle(self: Any, record: Record[Any, Any]) -> None:
        if record.value == "clear":
            self.last.delete()
            for state in (self.seen, self.words, self.times):
                state.clear()
            self.late.clear(START + 100 * SECOND)
        else:
            self.last.put(1)
            self.seen.put("x", 1)
            self.words.append(1)
            self.times.put(START, 1)
            self.late.set(START + 100 * SECOND)

    states = (
        value_state("last", ttl=timedelta(days=1)),
        map_state("seen", ttl=timedelta(days=1)),
        list_state("words", ttl=timedelta(days=1)),
        window_state("times"),
    )
    with driver_of(handle, states=states, timers=(event_timer("late"),)) as driver:
        send(driver, "fill")
        assert entries(driver) > 5
        send(driver, "clear")
        assert entries(driver) == 0


def test_entries_end_by_event_time_since_their_last_write_and_leave_nothing_behind() -> None:
    def handle(self: Any, record: Record[Any, Any]) -> None:
        if record.value == "look":
            found = [self.last.get(), self.seen.get("x"), list(self.words), self.times.get(START)]
            give(self, record.key, found)
        elif record.value == "write":
            self.last.put(1)
            self.seen.put("x", 2)
            self.words.append(3)
            self.times.put(START, 4)

    ttl = 10 * SECOND
    states = (
        value_state("last", ttl=ttl),
        map_state("seen", ttl=ttl),
        list_state("words", ttl=ttl),
        window_state("times", ttl=ttl),
    )
    with driver_of(handle, states=states) as driver:
        send(driver, "write")
        send(driver, "write", at=5)
        send(driver, "nothing", at=12)
        assert send(driver, "look", at=14.8) == [("k", [1, 2, [3], 4])]
        # Time stands at 14.8 s; the next record finds it past the end of all.
        send(driver, "nothing", at=15)
        assert send(driver, "look", at=15) == [("k", [None, None, [], None])]
        assert entries(driver) == 0


def test_timers_fire_in_the_order_of_their_times_also_those_set_by_timers() -> None:
    def handle(self: Any, record: Record[Any, Any]) -> None:
        if record.value:
            for offset in (30, 10):
                self.tick.set(START + offset * SECOND)

    def fire(self: Any, timer: Fired[Any]) -> None:
        seconds = (timer.time - START) // SECOND
        give(self, timer.key, seconds, timer.time)
        if seconds == 10:
            self.tick.set(START + 20 * SECOND)
            self.tick.clear(START + 30 * SECOND)
            self.tick.set(START + 40 * SECOND)

    with driver_of(handle, timers=(event_timer("tick"),), fire=fire) as driver:
        assert send(driver, 1) == []
        assert send(driver, 0, key="other", at=9.9) == []
        assert send(driver, 0, key="other", at=35) == [("k", 10), ("k", 20)]
        assert send(driver, 0, key="other", at=40) == [("k", 40)]
        assert entries(driver) == 0


def test_timer_of_event_time_fires_at_the_next_step() -> None:
    def handle(self: Any, record: Record[Any, Any]) -> None:
        if record.value:
            self.tick.set(record.time + timedelta(milliseconds=1))

    def fire(self: Any, timer: Fired[Any]) -> None:
        give(self, timer.key, self.context.event_time.timestamp() - START.timestamp())

    timers = (event_timer("tick", step=timedelta(milliseconds=100)),)
    with driver_of(handle, timers=timers, fire=fire) as driver:
        send(driver, 1)
        assert send(driver, 0, at=0.099) == []
        assert send(driver, 0, at=0.1) == [("k", pytest.approx(0.1))]


def test_timer_of_the_wall_clock_fires_without_a_record() -> None:
    def handle(self: Any, record: Record[Any, Any]) -> None:
        self.poll.set(self.context.wall_clock + 60 * SECOND)

    def fire(self: Any, timer: Fired[Any]) -> None:
        give(self, timer.key, "polled", timer.time)

    with driver_of(handle, timers=(wall_timer("poll"),), fire=fire) as driver:
        send(driver, 1)
        driver.advance_wall_clock(59 * SECOND)
        assert results(driver) == []
        driver.advance_wall_clock(SECOND)
        assert results(driver) == [("k", "polled")]
        assert entries(driver) == 0


def test_context_of_a_record_is_its_own_defect_24() -> None:
    held: list[Record[Any, Any]] = []

    def handle(self: Any, record: Record[Any, Any]) -> None:
        held.append(record)
        self.context.forward(record.with_key("changed").with_time(START + 50 * SECOND))
        self.context.forward(record.with_value("own"))

    with driver_of(handle) as driver:
        assert send(driver, "a", at=3) == [("changed", "a"), ("k", "own")]
        send(driver, "b", at=4)
    assert [(r.key, r.value, r.time) for r in held] == [
        ("k", "a", START + 3 * SECOND),
        ("k", "b", START + 4 * SECOND),
    ]
    with pytest.raises(dataclasses.FrozenInstanceError):
        held[0].key = "x"  # type: ignore[misc]
    with pytest.raises(TypeError):
        held[0].headers["x"] = "y"  # type: ignore[index]


def test_headers_reach_the_processor_and_go_on_with_what_it_forwards() -> None:
    def handle(self: Any, record: Record[Any, Any]) -> None:
        self.context.forward(record.with_value(dict(record.headers)))

    with driver_of(handle) as driver:
        driver.input("in", serdes.plain).send(1, key="k", headers={"trace": "7"})
        (found,) = driver.output("out", serdes.plain).read_all()
    assert (found.value, found.headers) == ({"trace": "7"}, {"trace": "7"})


def test_children_get_what_is_forwarded_to_them() -> None:
    class Split(Processor[None, int, None, int]):
        def init(self, context: Context) -> None:
            self.context = context

        def process(self, record: Record[None, int]) -> None:
            self.context.forward(record, child="odd" if record.value % 2 else "")

    builder = StreamBuilder("job")
    parts = builder.source("in", serdes.int).process(Split, outputs=["odd"])
    parts.sink("even", serdes.int)
    parts.output("odd").sink("odd", serdes.int)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("in", serdes.int).pipe(range(5))
        assert [r.value for r in driver.output("even", serdes.int).read_all()] == [0, 2, 4]
        assert [r.value for r in driver.output("odd", serdes.int).read_all()] == [1, 3]
    with pytest.raises(TopologyError, match=r"no output 'even': it declares odd"):
        parts.output("even")


def test_record_that_fails_leaves_no_state_and_no_result_where_the_policy_is_to_skip() -> None:
    def handle(self: Any, record: Record[Any, Any]) -> None:
        self.total.put((self.total.get() or 0) + record.value)
        self.tick.set(START + record.value * SECOND)
        give(self, record.key, self.total.get())
        if record.value == 7:
            message = "no sevens"
            raise ValueError(message)

    with driver_of(
        handle,
        states=(value_state("total", ttl=timedelta(days=1)),),
        timers=(event_timer("tick"),),
        on_error="skip",
    ) as driver:
        with driver.batch():
            for value in (5, 7, 20):
                driver.input("in", serdes.plain).send(value, key="k", time=START)
        assert results(driver) == [("k", 5), ("k", 25)]
        assert driver.counters["skipped:own"] == 1
        # The value, its end, and the timers of 5 and 20.
        assert entries(driver) == 4


def test_error_names_operator_record_and_line() -> None:
    def handle(self: Any, record: Record[Any, Any]) -> None:
        record.value["missing"]

    with driver_of(handle) as driver, pytest.raises(UserCodeError) as caught:
        send(driver, {})
    assert re.search(r"(?s)'own' failed .*offset 0.*test_low_level.py", str(caught.value))


@pytest.mark.parametrize(
    ("handle", "problem"),
    [
        (lambda self, record: self.context.value("x"), "asks for value 'x', which it does not"),
        (lambda self, record: self.context.list("n"), "asks for list 'n', which it does not"),
        (lambda self, record: self.context.timer("x"), "asks for timer 'x', which it does not"),
        (lambda self, record: self.context.forward(record, "x"), "to child 'x', but has none"),
    ],
)
def test_what_is_not_declared_is_refused(handle: Handle, problem: str) -> None:
    with (
        driver_of(handle, states=(value_state("n"),)) as driver,
        pytest.raises(HeadraceError, match=problem),
    ):
        send(driver, 1)


def test_results_do_not_depend_on_how_batches_are_cut() -> None:
    def handle(self: Any, record: Record[Any, Any]) -> None:
        self.total.put((self.total.get() or 0) + 1)
        self.shut.set(record.time + 5 * SECOND)

    def fire(self: Any, timer: Fired[Any]) -> None:
        give(self, timer.key, (self.total.get(), (timer.time - START) // SECOND), timer.time)
        self.total.delete()

    def run(sizes: list[int]) -> list[tuple[Any, Any]]:
        sent = [(f"k{number % 3}", (number * 7) % 40 + number) for number in range(60)]
        states, timers = (value_state("total", ttl=17 * SECOND),), (event_timer("shut"),)
        with driver_of(handle, states=states, timers=timers, fire=fire) as driver:
            source = driver.input("in", serdes.plain)
            while sent:
                with driver.batch():
                    for key, at in sent[: sizes[0]]:
                        source.send(at, key=key, time=START + at * SECOND)
                sent, sizes = sent[sizes[0] :], sizes[1:] or sizes
            return sorted(results(driver), key=repr)

    whole = run([60])
    assert len(whole) > 10
    assert run([1]) == whole
    assert run([7, 13, 1, 20]) == whole


def test_every_entry_tells_its_record_key() -> None:
    def handle(self: Any, record: Record[Any, Any]) -> None:
        self.seen.put("x", 1)
        self.words.append(1)
        self.tick.set(START + 60 * SECOND)
        self.poll.set(START + 60 * SECOND)

    from headrace.keys import encode_key

    states = (map_state("seen", ttl=timedelta(days=1)), list_state("words"))
    timers = (event_timer("tick"), wall_timer("poll"))
    with driver_of(handle, states=states, timers=timers) as driver:
        send(driver, 1, key=("a", 1))
        found = [key for base in driver._job.state("own") for key in base.entries]
    assert len(found) == 6
    assert {KeyedProcessProcessor.layout.key_of(entry) for entry in found} == {encode_key(("a", 1))}


def test_processor_may_give_other_keys_and_state_behind_it_is_shuffled_to() -> None:
    builder = StreamBuilder("job")
    words = builder.source("in", serdes.string).key_by(str.lower)

    class Rekey(Processor[str, str, int, str]):
        def init(self, context: Context) -> None:
            self.context = context

        def process(self, record: Record[str, str]) -> None:
            self.context.value("last").put(record.value)
            self.context.forward(record.with_key(len(record.value)))

    counts = words.process(Rekey, states=[value_state("last")]).group_by_key().count()
    counts.to_stream().sink("out", serdes.int)
    topology = builder.build()
    assert len(topology.plan.stages) == 3
    with TopologyTestDriver(topology, partitions=4) as driver:
        driver.input("in", serdes.string).pipe(["a", "b", "cc", "d"])
        found = [(r.key, r.value) for r in driver.output("out", serdes.int).read_all()]
    assert found == [(1, 1), (1, 2), (2, 1), (1, 3)]


def test_what_cannot_work_is_refused_when_it_is_built() -> None:
    words = StreamBuilder("job").source("in", serdes.string)
    build: Any = words.process
    with pytest.raises(TopologyError, match="which belong to keys, and the records of 'source-in'"):
        build(lambda: None, states=[value_state("a")])
    with pytest.raises(TopologyError, match="declares 'a' twice"):
        build(lambda: None, states=[value_state("a")], timers=[wall_timer("a")])
    with pytest.raises(TopologyError, match="needs a class of processors"):
        build(Scripted)
