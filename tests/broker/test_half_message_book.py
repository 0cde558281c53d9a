"""The state machine of half messages: when to ask, what has ended, what a restart must read."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from headrace.broker.half_messages.book import (
    Half,
    HalfMessageBook,
    HalfMessageState,
    Outcome,
    ReadProgress,
)

TIMEOUT, INTERVAL = 6_000, 30_000


def book_of(count: int, *, immunity: int | None = None) -> HalfMessageBook:
    book = HalfMessageBook(TIMEOUT, INTERVAL)
    for offset in range(count):
        book.prepared(Half(offset, 100 * offset, stored=1000 * offset, immunity=immunity))
    return book


def due(book: HalfMessageBook, now: int) -> list[tuple[int, int]]:
    return [(half.offset, checks) for half, checks in book.due(now)]


@pytest.mark.parametrize(("immunity", "first"), [(None, TIMEOUT), (60_000, 60_000), (1_000, 1_000)])
def test_a_producer_is_asked_after_the_timeout_or_its_own_immunity(
    immunity: int | None, first: int
) -> None:
    book = book_of(1, immunity=immunity)
    assert due(book, first - 1) == []
    assert book.next_due() == first
    assert due(book, first) == [(0, 0)]


def test_it_is_asked_again_after_the_interval_until_it_answers() -> None:
    book = book_of(1)
    for number in range(3):
        now = TIMEOUT + number * INTERVAL
        assert due(book, now - 1) == []
        assert due(book, now) == [(0, number)]
        book.checked({0: number + 1}, now, marks=number + 1)
    book.end(0)
    assert book.next_due() is None
    book.ended([0], Outcome.ROLLED_BACK, marks=4)
    assert due(book, 1 << 40) == []


def test_checks_come_in_the_order_they_are_due_and_so_many_at_once() -> None:
    book = book_of(5)
    assert [half.offset for half, _ in book.due(1 << 40, limit=2)] == [0, 1]
    assert [half.offset for half, _ in book.due(1 << 40)] == [2, 3, 4]


@pytest.mark.parametrize("outcome", list(Outcome))
def test_an_end_is_remembered(outcome: Outcome) -> None:
    book = book_of(2)
    assert book.standing(1) is HalfMessageState.OPEN
    book.end(1)
    assert book.standing(1) is HalfMessageState.ENDING
    book.ended([1], outcome, marks=1)
    assert book.standing(1) is outcome
    assert book.standing(2) is HalfMessageState.UNKNOWN
    assert book.standing(-1) is HalfMessageState.UNKNOWN


def test_an_end_that_could_not_be_written_leaves_it_open_and_due() -> None:
    book = book_of(1)
    assert due(book, TIMEOUT) == [(0, 0)]
    book.end(0)
    book.failed(0)
    assert book.standing(0) is HalfMessageState.OPEN
    assert due(book, TIMEOUT) == [(0, 0)]


def test_progress_stops_at_the_oldest_open_half_message() -> None:
    book = book_of(4)
    book.ended([0, 2, 3], Outcome.COMMITTED, marks=2)
    assert book.progress == ReadProgress(halves=1, marks=0)
    book.ended([1], Outcome.COMMITTED, marks=3)
    assert book.progress == ReadProgress(halves=4, marks=3)


def test_half_messages_that_the_log_lost_are_forgotten() -> None:
    book = book_of(3)
    book.lost(2)
    assert (book.standing(0), book.standing(2)) == (HalfMessageState.PAST, HalfMessageState.OPEN)
    assert book.progress.halves == 2
    fresh = HalfMessageBook(TIMEOUT, INTERVAL)
    fresh.lost(7)
    assert fresh.seen == 7


def test_old_ends_are_forgotten_but_not_those_that_a_restart_needs() -> None:
    book = HalfMessageBook(TIMEOUT, INTERVAL)
    for offset in range(200_000):
        book.prepared(Half(offset, 0, stored=0))
        book.ended([offset], Outcome.COMMITTED, marks=offset + 1)
    assert book.standing(0) is HalfMessageState.PAST
    assert book.standing(199_000) is Outcome.COMMITTED


def read_again(
    progress: ReadProgress, halves: list[Half], marks: list[tuple[int, Outcome | int]]
) -> HalfMessageBook:
    """Read the two queues from where an earlier book stood, as a broker does at its start."""
    book = HalfMessageBook(TIMEOUT, INTERVAL, progress)
    for half in halves[book.seen :]:
        book.prepared(half)
    for number, (offset, mark) in enumerate(marks):
        if number < progress.marks:
            continue
        if isinstance(mark, Outcome):
            book.ended([offset], mark, marks=number + 1)
        else:
            book.checked({offset: mark}, number, marks=number + 1)
    return book


@given(st.data())
def test_restarts_find_what_is_open_from_any_progress_before(data: st.DataObject) -> None:
    """Whatever was saved last, reading on from there gives the same book, again and again."""
    book = HalfMessageBook(TIMEOUT, INTERVAL)
    halves: list[Half] = []
    marks: list[tuple[int, Outcome | int]] = []
    saved = [book.progress]
    for step in [*data.draw(st.lists(st.sampled_from("ppeecsr"), max_size=40)), "r"]:
        ended = {offset for offset, mark in marks if isinstance(mark, Outcome)}
        still = [half.offset for half in halves if half.offset not in ended]
        if step == "p":
            halves.append(Half(len(halves), len(halves), stored=len(halves)))
            book.prepared(halves[-1])
        elif step == "s":
            saved.append(book.progress)
        elif step == "r":
            saved = saved[: data.draw(st.integers(1, len(saved)))]
            book = read_again(saved[-1], halves, marks)
            asked = {offset: sum(each == offset for each, _ in marks) for offset in still}
            assert sorted(due(book, 1 << 40)) == sorted(asked.items())
            book = read_again(saved[-1], halves, marks)
        elif still:
            offset = data.draw(st.sampled_from(still))
            if step == "e":
                outcome = data.draw(st.sampled_from(Outcome))
                marks.append((offset, outcome))
                book.ended([offset], outcome, marks=len(marks))
            else:
                times = sum(each == offset for each, _ in marks) + 1
                marks.append((offset, times))
                book.checked({offset: times}, len(marks) - 1, marks=len(marks))
