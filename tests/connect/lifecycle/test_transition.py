"""The life of a connector or task, as a table: phase, event, next phase, actions."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
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
    HostExited,
    HostFailed,
    HostStarted,
    HostStopped,
    Kill,
    Launch,
    LaunchFailed,
    Phase,
    ProbeFailed,
    ProbePassed,
    RecordState,
    Refuse,
    Release,
    Start,
    StopAsked,
    StopFailed,
    StopStep,
    Target,
    Tick,
    UnitState,
    UnitTimeouts,
    Waits,
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


def after(unit: UnitState, *events: Event) -> tuple[UnitState, list[Action]]:
    """Give the unit after some events, and the actions of the last one."""
    actions: tuple[Action, ...] = ()
    for event in events:
        unit, actions = transition(unit, event, LIMITS)
    return unit, list(actions)


def kinds(actions: list[Action]) -> list[str]:
    return [
        f"Record {action.phase}" if isinstance(action, RecordState) else type(action).__name__
        for action in actions
    ]


def reached(phase: str) -> UnitState:
    """Give a unit in some situation."""
    unit = UnitState(id=UnitId("orders", 0, 7))
    return after(unit, *PATHS[phase])[0]


PATHS: dict[str, list[Event]] = {
    "new": [],
    "pending": [Start(at=0)],
    "pending, stop asked": [Start(at=0), StopAsked(at=1)],
    "pending, too late": [Start(at=0), Tick(at=180)],
    "running": [Start(at=0), HostStarted(at=1)],
    "stopping": [Start(at=0), HostStarted(at=1), StopAsked(at=2)],
    "stopping, cancelled": [Start(at=0), HostStarted(at=1), StopAsked(at=2), Tick(at=7)],
    "stopping, killed": [
        Start(at=0), HostStarted(at=1), StopAsked(at=2), Tick(at=7), Tick(at=10),
    ],
    "stopping, returned": [
        Start(at=0), HostStarted(at=1), StopAsked(at=2), HostStopped(at=3),
    ],
    "error": [Start(at=0), HostStarted(at=1), HostFailed(BOOM, at=2)],
    "stopped": [
        Start(at=0), HostStarted(at=1), StopAsked(at=2), HostStopped(at=3), HostExited(0, at=4),
    ],
    "error, gone": [Start(at=0), HostFailed(BOOM, at=2), HostExited(1, at=3)],
}  # fmt: skip

TABLE: list[tuple[str, Event, Phase, list[str]]] = [
    ("new", Start(at=9), Phase.PENDING, ["Record PENDING", "Launch"]),
    ("new", StopAsked(at=9), Phase.NEW, ["Release"]),
    ("new", Tick(at=9), Phase.NEW, []),
    ("pending", HostStarted(at=9), Phase.RUNNING, ["Record RUNNING"]),
    ("pending", LaunchFailed(BOOM, at=9), Phase.ERROR, ["Record ERROR", "Release"]),
    ("pending", HostFailed(BOOM, at=9), Phase.ERROR, ["Record ERROR", "AskStop"]),
    ("pending", HostExited(3, at=9), Phase.ERROR, ["Record ERROR", "Release"]),
    ("pending", StopAsked(at=9), Phase.PENDING, ["AskStop"]),
    ("pending", StopAsked(force=True, at=9), Phase.PENDING, ["Cancel", "Kill"]),
    ("pending", Tick(at=179), Phase.PENDING, []),
    ("pending", Tick(at=180), Phase.PENDING, ["AskStop"]),
    ("pending", ProbeFailed(at=9), Phase.PENDING, []),
    ("new", Waits("topic a", at=9), Phase.NEW, []),
    ("pending", Waits("topic a", at=9), Phase.PENDING, ["Record PENDING"]),
    ("running", Waits("topic a", at=9), Phase.RUNNING, ["Record RUNNING"]),
    ("running", Waits("", at=9), Phase.RUNNING, []),
    ("stopping", Waits("topic a", at=9), Phase.STOPPING, []),
    ("pending, stop asked", HostStarted(at=9), Phase.STOPPING,
     ["Record RUNNING", "Record STOPPING", "AskStop"]),
    ("pending, stop asked", HostFailed(BOOM, at=9), Phase.ERROR, ["Record ERROR"]),
    ("pending, stop asked", Tick(at=6), Phase.PENDING, ["Cancel"]),
    ("pending, too late", HostStarted(at=181), Phase.PENDING, []),
    ("pending, too late", HostStopped(at=181), Phase.PENDING, []),
    ("pending, too late", Tick(at=185), Phase.PENDING, ["Cancel"]),
    ("pending, too late", HostExited(0, at=181), Phase.ERROR, ["Record ERROR", "Release"]),
    ("running", HostFailed(BOOM, at=9), Phase.ERROR, ["Record ERROR", "AskStop"]),
    ("running", StopAsked(at=9), Phase.STOPPING, ["Record STOPPING", "AskStop"]),
    ("running", StopAsked(force=True, at=9), Phase.STOPPING, ["Record STOPPING", "Cancel", "Kill"]),
    ("running", HostStopped(at=9), Phase.STOPPING, ["Record STOPPING"]),
    ("running", StopFailed(BOOM, at=9), Phase.ERROR, ["Record ERROR", "AskStop"]),
    ("running", HostExited(None, 9, at=9), Phase.ERROR, ["Record ERROR", "Release"]),
    ("running", Tick(at=9e9), Phase.RUNNING, []),
    ("running", ProbeFailed(at=9), Phase.RUNNING, []),
    ("running", ProbePassed(at=9), Phase.RUNNING, []),
    ("stopping", HostStopped(at=3), Phase.STOPPING, []),
    ("stopping", StopFailed(BOOM, at=3), Phase.ERROR, ["Record ERROR"]),
    ("stopping", HostFailed(BOOM, at=3), Phase.ERROR, ["Record ERROR"]),
    ("stopping", HostExited(0, at=3), Phase.ERROR, ["Record ERROR", "Release"]),
    ("stopping", StopAsked(at=3), Phase.STOPPING, []),
    ("stopping", StopAsked(force=True, at=3), Phase.STOPPING, ["Cancel", "Kill"]),
    ("stopping", Tick(at=6.9), Phase.STOPPING, []),
    ("stopping", Tick(at=7), Phase.STOPPING, ["Cancel"]),
    ("stopping", ProbeFailed(at=3), Phase.STOPPING, []),
    ("stopping, cancelled", CancelDone(at=8), Phase.STOPPING, []),
    ("stopping, cancelled", Tick(at=10), Phase.STOPPING, ["Kill"]),
    ("stopping, cancelled", StopAsked(force=True, at=8), Phase.STOPPING, ["Kill"]),
    ("stopping, killed", Tick(at=13), Phase.STOPPING, ["Kill"]),
    ("stopping, killed", StopAsked(force=True, at=12), Phase.STOPPING, []),
    ("stopping, killed", HostExited(None, 9, at=11), Phase.ERROR, ["Record ERROR", "Release"]),
    ("stopping, returned", HostExited(0, at=4), Phase.STOPPED, ["Record STOPPED", "Release"]),
    ("stopping, returned", Tick(at=6), Phase.STOPPING, ["Cancel"]),
    ("error", HostStopped(at=3), Phase.ERROR, []),
    ("error", StopFailed(BOOM, at=3), Phase.ERROR, []),
    ("error", HostExited(1, at=3), Phase.ERROR, ["Record ERROR", "Release"]),
    ("error", StopAsked(at=3), Phase.ERROR, []),
    ("error", StopAsked(force=True, at=3), Phase.ERROR, ["Cancel", "Kill"]),
    ("error", Tick(at=7), Phase.ERROR, ["Cancel"]),
    ("stopped", StopAsked(force=True, at=9), Phase.STOPPED, []),
    ("stopped", Tick(at=9e9), Phase.STOPPED, []),
    ("error, gone", StopAsked(force=True, at=9), Phase.ERROR, []),
    # What cannot happen is refused.
    ("new", HostStarted(at=9), Phase.NEW, ["Refuse"]),
    ("new", HostFailed(BOOM, at=9), Phase.NEW, ["Refuse"]),
    ("new", HostExited(0, at=9), Phase.NEW, ["Refuse"]),
    ("new", LaunchFailed(BOOM, at=9), Phase.NEW, ["Refuse"]),
    ("pending", Start(at=9), Phase.PENDING, ["Refuse"]),
    ("pending", HostStopped(at=9), Phase.PENDING, ["Refuse"]),
    ("pending", StopFailed(BOOM, at=9), Phase.PENDING, ["Refuse"]),
    ("running", Start(at=9), Phase.RUNNING, ["Refuse"]),
    ("running", HostStarted(at=9), Phase.RUNNING, ["Refuse"]),
    ("running", LaunchFailed(BOOM, at=9), Phase.RUNNING, ["Refuse"]),
    ("stopping", HostStarted(at=9), Phase.STOPPING, ["Refuse"]),
    ("stopping, returned", HostStopped(at=9), Phase.STOPPING, ["Refuse"]),
    ("stopped", Start(at=9), Phase.STOPPED, ["Refuse"]),
    ("stopped", HostFailed(BOOM, at=9), Phase.STOPPED, ["Refuse"]),
    ("stopped", HostExited(0, at=9), Phase.STOPPED, ["Refuse"]),
    ("error, gone", HostStarted(at=9), Phase.ERROR, ["Refuse"]),
    ("error, gone", HostStopped(at=9), Phase.ERROR, ["Refuse"]),
]  # fmt: skip


@pytest.mark.requirement(34)
@pytest.mark.requirement(35)
@pytest.mark.requirement(36)
@pytest.mark.parametrize(("situation", "event", "phase", "actions"), TABLE)
def test_table(situation: str, event: Event, phase: Phase, actions: list[str]) -> None:
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
    unit, actions = after(fresh, Start(at=0))
    assert isinstance(actions[0], RecordState)
    assert isinstance(actions[1], Launch)
    assert unit.due == 180


@pytest.mark.requirement(26)
@pytest.mark.defect(2)
@both_kinds
def test_a_start_that_raises_shows_its_cause_at_once(fresh: UnitState) -> None:
    unit, actions = after(fresh, Start(at=0), HostFailed(BOOM, at=1))
    assert unit.phase is Phase.ERROR
    assert actions[0] == RecordState(phase=Phase.ERROR, cause=BOOM, ending=Ending.RAISED)
    assert not unit.gone


@pytest.mark.requirement(25)
@pytest.mark.requirement(44)
@both_kinds
def test_a_start_that_hangs_is_forced_and_ends_in_error(fresh: UnitState) -> None:
    unit, _ = after(fresh, Start(at=0))
    done: list[str] = []
    for at in (180, 185, 188):
        unit, actions = after(unit, Tick(at=at))
        done += kinds(actions)
    assert done == ["AskStop", "Cancel", "Kill"]
    assert unit.phase is Phase.PENDING
    unit, _ = after(unit, HostExited(None, 9, at=189))
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
    unit, _ = after(fresh, Start(at=0), HostStarted(at=1), StopAsked(at=10))
    for at in (15, 18):
        unit, _ = after(unit, Tick(at=at))
    assert not unit.gone
    unit, actions = after(unit, HostExited(None, 9, at=19))
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
        unit, actions = after(unit, Tick(at=at))
        assert kinds(actions) == ["Kill"]
    assert len(unit.rungs) == 3
    assert not unit.gone


@pytest.mark.requirement(43)
@pytest.mark.parametrize("situation", ["pending", "running", "stopping", "error"])
def test_force_kills_at_once_whatever_the_unit_does(situation: str) -> None:
    unit, actions = after(reached(situation), StopAsked(force=True, at=3))
    assert kinds(actions)[-1] == "Kill"
    unit, _ = after(unit, HostExited(None, 9, at=4))
    assert (unit.phase, unit.forced) == (Phase.ERROR, True)


@pytest.mark.requirement(42)
def test_a_stop_that_raises_keeps_its_cause() -> None:
    unit, _ = after(reached("stopping"), StopFailed(BOOM, at=3), HostExited(0, at=4))
    assert (unit.phase, unit.cause, unit.forced) == (Phase.ERROR, BOOM, False)


@pytest.mark.requirement(47)
@pytest.mark.parametrize(
    ("situation", "events", "ending"),
    [
        ("stopping", [HostStopped(at=3), HostExited(0, at=4)], Ending.RETURNED),
        ("stopping", [StopFailed(BOOM, at=3), HostExited(0, at=4)], Ending.RAISED),
        ("running", [HostFailed(BOOM, at=3), HostExited(0, at=4)], Ending.RAISED),
        ("stopping, cancelled", [HostStopped(at=8), HostExited(0, at=9)], Ending.CANCELLED),
        ("stopping, killed", [HostExited(None, 9, at=11)], Ending.KILLED),
        ("running", [HostExited(None, 9, at=3)], Ending.DIED),
        ("pending", [LaunchFailed(BOOM, at=3)], Ending.DIED),
    ],
)
def test_endings_are_told_apart(situation: str, events: list[Event], ending: Ending) -> None:
    unit, _ = after(reached(situation), *events)
    assert unit.ending is ending
    assert unit.gone


@pytest.mark.requirement(37)
@pytest.mark.parametrize(
    ("situation", "event", "text"),
    [
        ("running", HostExited(None, 9, at=3), "was ended by SIGKILL .* while it was running"),
        ("running", HostExited(None, 11, at=3), "was ended by SIGSEGV while"),
        ("running", HostExited(None, 99, at=3), "was ended by signal 99"),
        ("pending", HostExited(3, at=3), "ended with status 3 before start"),
        ("stopping", HostExited(at=3), "ended before stop"),
    ],
)
def test_a_process_that_died_by_itself_is_noticed_and_explained(
    situation: str, event: Event, text: str
) -> None:
    unit, _ = after(reached(situation), event)
    assert unit.phase is Phase.ERROR
    assert unit.cause is not None
    assert re.search(text, unit.cause.summary)


@pytest.mark.requirement(30)
def test_three_failed_probes_in_a_row_make_error() -> None:
    unit = reached("running")
    no, yes = ProbeFailed("no answer", at=3), ProbePassed(at=4)
    unit, _ = after(unit, no, no, yes, no, no)
    assert unit.phase is Phase.RUNNING
    unit, actions = after(unit, no)
    assert kinds(actions) == ["Record ERROR", "AskStop"]
    assert unit.cause is not None
    assert "failed 3 times in a row: no answer" in unit.cause.summary


def test_the_first_cause_stays_and_later_ones_are_told_below_it() -> None:
    unit, _ = after(reached("error"), StopFailed(Cause("second", "Traceback: second"), at=3))
    assert unit.cause == Cause("boom", "Traceback: boom\nand then: second\nTraceback: second")


def test_a_process_that_stays_after_stop_returned_is_killed_and_said_to_be() -> None:
    unit, _ = after(reached("stopping, returned"), Tick(at=6), Tick(at=9), HostExited(at=10))
    assert (unit.phase, unit.forced) == (Phase.ERROR, True)
    assert unit.cause is not None
    assert "its process stayed" in unit.cause.summary


@pytest.mark.requirement(36)
def test_a_stop_asked_for_while_starting_is_honoured_when_start_returns() -> None:
    unit, actions = after(reached("pending, stop asked"), HostStarted(at=3))
    assert kinds(actions) == ["Record RUNNING", "Record STOPPING", "AskStop"]
    assert unit.due == 8
    unit, _ = after(unit, HostStopped(at=4), HostExited(0, at=5))
    assert unit.phase is Phase.STOPPED


@pytest.mark.requirement(36)
def test_what_is_refused_says_why_and_changes_nothing() -> None:
    unit = reached("stopped")
    again, actions = after(unit, HostStarted(at=9))
    assert again == unit
    assert actions == [Refuse(HostStarted(at=9), Phase.STOPPED, "task orders-0 is not starting")]


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
        Start, HostStarted, HostStopped, ProbeFailed, ProbePassed, CancelDone, HostExited, Tick,
    ]  # fmt: skip
    return st.one_of(
        st.sampled_from(plain).map(lambda kind: kind(at=0)),
        st.sampled_from([HostFailed, StopFailed, LaunchFailed]).map(lambda kind: kind(BOOM, at=0)),
        st.booleans().map(lambda force: StopAsked(force=force, at=0)),
    )


@pytest.mark.requirement(36)
@given(st.lists(st.tuples(events(), st.floats(0, 200)), max_size=40))
def test_whatever_happens_in_whatever_order(story: list[tuple[Event, float]]) -> None:
    unit, now = UnitState(id=UnitId("orders", 0, 7)), 0.0
    launched = released = False
    for event, pause in story:
        now += pause
        before = unit
        unit, actions = transition(before, replace(event, at=now), LIMITS)
        path = [before.phase, *(one.phase for one in actions if isinstance(one, RecordState))]
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
        unit, _ = transition(unit, replace(event, at=now), LIMITS)
    unit, actions = transition(unit, StopAsked(force=force, at=now), LIMITS)
    asked = now
    killed = unit.step is StopStep.KILL
    while unit.alive and not killed:
        assert unit.due is not None
        now = max(now, unit.due)
        unit, actions = transition(unit, Tick(at=now), LIMITS)
        killed = any(isinstance(one, Kill) for one in actions)
    bound = 0 if force else LIMITS.ask + LIMITS.cancel
    # Sums of floats are a little off.
    assert now - asked <= bound + 1e-6


def test_what_a_unit_waits_for_is_recorded_until_it_comes_or_the_unit_ends() -> None:
    waiting, actions = after(reached("running"), Waits("topic a", at=2))
    assert [action.waits_for for action in actions if isinstance(action, RecordState)] == [
        "topic a"
    ]
    assert waiting.phase is Phase.RUNNING
    assert after(waiting, Waits("topic a", at=3))[1] == []
    assert after(waiting, Waits("", at=3))[0].waits_for == ""
    assert after(waiting, HostFailed(BOOM, at=3))[0].waits_for == ""
    assert after(waiting, StopAsked(at=3))[0].waits_for == ""


def test_a_start_that_waits_for_something_outside_has_no_limit_meanwhile() -> None:
    waiting, _ = after(reached("pending"), Waits("the database is away", at=9))
    waiting, actions = after(waiting, Tick(at=9e9))
    assert (waiting.phase, actions) == (Phase.PENDING, [])
    back, _ = after(waiting, Waits("", at=9e9))
    assert back.due == 9e9 + LIMITS.start
    stopping, _ = after(reached("pending, stop asked"), Waits("the database is away", at=9))
    assert stopping.due is not None
