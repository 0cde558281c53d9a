"""The life of a connector or task, as a table: phase, event, next phase, actions."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from hypothesis import given, strategies as st

from headrace.connect.lifecycle import (
    Action,
    AskStop,
    Cancel,
    CancelDone,
    Cause,
    Ending,
    Event,
    Exited,
    Failed,
    Healthy,
    Kill,
    Launch,
    LaunchFailed,
    Phase,
    RecordState,
    Refuse,
    Release,
    Start,
    Started,
    StopAsked,
    Stopped,
    StopRaised,
    StopStep,
    Target,
    Tick,
    Unhealthy,
    UnitState,
    UnitTimeouts,
    WaitsFor,
    kafka_state,
    transition,
)
from headrace.connect.lifecycle.transition import LEGAL
from headrace.connect.naming import UnitId

LIMITS = UnitTimeouts(start=180, ask=5, cancel=3, kill=3, probes=3)
BOOM = Cause("boom", "Traceback: boom")
both_kinds = pytest.mark.parametrize(
    "fresh",
    [UnitState(id=UnitId("orders", 0, 7)), UnitState(id=UnitId("orders", None, 7))],
    ids=["task", "connector"],
)


#: An event and its time.
Timed = tuple[Event, float]


def after(unit: UnitState, *events: Timed) -> tuple[UnitState, list[Action]]:
    """Give the unit after some events, and the actions of the last one."""
    actions: tuple[Action, ...] = ()
    for event, at in events:
        unit, actions = transition(unit, event, at, LIMITS)
    return unit, list(actions)


def kinds(actions: list[Action]) -> list[str]:
    return [
        f"Record {action.unit.phase}" if isinstance(action, RecordState) else type(action).__name__
        for action in actions
    ]


def reached(phase: str) -> UnitState:
    """Give a unit in some situation."""
    unit = UnitState(id=UnitId("orders", 0, 7))
    return after(unit, *PATHS[phase])[0]


PATHS: dict[str, list[Timed]] = {
    "new": [],
    "pending": [(Start(), 0)],
    "pending, stop asked": [(Start(), 0), (StopAsked(), 1)],
    "pending, too late": [(Start(), 0), (Tick(), 180)],
    "running": [(Start(), 0), (Started(), 1)],
    "stopping": [(Start(), 0), (Started(), 1), (StopAsked(), 2)],
    "stopping, cancelled": [(Start(), 0), (Started(), 1), (StopAsked(), 2), (Tick(), 7)],
    "stopping, killed": [
        (Start(), 0), (Started(), 1), (StopAsked(), 2), (Tick(), 7), (Tick(), 10),
    ],
    "stopping, returned": [
        (Start(), 0), (Started(), 1), (StopAsked(), 2), (Stopped(), 3),
    ],
    "error": [(Start(), 0), (Started(), 1), (Failed(BOOM), 2)],
    "stopped": [
        (Start(), 0), (Started(), 1), (StopAsked(), 2), (Stopped(), 3), (Exited(0), 4),
    ],
    "error, gone": [(Start(), 0), (Failed(BOOM), 2), (Exited(1), 3)],
}  # fmt: skip

TABLE: list[tuple[str, Timed, Phase, list[str]]] = [
    ("new", (Start(), 9), Phase.PENDING, ["Record PENDING", "Launch"]),
    ("new", (StopAsked(), 9), Phase.NEW, ["Release"]),
    ("new", (Tick(), 9), Phase.NEW, []),
    ("pending", (Started(), 9), Phase.RUNNING, ["Record RUNNING"]),
    ("pending", (LaunchFailed(BOOM), 9), Phase.ERROR, ["Record ERROR", "Release"]),
    ("pending", (Failed(BOOM), 9), Phase.ERROR, ["Record ERROR", "AskStop"]),
    ("pending", (Exited(3), 9), Phase.ERROR, ["Record ERROR", "Release"]),
    ("pending", (StopAsked(), 9), Phase.PENDING, ["AskStop"]),
    ("pending", (StopAsked(force=True), 9), Phase.PENDING, ["Cancel", "Kill"]),
    ("pending", (Tick(), 179), Phase.PENDING, []),
    ("pending", (Tick(), 180), Phase.PENDING, ["AskStop"]),
    ("pending", (Unhealthy(), 9), Phase.PENDING, []),
    ("new", (WaitsFor("topic a"), 9), Phase.NEW, []),
    ("pending", (WaitsFor("topic a"), 9), Phase.PENDING, ["Record PENDING"]),
    ("running", (WaitsFor("topic a"), 9), Phase.RUNNING, ["Record RUNNING"]),
    ("running", (WaitsFor(""), 9), Phase.RUNNING, []),
    ("stopping", (WaitsFor("topic a"), 9), Phase.STOPPING, []),
    ("pending, stop asked", (Started(), 9), Phase.STOPPING,
     ["Record RUNNING", "Record STOPPING", "AskStop"]),
    ("pending, stop asked", (Failed(BOOM), 9), Phase.ERROR, ["Record ERROR"]),
    ("pending, stop asked", (Tick(), 6), Phase.PENDING, ["Cancel"]),
    ("pending, too late", (Started(), 181), Phase.PENDING, []),
    ("pending, too late", (Stopped(), 181), Phase.PENDING, []),
    ("pending, too late", (Tick(), 185), Phase.PENDING, ["Cancel"]),
    ("pending, too late", (Exited(0), 181), Phase.ERROR, ["Record ERROR", "Release"]),
    ("running", (Failed(BOOM), 9), Phase.ERROR, ["Record ERROR", "AskStop"]),
    ("running", (StopAsked(), 9), Phase.STOPPING, ["Record STOPPING", "AskStop"]),
    ("running", (StopAsked(force=True), 9), Phase.STOPPING, ["Record STOPPING", "Cancel", "Kill"]),
    ("running", (Stopped(), 9), Phase.STOPPING, ["Record STOPPING"]),
    ("running", (StopRaised(BOOM), 9), Phase.ERROR, ["Record ERROR", "AskStop"]),
    ("running", (Exited(None, 9), 9), Phase.ERROR, ["Record ERROR", "Release"]),
    ("running", (Tick(), 9e9), Phase.RUNNING, []),
    ("running", (Unhealthy(), 9), Phase.RUNNING, []),
    ("running", (Healthy(), 9), Phase.RUNNING, []),
    ("stopping", (Stopped(), 3), Phase.STOPPING, []),
    ("stopping", (StopRaised(BOOM), 3), Phase.ERROR, ["Record ERROR"]),
    ("stopping", (Failed(BOOM), 3), Phase.ERROR, ["Record ERROR"]),
    ("stopping", (Exited(0), 3), Phase.ERROR, ["Record ERROR", "Release"]),
    ("stopping", (StopAsked(), 3), Phase.STOPPING, []),
    ("stopping", (StopAsked(force=True), 3), Phase.STOPPING, ["Cancel", "Kill"]),
    ("stopping", (Tick(), 6.9), Phase.STOPPING, []),
    ("stopping", (Tick(), 7), Phase.STOPPING, ["Cancel"]),
    ("stopping", (Unhealthy(), 3), Phase.STOPPING, []),
    ("stopping, cancelled", (CancelDone(), 8), Phase.STOPPING, []),
    ("stopping, cancelled", (Tick(), 10), Phase.STOPPING, ["Kill"]),
    ("stopping, cancelled", (StopAsked(force=True), 8), Phase.STOPPING, ["Kill"]),
    ("stopping, killed", (Tick(), 13), Phase.STOPPING, ["Kill"]),
    ("stopping, killed", (StopAsked(force=True), 12), Phase.STOPPING, []),
    ("stopping, killed", (Exited(None, 9), 11), Phase.ERROR, ["Record ERROR", "Release"]),
    ("stopping, returned", (Exited(0), 4), Phase.STOPPED, ["Record STOPPED", "Release"]),
    ("stopping, returned", (Tick(), 6), Phase.STOPPING, ["Cancel"]),
    ("error", (Stopped(), 3), Phase.ERROR, []),
    ("error", (StopRaised(BOOM), 3), Phase.ERROR, []),
    ("error", (Exited(1), 3), Phase.ERROR, ["Record ERROR", "Release"]),
    ("error", (StopAsked(), 3), Phase.ERROR, []),
    ("error", (StopAsked(force=True), 3), Phase.ERROR, ["Cancel", "Kill"]),
    ("error", (Tick(), 7), Phase.ERROR, ["Cancel"]),
    ("stopped", (StopAsked(force=True), 9), Phase.STOPPED, []),
    ("stopped", (Tick(), 9e9), Phase.STOPPED, []),
    ("error, gone", (StopAsked(force=True), 9), Phase.ERROR, []),
    # What cannot happen is refused.
    ("new", (Started(), 9), Phase.NEW, ["Refuse"]),
    ("new", (Failed(BOOM), 9), Phase.NEW, ["Refuse"]),
    ("new", (Exited(0), 9), Phase.NEW, ["Refuse"]),
    ("new", (LaunchFailed(BOOM), 9), Phase.NEW, ["Refuse"]),
    ("pending", (Start(), 9), Phase.PENDING, ["Refuse"]),
    ("pending", (Stopped(), 9), Phase.PENDING, ["Refuse"]),
    ("pending", (StopRaised(BOOM), 9), Phase.PENDING, ["Refuse"]),
    ("running", (Start(), 9), Phase.RUNNING, ["Refuse"]),
    ("running", (Started(), 9), Phase.RUNNING, ["Refuse"]),
    ("running", (LaunchFailed(BOOM), 9), Phase.RUNNING, ["Refuse"]),
    ("stopping", (Started(), 9), Phase.STOPPING, ["Refuse"]),
    ("stopping, returned", (Stopped(), 9), Phase.STOPPING, ["Refuse"]),
    ("stopped", (Start(), 9), Phase.STOPPED, ["Refuse"]),
    ("stopped", (Failed(BOOM), 9), Phase.STOPPED, ["Refuse"]),
    ("stopped", (Exited(0), 9), Phase.STOPPED, ["Refuse"]),
    ("error, gone", (Started(), 9), Phase.ERROR, ["Refuse"]),
    ("error, gone", (Stopped(), 9), Phase.ERROR, ["Refuse"]),
]  # fmt: skip


@pytest.mark.requirement(34)
@pytest.mark.requirement(35)
@pytest.mark.requirement(36)
@pytest.mark.parametrize(("situation", "event", "phase", "actions"), TABLE)
def test_table(situation: str, event: Timed, phase: Phase, actions: list[str]) -> None:
    unit, done = after(reached(situation), event)
    assert unit.phase is phase
    assert kinds(done) == actions


@pytest.mark.requirement(32)
def test_there_are_six_phases() -> None:
    assert [phase.value for phase in Phase] == [
        "NEW", "PENDING", "RUNNING", "STOPPING", "STOPPED", "ERROR",
    ]  # fmt: skip


@pytest.mark.requirement(34)
@pytest.mark.requirement(38)
@both_kinds
def test_pending_is_recorded_before_the_process_is_made(fresh: UnitState) -> None:
    unit, actions = after(fresh, (Start(), 0))
    assert isinstance(actions[0], RecordState)
    assert isinstance(actions[1], Launch)
    assert unit.due == 180


@pytest.mark.requirement(26)
@pytest.mark.defect(2)
@both_kinds
def test_a_start_that_raises_shows_its_cause_at_once(fresh: UnitState) -> None:
    unit, actions = after(fresh, (Start(), 0), (Failed(BOOM), 1))
    assert unit.phase is Phase.ERROR
    assert isinstance(actions[0], RecordState)
    told = actions[0].unit
    assert (told.phase, told.cause, told.ending) == (Phase.ERROR, BOOM, Ending.RAISED)
    assert (told.forced, told.gone, told.waits_for) == (False, False, "")
    assert not unit.gone


@pytest.mark.requirement(25)
@pytest.mark.requirement(44)
@both_kinds
def test_a_start_that_hangs_is_forced_and_ends_in_error(fresh: UnitState) -> None:
    unit, _ = after(fresh, (Start(), 0))
    done: list[str] = []
    for at in (180, 185, 188):
        unit, actions = after(unit, (Tick(), at))
        done += kinds(actions)
    assert done == ["AskStop", "Cancel", "Kill"]
    assert unit.phase is Phase.PENDING
    unit, _ = after(unit, (Exited(None, 9), 189))
    assert (unit.phase, unit.forced, unit.gone) == (Phase.ERROR, True, True)
    assert unit.cause is not None
    assert "start()" in unit.cause.summary
    assert "in time: it may take 180 s" in unit.cause.summary


@pytest.mark.requirement(27)
@pytest.mark.requirement(40)
@pytest.mark.requirement(41)
@pytest.mark.requirement(45)
@pytest.mark.defect(1)
@both_kinds
def test_a_stop_that_hangs_goes_up_the_ladder(fresh: UnitState) -> None:
    unit, _ = after(fresh, (Start(), 0), (Started(), 1), (StopAsked(), 10))
    for at in (15, 18):
        unit, _ = after(unit, (Tick(), at))
    assert not unit.gone
    unit, actions = after(unit, (Exited(None, 9), 19))
    assert [(rung.step, rung.at) for rung in unit.rungs] == [
        (StopStep.ASK, 10), (StopStep.CANCEL, 15), (StopStep.KILL, 18), (StopStep.GONE, 19),
    ]  # fmt: skip
    assert kinds(actions) == ["Record ERROR", "Release"]
    assert (unit.forced, unit.ending) == (True, Ending.KILLED)
    assert unit.cause is not None
    assert "stop() of" in unit.cause.summary
    assert "killed after 8 s" in unit.cause.summary


@pytest.mark.requirement(45)
def test_kill_is_repeated_until_the_process_is_gone_and_nothing_is_released_before() -> None:
    unit = reached("stopping, killed")
    for at in range(13, 100, 3):
        unit, actions = after(unit, (Tick(), at))
        assert kinds(actions) == ["Kill"]
    assert len(unit.rungs) == 3
    assert not unit.gone


@pytest.mark.requirement(43)
@pytest.mark.parametrize("situation", ["pending", "running", "stopping", "error"])
def test_force_kills_at_once_whatever_the_unit_does(situation: str) -> None:
    unit, actions = after(reached(situation), (StopAsked(force=True), 3))
    assert kinds(actions)[-1] == "Kill"
    unit, _ = after(unit, (Exited(None, 9), 4))
    assert (unit.phase, unit.forced) == (Phase.ERROR, True)


@pytest.mark.requirement(42)
def test_a_stop_that_raises_keeps_its_cause() -> None:
    unit, _ = after(reached("stopping"), (StopRaised(BOOM), 3), (Exited(0), 4))
    assert (unit.phase, unit.cause, unit.forced) == (Phase.ERROR, BOOM, False)


@pytest.mark.requirement(47)
@pytest.mark.parametrize(
    ("situation", "events", "ending"),
    [
        ("stopping", [(Stopped(), 3), (Exited(0), 4)], Ending.RETURNED),
        ("stopping", [(StopRaised(BOOM), 3), (Exited(0), 4)], Ending.RAISED),
        ("running", [(Failed(BOOM), 3), (Exited(0), 4)], Ending.RAISED),
        ("stopping, cancelled", [(Stopped(), 8), (Exited(0), 9)], Ending.CANCELLED),
        ("stopping, killed", [(Exited(None, 9), 11)], Ending.KILLED),
        ("running", [(Exited(None, 9), 3)], Ending.DIED),
        ("pending", [(LaunchFailed(BOOM), 3)], Ending.DIED),
    ],
)
def test_endings_are_told_apart(situation: str, events: list[Timed], ending: Ending) -> None:
    unit, _ = after(reached(situation), *events)
    assert unit.ending is ending
    assert unit.gone


@pytest.mark.requirement(37)
@pytest.mark.parametrize(
    ("situation", "event", "text"),
    [
        ("running", (Exited(None, 9), 3), "was ended by SIGKILL .* while it was running"),
        ("running", (Exited(None, 11), 3), "was ended by SIGSEGV while"),
        ("running", (Exited(None, 99), 3), "was ended by signal 99"),
        ("pending", (Exited(3), 3), "ended with status 3 before start"),
        ("stopping", (Exited(), 3), "ended before stop"),
    ],
)
def test_a_process_that_died_by_itself_is_noticed_and_explained(
    situation: str, event: Timed, text: str
) -> None:
    unit, _ = after(reached(situation), event)
    assert unit.phase is Phase.ERROR
    assert unit.cause is not None
    assert re.search(text, unit.cause.summary)


@pytest.mark.requirement(30)
def test_three_failed_probes_in_a_row_make_error() -> None:
    unit = reached("running")
    no, yes = (Unhealthy("no answer"), 3), (Healthy(), 4)
    unit, _ = after(unit, no, no, yes, no, no)
    assert unit.phase is Phase.RUNNING
    unit, actions = after(unit, no)
    assert kinds(actions) == ["Record ERROR", "AskStop"]
    assert unit.cause is not None
    assert "failed 3 times in a row: no answer" in unit.cause.summary


def test_the_first_cause_stays_and_later_ones_are_told_below_it() -> None:
    unit, _ = after(reached("error"), (StopRaised(Cause("second", "Traceback: second")), 3))
    assert unit.cause == Cause("boom", "Traceback: boom\nand then: second\nTraceback: second")


def test_a_process_that_stays_after_stop_returned_is_killed_and_said_to_be() -> None:
    unit, _ = after(reached("stopping, returned"), (Tick(), 6), (Tick(), 9), (Exited(), 10))
    assert (unit.phase, unit.forced) == (Phase.ERROR, True)
    assert unit.cause is not None
    assert "its process stayed" in unit.cause.summary


@pytest.mark.requirement(36)
def test_a_stop_asked_for_while_starting_is_honoured_when_start_returns() -> None:
    unit, actions = after(reached("pending, stop asked"), (Started(), 3))
    assert kinds(actions) == ["Record RUNNING", "Record STOPPING", "AskStop"]
    assert unit.due == 8
    unit, _ = after(unit, (Stopped(), 4), (Exited(0), 5))
    assert unit.phase is Phase.STOPPED


@pytest.mark.requirement(36)
def test_what_is_refused_says_why_and_changes_nothing() -> None:
    unit = reached("stopped")
    again, actions = after(unit, (Started(), 9))
    assert again == unit
    assert actions == [Refuse(Started(), Phase.STOPPED, "task orders-0 is not starting")]


@pytest.mark.parametrize(
    ("phase", "target", "word"),
    [
        (Phase.NEW, Target.RUNNING, "UNASSIGNED"),
        (Phase.NEW, Target.STOPPED, "STOPPED"),
        (Phase.PENDING, Target.RUNNING, "UNASSIGNED"),
        (Phase.PENDING, Target.PAUSED, "UNASSIGNED"),
        (Phase.RUNNING, Target.RUNNING, "RUNNING"),
        (Phase.RUNNING, Target.PAUSED, "PAUSED"),
        (Phase.STOPPING, Target.STOPPED, "RUNNING"),
        (Phase.STOPPED, Target.STOPPED, "STOPPED"),
        (Phase.STOPPED, Target.RUNNING, "UNASSIGNED"),
        (Phase.ERROR, Target.RUNNING, "FAILED"),
        (Phase.ERROR, Target.PAUSED, "FAILED"),
        (Phase.ERROR, Target.STOPPED, "STOPPED"),
    ],
)
def test_kafkas_words(phase: Phase, target: Target, word: str) -> None:
    assert kafka_state(phase, target) == word


def events() -> st.SearchStrategy[Event]:
    plain: list[Any] = [
        Start, Started, Stopped, Unhealthy, Healthy, CancelDone, Exited, Tick,
    ]  # fmt: skip
    return st.one_of(
        st.sampled_from(plain).map(lambda kind: kind()),
        st.sampled_from([Failed, StopRaised, LaunchFailed]).map(lambda kind: kind(BOOM)),
        st.booleans().map(lambda force: StopAsked(force=force)),
    )


@pytest.mark.requirement(36)
@given(st.lists(st.tuples(events(), st.floats(0, 200)), max_size=40))
def test_whatever_happens_in_whatever_order(story: list[tuple[Event, float]]) -> None:
    unit, now = UnitState(id=UnitId("orders", 0, 7)), 0.0
    launched = released = False
    for event, pause in story:
        now += pause
        before = unit
        unit, actions = transition(before, event, now, LIMITS)
        path = [before.phase, *(one.unit.phase for one in actions if isinstance(one, RecordState))]
        for one, following in itertools.pairwise(path):
            assert following is one or following in LEGAL[one]
        assert path[-1] is unit.phase  # every change is recorded
        assert not (released and actions and not isinstance(actions[0], Refuse))
        if any(isinstance(one, (AskStop, Cancel, Kill)) for one in actions):
            assert launched
            assert not unit.gone
        launched |= any(isinstance(one, Launch) for one in actions)
        released |= any(isinstance(one, Release) for one in actions)
        assert released == unit.gone
        assert unit.phase is not Phase.STOPPED or (unit.gone and unit.stopped)
        assert unit.phase is not Phase.ERROR or unit.cause is not None
        assert not (unit.forced and unit.gone) or unit.phase is Phase.ERROR
        if any(isinstance(one, Refuse) for one in actions):
            assert unit == before


@pytest.mark.requirement(40)
@given(st.lists(st.tuples(events(), st.floats(0, 30)), max_size=20), st.booleans())
def test_whoever_is_asked_to_stop_is_killed_in_bounded_time(
    story: list[tuple[Event, float]], force: bool
) -> None:
    unit, now = UnitState(id=UnitId("orders", 0, 7)), 0.0
    for event, pause in story:
        now += pause
        unit, _ = transition(unit, event, now, LIMITS)
    unit, actions = transition(unit, StopAsked(force=force), now, LIMITS)
    asked = now
    killed = unit.step is StopStep.KILL
    while unit.alive and not killed:
        assert unit.due is not None
        now = max(now, unit.due)
        unit, actions = transition(unit, Tick(), now, LIMITS)
        killed = any(isinstance(one, Kill) for one in actions)
    bound = 0 if force else LIMITS.ask + LIMITS.cancel
    # Sums of floats are a little off.
    assert now - asked <= bound + 1e-6


def test_what_a_unit_waits_for_is_recorded_until_it_comes_or_the_unit_ends() -> None:
    waiting, actions = after(reached("running"), (WaitsFor("topic a"), 2))
    assert [one.unit.waits_for for one in actions if isinstance(one, RecordState)] == ["topic a"]
    assert waiting.phase is Phase.RUNNING
    assert after(waiting, (WaitsFor("topic a"), 3))[1] == []
    assert after(waiting, (WaitsFor(""), 3))[0].waits_for == ""
    assert after(waiting, (Failed(BOOM), 3))[0].waits_for == ""
    assert after(waiting, (StopAsked(), 3))[0].waits_for == ""


def test_a_start_that_waits_for_something_outside_has_no_limit_meanwhile() -> None:
    waiting, _ = after(reached("pending"), (WaitsFor("the database is away"), 9))
    waiting, actions = after(waiting, (Tick(), 9e9))
    assert (waiting.phase, actions) == (Phase.PENDING, [])
    back, _ = after(waiting, (WaitsFor(""), 9e9))
    assert back.due == 9e9 + LIMITS.start
    stopping, _ = after(reached("pending, stop asked"), (WaitsFor("the database is away"), 9))
    assert stopping.due is not None
