"""Tags of published messages."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from headrace.protocol.columns import property_column
from headrace.protocol.journal_tags import (
    TAG,
    FirstCopies,
    Tag,
    encode_tags,
    parse_tag,
    parse_tags,
)

names = st.from_regex(r"[%|a-zA-Z0-9_-]{1,20}", fullmatch=True)


@settings(deadline=None)
@given(names, st.integers(1, 2**31 - 1), st.integers(0, 2**31), st.integers(0, 40))
def test_tags_are_read_back(job: str, batch: int, first: int, count: int) -> None:
    properties = encode_tags(None, job, batch, first, count)
    column = property_column(properties, TAG)
    tags = parse_tags(column)
    assert tags.job.to_pylist() == [job] * count
    assert tags.batch.tolist() == [batch] * count
    assert tags.sequence.tolist() == list(range(first, first + count))
    one_by_one = [parse_tag(text.decode()) for text in column.to_pylist()]
    assert one_by_one == [Tag(job, batch, number) for number in range(first, first + count)]


@pytest.mark.parametrize(
    "text", ["", ":1:2", "j", "j:1", "j:1:2:3", "j:-1:2", "j:1:", "j:x:2", "j:1:12345678901"]
)
def test_other_properties_of_the_name_are_no_tags(text: str) -> None:
    assert parse_tag(text) is None
    tags = parse_tags(pa.array([text.encode()]))
    assert (tags.job.to_pylist(), tags.batch.tolist()) == ([None], [-1])


def test_properties_that_were_there_stay() -> None:
    found = encode_tags(pa.array([b"KEYS\x01a\x02A\x01b\x02"]), "j", 1, 0, 1)
    assert found.to_pylist() == [b"KEYS\x01a\x02A\x01b\x02TX\x01j:1:0\x02"]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 3), st.integers(0, 3))))
def test_first_copies_are_those_above_all_before(places: list[tuple[str, int, int]]) -> None:
    highest: dict[str, tuple[int, int]] = {}
    wanted = []
    for job, *place in places:
        batch, sequence = place
        wanted.append((batch, sequence) > highest.get(job, (0, -1)))
        highest[job] = max(highest.get(job, (0, -1)), (batch, sequence))
    column = pa.array([f"{job}:{batch}:{n}".encode() for job, batch, n in places], pa.binary())
    middle = len(places) // 2
    queue = FirstCopies()
    found = [
        *queue.among(parse_tags(column.slice(0, middle))).tolist(),
        *queue.among(parse_tags(column.slice(middle))).tolist(),
    ]
    assert found == wanted
    assert [queue.highest(job) for job in highest] == list(highest.values())


def test_messages_without_a_tag_pass() -> None:
    queue = FirstCopies()
    assert queue.among(parse_tags(pa.array([None, None], pa.binary()))).tolist() == [True, True]
    assert queue.highest("j") is None
