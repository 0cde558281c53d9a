"""Reading a range of offsets, with answers that a test makes up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from headrace.client import MessageQueue, PullStatus
from headrace.client.pulling import ReadAhead, whole_results
from headrace.client.results import PullResult
from headrace.errors import OffsetExpiredError
from headrace.protocol.records import encode_records

QUEUE = MessageQueue("lines", "broker-a", 0)
FOUND = PullResult(QUEUE, PullStatus.FOUND, b"a message", 1, 0, 1)


def answer(status: PullStatus, first: int, end: int) -> PullResult:
    return PullResult(QUEUE, status, b"", 0, first, end)


def read(*answers: PullResult, patience: float = 5) -> list[PullResult]:
    """Read offset 0, which is answered like this, again and again by the last answer."""
    left = list(answers)

    async def pull(offset: int) -> PullResult:
        assert offset == 0
        return left.pop(0) if len(left) > 1 else left[0]

    async def collect() -> list[PullResult]:
        reading = ReadAhead(pull, 1, timedelta(seconds=patience))
        return [result async for result in reading.results(0, 1)]

    return asyncio.run(collect())


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(answer(PullStatus.AT_END, 0, 0), id="not shown yet"),
        pytest.param(
            answer(PullStatus.OFFSET_MOVED, -1, 1), id="a compacted topic that was just made"
        ),
    ],
)
def test_a_message_that_must_soon_be_there_is_waited_for(before: PullResult) -> None:
    assert read(before, before, FOUND) == [FOUND]


@pytest.mark.parametrize("first", [-1, 1])
def test_a_message_that_does_not_come_is_an_error(first: int) -> None:
    with pytest.raises(OffsetExpiredError, match=f"holds {first} to 1"):
        read(answer(PullStatus.OFFSET_MOVED, first, 1), patience=0.05)


def found(begin: int, count: int, *, past: int = 0) -> PullResult:
    """An answer with so many messages from an offset on, and some more that it passes over."""
    body = encode_records("lines", 0, [b"line"] * count, [b""] * count, born=1).data
    end = begin + count + past
    return PullResult(QUEUE, PullStatus.FOUND, bytes(body), end, 0, 10)


@pytest.mark.parametrize(
    ("results", "missing"),
    [
        ([found(0, 4), found(4, 6)], ""),
        # A file of the log went before the first pull, between two, in the midst of one, at the end.
        ([found(0, 6, past=4)], "0 to 10"),
        ([found(0, 4), found(4, 3, past=3)], "4 to 10"),
        ([found(0, 4)], "4 to 10"),
        ([], "0 to 10"),
    ],
)
def test_messages_that_a_broker_passes_over_are_noticed(
    results: list[PullResult], missing: str
) -> None:
    async def given() -> AsyncGenerator[PullResult, None]:
        for result in results:
            yield result

    async def collect() -> list[PullResult]:
        return [result async for result in whole_results(given(), QUEUE, 0, 10)]

    if not missing:
        assert asyncio.run(collect()) == results
        return
    with pytest.raises(OffsetExpiredError, match=f"messages {missing} of queue lines@broker-a@0"):
        asyncio.run(collect())
