"""Reading a range of offsets, with answers that a test makes up."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from headrace.client import MessageQueue, PullStatus
from headrace.client._read_ahead import ReadAhead
from headrace.client.results import PullResult
from headrace.errors import OffsetExpiredError

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
