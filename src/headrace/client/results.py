"""What pulls give back."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from headrace.errors import ProtocolError
from headrace.protocol.codes import ResponseCode
from headrace.protocol.columns import MessageColumns, decode_columns
from headrace.protocol.messages import StoredMessage, decode_messages
from headrace.protocol.routes import LOGICAL_BROKER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.client.queues import MessageQueue
    from headrace.protocol.frames import Command

__all__ = [
    "PULL_CODES",
    "PullResult",
    "PullStatus",
    "answer_number",
    "join_results",
    "read_pull_answer",
]


class PullStatus(enum.Enum):
    """What a pull found."""

    FOUND = ResponseCode.SUCCESS
    #: The queue has nothing at this offset yet.
    AT_END = ResponseCode.PULL_NOT_FOUND
    #: Messages were passed over, as their tags do not match; go on at ``next_offset``.
    NO_MATCH = ResponseCode.PULL_RETRY_IMMEDIATELY
    #: The offset is outside of the queue; ``next_offset`` is the nearest one inside.
    OFFSET_MOVED = ResponseCode.PULL_OFFSET_MOVED


#: Response codes of pulls that were answered.
PULL_CODES = frozenset(int(status.value) for status in PullStatus)


@dataclass(frozen=True, slots=True)
class PullResult:
    """The answer to a pull: a block of messages as the broker stores them."""

    queue: MessageQueue
    status: PullStatus
    #: Messages end to end in the stored layout; empty unless ``status`` is FOUND.
    block: bytes | bytearray | memoryview
    #: Where the next pull goes on.
    next_offset: int
    #: First offset that the queue still holds.
    min_offset: int
    #: One past its last offset.
    max_offset: int
    #: What the queue's offsets are ahead of those in the block: only in static topics, whose
    #: queues may have moved from one broker to another.
    offset_delta: int = 0

    def columns(self) -> MessageColumns:
        """Decode the block into Arrow columns, without an object per message.

        A body that says it is compressed and cannot be unpacked stays as stored: it is ``packed``.

        Raises
        ------
        ProtocolError
            The bodies of the block unpack to more than 1 GiB: take ``pieces()``.
        """
        return self._placed(decode_columns(self.block))

    def pieces(self) -> Iterator[MessageColumns]:
        """Decode the block as ``columns()`` does, in as many pieces as its bodies ask for."""
        return map(self._placed, decode_columns(self.block, unpack=False).unpacked())

    def _placed(self, columns: MessageColumns) -> MessageColumns:
        if not self._is_logical:
            return columns
        return replace(
            columns,
            queue_offset=columns.queue_offset + self.offset_delta,
            queue_id=np.full_like(columns.queue_id, self.queue.queue_id),
        )

    def messages(self) -> list[StoredMessage]:
        """Decode the block into one object per message.

        A body that says it is compressed and cannot be unpacked stays as stored: its message
        ``is_packed``.
        """
        messages = decode_messages(self.block)
        if not self._is_logical:
            return messages
        return [
            replace(
                message,
                queue_offset=message.queue_offset + self.offset_delta,
                queue_id=self.queue.queue_id,
            )
            for message in messages
        ]

    @property
    def _is_logical(self) -> bool:
        return self.queue.broker == LOGICAL_BROKER


def join_results(results: list[PullResult]) -> PullResult:
    """Make one result of several that follow one another."""
    if len(results) == 1:
        return results[0]
    return replace(results[-1], block=b"".join(result.block for result in results))


def read_pull_answer(queue: MessageQueue, answer: Command) -> PullResult:
    """Read the answer to a pull."""
    status = PullStatus(answer.code)
    return PullResult(
        queue=queue,
        status=status,
        block=answer.payload if status is PullStatus.FOUND else b"",
        next_offset=answer_number(answer, "nextBeginOffset"),
        min_offset=answer_number(answer, "minOffset"),
        max_offset=answer_number(answer, "maxOffset"),
        offset_delta=answer_number(answer, "offsetDelta") if "offsetDelta" in answer.ext else 0,
    )


def answer_number(answer: Command, field: str) -> int:
    """Read a number that an answer must have."""
    try:
        return int(answer.ext[field])
    except (KeyError, ValueError):
        raise ProtocolError(f"an answer lacks the number {field!r}: {answer.ext}") from None
