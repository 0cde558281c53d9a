"""What is due: the scheduler without a broker."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from headrace.broker.delays import DeliveryProgress, Scheduler, delayed, parse_levels
from headrace.broker.drafts import Draft
from headrace.errors import MessageRejectedError, SettingsError

LEVELS = (1000, 5000)


def parked(properties: dict[str, str], now: int = 100) -> Draft:
    draft = Draft(topic="t", queue_id=3, properties=properties)
    return delayed(draft, LEVELS, timedelta(seconds=60), now)


@pytest.mark.parametrize(
    ("properties", "queue", "due"),
    [
        ({"DELAY": "1"}, ("SCHEDULE_TOPIC_XXXX", 0), None),
        ({"DELAY": "99"}, ("SCHEDULE_TOPIC_XXXX", 1), None),
        ({"DELAY": "2", "TIMER_DELAY_MS": "7"}, ("SCHEDULE_TOPIC_XXXX", 1), None),
        ({"DELAY": "0"}, ("t", 3), None),
        ({"DELAY": "-1"}, ("t", 3), None),
        ({"TIMER_DELAY_SEC": "2"}, ("rmq_sys_wheel_timer", 0), "2100"),
        ({"TIMER_DELAY_MS": "60000"}, ("rmq_sys_wheel_timer", 0), "60100"),
        ({"TIMER_DELIVER_MS": "150"}, ("rmq_sys_wheel_timer", 0), "150"),
        ({"TIMER_DELIVER_MS": "100"}, ("t", 3), None),
        ({}, ("t", 3), None),
    ],
)
def test_message_waits_where_its_delay_says(
    properties: dict[str, str], queue: tuple[str, int], due: str | None
) -> None:
    draft = parked(properties)
    assert (draft.topic, draft.queue_id) == queue
    assert draft.properties.get("TIMER_OUT_MS") == due
    back = draft.unparked()
    assert (back.topic, back.queue_id) == ("t", 3)


@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
@pytest.mark.parametrize("value", ["60101", "x"])
def test_delay_that_is_too_long_or_no_number_is_refused(name: str, value: str) -> None:
    with pytest.raises(MessageRejectedError, match="timer message illegal"):
        parked({name: value}, now=99)


@pytest.mark.parametrize(
    ("text", "named"), [("1s 2", "level 2"), ("x", "level 1"), ("", "no delay level")]
)
def test_levels_that_cannot_be_are_named(text: str, named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        parse_levels(text)


def test_levels_are_due_in_the_order_of_their_offsets() -> None:
    scheduler = Scheduler(LEVELS)
    scheduler.stored(1, [(0, 100), (1, 200)])
    scheduler.stored(2, [(0, 50)])
    assert scheduler.next_due(now=300) == 1100
    assert len(scheduler.plan(now=1099, limit=9)) == 0
    plan = scheduler.plan(now=1100, limit=9)
    assert plan.levels == {1: (0, 1)}
    scheduler.delivered(plan)
    assert scheduler.next_due(now=1100) == 1200
    assert scheduler.plan(now=9000, limit=9).levels == {1: (1, 2), 2: (0, 1)}
    assert scheduler.wanted(1, 100) == (2, 99)


def test_limit_bounds_what_one_unit_delivers() -> None:
    scheduler = Scheduler(LEVELS)
    scheduler.stored(1, [(n, 0) for n in range(5)])
    scheduler.timers([(1, n) for n in range(5)], scanned=5)
    plan = scheduler.plan(now=9000, limit=7)
    assert (plan.levels, plan.timers) == ({1: (0, 5)}, [(1, 0), (1, 1)])
    scheduler.delivered(plan)
    assert scheduler.plan(now=9000, limit=7).timers == [(1, 2), (1, 3), (1, 4)]


def test_message_from_the_future_of_a_clock_that_was_put_back_is_due() -> None:
    scheduler = Scheduler(LEVELS)
    scheduler.stored(2, [(0, 90_000)])
    assert scheduler.plan(now=100, limit=9).levels == {2: (0, 1)}


def test_failed_delivery_is_due_again_after_a_restart() -> None:
    scheduler = Scheduler(LEVELS)
    scheduler.timers([(5, 0)], scanned=1)
    first = scheduler.plan(now=9000, limit=9)
    again = Scheduler(LEVELS, scheduler.progress)
    again.timers([(5, 0)], scanned=1)
    assert again.plan(now=9000, limit=9) == first


def test_offsets_that_are_gone_are_passed_over() -> None:
    scheduler = Scheduler(LEVELS)
    scheduler.lost(1, 7)
    scheduler.stored(1, [(6, 0), (7, 0)])
    assert scheduler.plan(now=9000, limit=9).levels == {1: (7, 8)}


def test_nothing_is_due_before_all_was_seen_again() -> None:
    progress = DeliveryProgress(scanned=3, cursor=(50, 0))
    scheduler = Scheduler(LEVELS, progress)
    scheduler.timers([(50, 0), (60, 1)], scanned=2)
    assert scheduler.plan(now=99, limit=9).timers == []
    scheduler.timers([(40, 2), (40, 3)], scanned=4)
    # Offset 2 was delivered before; offset 3 is new, though its time is past the cursor's.
    assert scheduler.plan(now=99, limit=9).timers == [(40, 3), (60, 1)]


def test_what_comes_late_goes_with_the_next_progress_whatever_the_limit() -> None:
    scheduler = Scheduler(LEVELS)
    scheduler.timers([(50, 0)], scanned=1)
    scheduler.delivered(scheduler.plan(now=60, limit=9))
    scheduler.timers([(10, 1), (20, 2), (55, 3)], scanned=4)
    plan = scheduler.plan(now=60, limit=1)
    assert plan.timers == [(10, 1), (20, 2)]
    assert plan.progress == DeliveryProgress(scanned=4, floor=1, cursor=(50, 0))


def test_restart_begins_where_nothing_waited() -> None:
    scheduler = Scheduler(LEVELS)
    scheduler.timers([(10, 0), (90, 1)], scanned=2)
    scheduler.delivered(scheduler.plan(now=60, limit=9))
    assert Scheduler(LEVELS, scheduler.progress).scanned == 0
    scheduler.delivered(scheduler.plan(now=90, limit=9))
    assert Scheduler(LEVELS, scheduler.progress).scanned == 2


@given(st.data())
def test_each_timer_is_delivered_once_whatever_crashes(data: st.DataObject) -> None:
    """The log is what survives a crash, and so is the progress of the last delivery."""
    log: list[int] = []
    delivered: list[int] = []
    scheduler, now = Scheduler(LEVELS), 0
    for step in data.draw(st.lists(st.sampled_from("asdc"), max_size=60)):
        now += data.draw(st.integers(0, 3))
        if step == "a":
            log.append(now + data.draw(st.integers(-5, 20)))
        elif step == "s":
            first, count = scheduler.scanned, data.draw(st.integers(1, 4))
            found = [(max(due, 0), n) for n, due in enumerate(log)][first : first + count]
            scheduler.timers(found, first + len(found))
        elif step == "c":
            scheduler = Scheduler(LEVELS, scheduler.progress)
        else:
            plan = scheduler.plan(now, limit=data.draw(st.integers(1, 3)))
            assert all(due <= now for due, _ in plan.timers)
            if len(plan):
                delivered += [offset for _, offset in plan.timers]
                scheduler.delivered(plan)
    scheduler.timers([(max(due, 0), n) for n, due in enumerate(log)][scheduler.scanned :], len(log))
    while len(plan := scheduler.plan(now + 100, limit=3)):
        delivered += [offset for _, offset in plan.timers]
        scheduler.delivered(plan)
    assert sorted(delivered) == list(range(len(log)))
