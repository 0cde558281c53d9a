from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from headrace.errors import MessageTooLargeError, ProtocolError
from headrace.protocol.transactions import (
    CommitRecord,
    CommitRequest,
    PlanAnswer,
    Position,
    StagedPart,
    StagedSection,
    StateSummary,
    check_commit,
    decode_sections,
    encode_sections,
    stored_positions,
)

SECTIONS = st.lists(
    st.builds(
        StagedSection,
        topic=st.text("abc%_", max_size=9),
        queue_id=st.integers(0, 2**31 - 1),
        count=st.integers(0, 2**31 - 1),
        records=st.binary(max_size=30),
    ),
    max_size=5,
)

RECORD = CommitRecord(
    job="counts",
    kind="commit",
    epoch=3,
    batch=7,
    partitions=4,
    offsets={"lines@broker-a@0": 12},
    watermarks={"lines@broker-a@0": 1_700_000_000_000},
    states=[
        StateSummary(
            store="counts",
            partition=1,
            count=5,
            checksum=2**64 - 1,
            epoch=3,
            batch=7,
            attempt=9,
            end_offset=2,
        )
    ],
    stores=["counts"],
    lineage=[[1, 1], [3, 6]],
    timestamp=1_700_000_000_001,
    counters={"read": 2**60},
)


def plain(sections: list[StagedSection]) -> list[tuple[str, int, int, bytes]]:
    return [(s.topic, s.queue_id, s.count, bytes(s.records)) for s in sections]


@given(SECTIONS)
def test_decode_reverses_encode(sections: list[StagedSection]) -> None:
    assert plain(list(decode_sections(encode_sections(sections)))) == plain(sections)


@given(st.binary(max_size=80))
def test_garbage_is_a_protocol_error(garbage: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        list(decode_sections(garbage))


@given(SECTIONS.filter(bool), st.data())
def test_cut_body_is_a_protocol_error(sections: list[StagedSection], data: st.DataObject) -> None:
    body = encode_sections(sections)
    ends = {len(encode_sections(sections[:n])) for n in range(len(sections) + 1)}
    cut = data.draw(st.integers(0, len(body)).filter(lambda at: at not in ends))
    with pytest.raises(ProtocolError, match="STAGE"):
        list(decode_sections(body[:cut]))


def test_records_are_views_of_the_body() -> None:
    body = encode_sections([StagedSection("t", 3, 1, b"xyz")])
    (section,) = decode_sections(body)
    assert isinstance(section.records, memoryview)
    assert section.records.obj is body


@pytest.mark.parametrize(
    "value",
    [
        RECORD,
        CommitRequest(
            commit_topic="c",
            group="g",
            previous=6,
            parts=[StagedPart(stage=0, partition=1, attempt=2, chunks=3, records=4)],
            record=RECORD,
        ),
        PlanAnswer(record=None, begins={}, ends={"t@b@0": 1}, latest={}, position=5, clock=6),
    ],
)
def test_bodies_are_read_as_written(value: msgspec.Struct) -> None:
    assert msgspec.json.decode(msgspec.json.encode(value), type=type(value)) == value


def test_commit_record_of_a_newer_version_is_read() -> None:
    written = msgspec.to_builtins(RECORD) | {"invented_later": 1}
    assert msgspec.convert(written, CommitRecord) == RECORD


def of_files(count: int, **more: Any) -> CommitRecord:
    """A commit of a source of files, each with its position."""
    positions = {
        f'{{"file":"2026/11/24/part-{number:05}-of-99999.csv"}}': Position(
            offset={
                "row": 1000,
                "size": 123_456 + 31 * number,
                "modified": 1_763_800_000_000_000_000 + 7_919_000_000 * number,
                "done": True,
            },
            generation=2,
        )
        for number in range(count)
    }
    fields = {"job": "j", "kind": "commit", "epoch": 1, "batch": 9, **more}
    return CommitRecord(**fields, stored_positions=stored_positions(positions))


def test_many_positions_are_packed_and_a_commit_that_is_too_large_names_them() -> None:
    record = of_files(28_000)
    body = msgspec.json.encode(record)
    assert len(record.positions) == 28_000
    assert len(body) < 1_000_000
    assert sum(map(body.count, (b",", b"{", b"["))) < 100, "brokers count them"
    assert msgspec.json.decode(body, type=CommitRecord).positions == record.positions
    check_commit(record, len(body), len(body) + 64 * 1024)
    with pytest.raises(MessageTooLargeError, match="28,000 partitions of an outside system"):
        check_commit(record, len(body), len(body) + 64 * 1024 - 1)
    few = of_files(2)
    assert isinstance(few.stored_positions, dict)
    with pytest.raises(ProtocolError, match="positions of job 'j' are damaged"):
        assert msgspec.structs.replace(few, stored_positions="bm9uc2Vuc2U=").positions


def test_positions_that_nobody_would_unpack_are_refused_before_they_are_written() -> None:
    def packed(length: int) -> dict[str, Position] | str:
        text = "x" * length
        return stored_positions({str(number): Position(offset=text) for number in range(1001)})

    assert CommitRecord(
        job="j", kind="commit", epoch=1, batch=1, stored_positions=packed(60_000)
    ).positions
    with pytest.raises(MessageTooLargeError, match=r"1,001 partitions .* before they are packed"):
        packed(70_000)


def test_a_record_does_not_grow_with_the_epochs_that_have_committed() -> None:
    record = CommitRecord(job="j", kind="commit", epoch=0, batch=0)
    for epoch in range(1, 1001):
        for _ in range(2):
            record = record.committed(epoch, timestamp=0)
    lineage = record.lineage
    assert (len(lineage), lineage[0], lineage[-1]) == (64, [937, 1873], [1000, 1999])
