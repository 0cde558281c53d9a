"""What the records of a commit topic tell: which count, and what each batch did."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from headrace.protocol.messages import StoredMessage, decode_messages
from headrace.protocol.records import encode_records
from headrace.protocol.transactions import CommitRecord
from headrace.runtime.jobs.journal import told

Step = tuple[str, int, int, str, int]
"""Kind, epoch, batch, driver, records in since the first batch."""

CASES: dict[str, tuple[list[Step], list[tuple[str, int, int | None]]]] = {
    "a driver that ends in order": (
        [("open", 1, 0, "a", 0), ("commit", 1, 1, "a", 5), ("close", 1, 1, "a", 5)],
        [("valid", 0, None), ("valid", 1, 5), ("valid", 0, None)],
    ),
    "a driver that was too late": (
        [
            ("open", 1, 0, "a", 0),
            ("open", 2, 0, "b", 0),
            ("commit", 1, 1, "a", 7),
            ("commit", 2, 1, "b", 9),
        ],
        [("valid", 0, None), ("valid", 0, None), ("void", 0, None), ("valid", 1, 9)],
    ),
    "an answer that was lost": (
        [("open", 1, 0, "a", 0), ("commit", 1, 1, "a", 5), ("commit", 1, 1, "a", 5)],
        [("valid", 0, None), ("valid", 1, 5), ("repeated", 0, None)],
    ),
    "a reset that begins to count anew": (
        [("open", 1, 0, "a", 0), ("commit", 1, 1, "a", 5), ("commit", 1, 2, "a", 0)],
        [("valid", 0, None), ("valid", 1, 5), ("valid", 1, None)],
    ),
}


def messages_of(steps: list[Step], offsets: list[int] | None = None) -> list[StoredMessage]:
    bodies = [
        msgspec.json.encode(
            CommitRecord(
                job="j",
                kind=kind,
                epoch=epoch,
                batch=batch,
                driver=driver,
                counters={"records_in": records},
            )
        )
        for kind, epoch, batch, driver, records in steps
    ]
    found = decode_messages(bytes(encode_records("j-commitTopic", 0, bodies, None, 0).data))
    places = range(len(found)) if offsets is None else offsets
    return [
        dataclasses.replace(message, queue_offset=offset)
        for message, offset in zip(found, places, strict=True)
    ]


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    steps, expected = CASES[name]
    found = list(told(messages_of(steps), judged=False))
    assert [(e.verdict.value, e.batches, e.records_in) for e in found] == expected
    assert [entry.driver for entry in found] == [step[3] for step in steps]


def test_commit_stands_for_those_that_compaction_took_out() -> None:
    steps = [("open", 1, 0, "a", 0), ("commit", 1, 1, "a", 5), ("commit", 1, 9, "a", 50)]
    found = list(told(messages_of(steps, [0, 1, 30]), judged=False))
    assert (found[-1].verdict.value, found[-1].batches, found[-1].records_in) == ("valid", 8, 45)


def test_what_an_embedded_broker_let_in_counts() -> None:
    # It checks epoch and predecessor itself, and its records name no driver.
    steps = [("open", 1, 0, "", 0), ("open", 2, 0, "", 0), ("commit", 2, 1, "", 3)]
    found = list(told(messages_of(steps), judged=True))
    assert [entry.verdict.value for entry in found] == ["valid"] * 3
    assert found[-1].records_in == 3
