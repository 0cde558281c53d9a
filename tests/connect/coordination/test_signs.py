"""Who is lost, by signs of life, on a clock that is moved; and that all times fit into a minute."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.connect.assignment import Assignment, assign
from headrace.connect.coordination.members import SignsOfLife
from headrace.connect.log import ClusterView, ConnectorPut, fold
from headrace.connect.worker import WorkerSettings
from headrace.connect.worker.lease import WorkerLease, WorkerRights
from headrace.errors import SettingsError
from tests.connect.running import quick_settings

SETTINGS = WorkerSettings()
BEAT = SETTINGS.heartbeat_interval.total_seconds()
SESSION = SETTINGS.session_timeout.total_seconds()
DELAY = SETTINGS.rebalance_delay.total_seconds()
FENCE = SETTINGS.fence_after.total_seconds()
#: A coordinator looks at the members so often, and waits so long for the one before it, s.
LOOK = 2.0
#: What is left of the minute for connectors and tasks to start.
START = 8.0


class Time:
    """A clock, and two workers that give signs: `me`, who listens, and `other`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.signs = SignsOfLife("me", timeout=SESSION, clock=lambda: self.now)
        self.members = {"me", "other"}
        self.pass_by(10)

    def pass_by(self, seconds: float, *, me: bool = True, other: bool = True) -> None:
        """Let time pass in which these give signs."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + BEAT, end)
            for name, speaks in (("other", other), ("me", me)):
                if speaks:
                    self.signs.hear(name)

    def is_gone(self, **lost: float) -> bool:
        return "other" in self.signs.gone(self.members, lost)


def silent_for(seconds: float) -> Callable[[Time], None]:
    return lambda time: time.pass_by(seconds, other=False)


def i_stand_still(time: Time) -> None:
    time.pass_by(60, me=False, other=False)
    time.pass_by(BEAT, other=False)  # mine comes first


def the_broker_is_away_again_and_again(time: Time) -> None:
    for _ in range(5):
        time.pass_by(30, me=False, other=False)
        time.pass_by(BEAT)


def it_is_heard_before_it_is_listed(time: Time) -> None:
    time.members = {"me"}
    assert not time.is_gone()
    time.pass_by(60)
    time.members = {"me", "other"}


def it_comes_back(time: Time) -> None:
    time.pass_by(60, other=False)
    time.members = {"me"}
    assert not time.is_gone()
    time.members = {"me", "other"}


@pytest.mark.parametrize(
    ("happens", "gone"),
    [
        (silent_for(0), False),
        (silent_for(10 + BEAT), False),
        (silent_for(SESSION + BEAT), True),
        (i_stand_still, False),
        (the_broker_is_away_again_and_again, False),
        (it_is_heard_before_it_is_listed, False),
        (it_comes_back, False),
    ],
)
def test_a_member_is_gone_when_it_alone_is_silent(
    happens: Callable[[Time], None], *, gone: bool
) -> None:
    time = Time()
    assert not time.is_gone()
    happens(time)
    assert time.is_gone() is gone


def test_i_am_never_gone_myself_however_little_i_hear() -> None:
    time = Time()
    time.pass_by(300, me=False)
    assert time.signs.gone({"me", "other"}, {"me": time.now}) == set()


def test_whoever_all_count_as_lost_has_to_be_heard_of_after_that() -> None:
    time = Time()
    assert not time.is_gone()
    since = time.now + 0.5
    time.now += 1
    assert time.is_gone(other=since)
    time.signs.hear("other")
    assert not time.is_gone(other=since)


def test_a_worker_that_has_just_begun_believes_the_log_and_not_the_brokers() -> None:
    now = 5.0
    signs = SignsOfLife("new", timeout=SESSION, clock=lambda: now)
    listed = {"new", "silent"}
    assert signs.gone(listed, {"silent": 4.0}) == {"silent"}
    # A life that begins now is one, though its name was lost before.
    now = 6.0
    assert signs.gone({*listed, "joined"}, {"silent": 4.0, "joined": 4.0}) == {"silent"}


def test_what_a_worker_ran_that_is_cut_off_moves_within_a_minute_and_after_its_lease() -> None:
    time = Time()
    assert not time.is_gone()
    cut, lease = time.now, WorkerLease("other", fence=FENCE, delay=DELAY, clock=lambda: time.now)
    view, _ = fold(ClusterView(), ConnectorPut(request="a", name="a", config={}), 0)
    plan = assign(view, {"other"}, Assignment(), time.now, DELAY)
    asked_to_stop = over = None
    while plan.connectors == {"a": "other"}:
        time.pass_by(LOOK, other=False)
        standing = lease.standing()
        asked_to_stop = asked_to_stop or (time.now if standing is not WorkerRights.HELD else None)
        over = over or (time.now if standing is WorkerRights.OVER else None)
        alive = time.members - time.signs.gone(time.members)
        plan = assign(view, alive, plan, time.now, DELAY)
    moved = time.now
    assert asked_to_stop is not None
    assert over is not None
    # There is time to stop in order, and what is killed has gone before others begin.
    assert over - asked_to_stop >= SETTINGS.graceful_timeout.total_seconds() - LOOK
    assert over < moved - DELAY / 5
    assert moved - cut + LOOK + START <= 60


def test_a_restart_of_twenty_seconds_moves_nothing() -> None:
    view, _ = fold(ClusterView(), ConnectorPut(request="a", name="a", config={}), 0)
    first = assign(view, {"other"}, Assignment(), 0.0, DELAY)
    away = assign(view, {"me"}, first, 1.0, DELAY)
    assert assign(view, {"me"}, away, 1.0 + 20.0 + LOOK, DELAY).connectors == {"a": "other"}


def test_signs_that_are_too_rare_are_refused() -> None:
    with pytest.raises(SettingsError, match="because one sign of life came late"):
        quick_settings(heartbeat_interval="6 s")
