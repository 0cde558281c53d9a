"""What readers of committed messages get: tags and commit records in, messages out."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from headrace.protocol.journal_tags import (
    CommitHead,
    CommittedBatches,
    CommittedMessages,
    parse_tags,
)

# Tags in the order of the queue, what is committed, which are given, and what is waited for.
CASES: dict[str, tuple[list[str | None], dict[str, int], str, tuple[str, int] | None]] = {
    "messages without tags pass": ([None, None], {}, "++", None),
    "text that is no tag passes": (["mine", "j:x:1", ":1:1"], {}, "+++", None),
    "committed ones pass": (["j:1:0", "j:1:1", "j:2:0"], {"j": 2}, "+++", None),
    "a repetition is given once": (["j:1:0", "j:1:0", "j:1:1"], {"j": 1}, "+-+", None),
    "a whole batch a second time": (
        ["j:1:0", "j:1:1", "j:2:0", "j:1:0", "j:1:1", "j:2:1"], {"j": 2}, "+++--+", None,
    ),
    "an open batch is waited for": (["j:1:0", "j:2:0", "j:2:1"], {"j": 1}, "+", ("j", 2)),
    "those behind it wait, too": (["j:2:0", None, "j:1:5"], {"j": 1}, "", ("j", 2)),
    "an unknown job is waited for": ([None, "j:1:0"], {}, "+", ("j", 1)),
    "jobs do not mix": (["a:5:0", "b:1:0", "a:5:0", "b:1:1"], {"a": 5, "b": 1}, "++-+", None),
    "the first of two that wait": (["a:1:0", "b:9:0", "a:2:0"], {"a": 1, "b": 8}, "+", ("b", 9)),
    "a late repetition of an old batch": (["j:9:0", "j:3:7"], {"j": 9}, "+-", None),
    "nothing at all": ([], {}, "", None),
}  # fmt: skip


def tags_of(texts: list[str | None]) -> pa.BinaryArray:
    return pa.array([None if text is None else text.encode() for text in texts], pa.binary())


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    texts, committed, given_out, waits_for = CASES[name]
    judged = CommittedMessages().judge(parse_tags(tags_of(texts)), committed)
    assert "".join("+" if keep else "-" for keep in judged.keep) == given_out
    assert judged.waits_for == waits_for


def test_what_waits_is_judged_when_it_comes_again() -> None:
    queue = CommittedMessages()
    tags = parse_tags(tags_of(["j:1:0", "j:1:1"]))
    assert queue.judge(tags, {}).waits_for == ("j", 1)
    assert queue.judge(tags, {"j": 1}).keep.tolist() == [True, True]
    assert queue.judge(tags, {"j": 1}).keep.tolist() == [False, False]


def test_what_stands_before_the_begin_is_not_given_again() -> None:
    queue = CommittedMessages()
    queue.saw(parse_tags(tags_of(["j:4:0", "j:4:1"])))
    judged = queue.judge(parse_tags(tags_of(["j:4:1", "j:4:2"])), {"j": 4})
    assert judged.keep.tolist() == [False, True]


@given(st.data())
def test_however_pulls_are_cut_each_message_is_given_once_and_in_order(data: st.DataObject) -> None:
    first = [f"j:{batch}:{n}" for batch in (1, 2, 3) for n in range(data.draw(st.integers(0, 4)))]
    log = list(first)
    for _ in range(data.draw(st.integers(0, 4))):
        if first:
            # A repetition comes at some time after its message.
            again = data.draw(st.sampled_from(first))
            place = data.draw(st.integers(log.index(again) + 1, len(log)))
            log.insert(place, again)
    queue, out, at, committed = CommittedMessages(), list[str](), 0, 0
    while at < len(log):
        size = data.draw(st.integers(1, 5))
        part: list[str | None] = list(log[at : at + size])
        judged = queue.judge(parse_tags(tags_of(part)), {"j": committed})
        assert all(int(str(text).split(":")[1]) <= committed for text in part[: len(judged.keep)])
        out += [str(text) for text, keep in zip(part, judged.keep, strict=False) if keep]
        at += len(judged.keep)
        committed += judged.waits_for is not None
    assert out == first


@pytest.mark.parametrize(
    ("records", "last"),
    [
        ([], 0),
        ([(1, 0)], 0),
        ([(1, 0), (1, 1), (1, 2)], 2),
        # A driver that was too late, then its successor.
        ([(1, 7), (2, 7), (1, 8)], 7),
        ([(1, 7), (2, 7), (1, 8), (2, 8), (1, 9)], 8),
        # Two opened epoch 2; the one that lost commits nothing.
        ([(1, 7), (2, 7), (2, 7), (2, 8)], 8),
        # Read from the middle on, where the first record is a void one.
        ([(1, 8), (2, 8), (2, 9)], 9),
    ],
)
def test_last_committed_batch(records: list[tuple[int, int]], last: int) -> None:
    batches = CommittedBatches()
    for epoch, batch in records:
        batches.feed(CommitHead(epoch=epoch, batch=batch))
    assert batches.last == last
