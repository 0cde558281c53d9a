"""At most once, for comparison: nothing is staged, and state is kept on local disk alone.

What a job would do without any guarantee: output goes to its topics at once, and a commit says no
more than where the next batch begins.  After a failure such a job is wrong; here nothing fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from headrace.protocol.transactions import StagedPart
from headrace.runtime.commit.transactions import sender
from headrace.runtime.job_plan import JobPlan
from headrace.spark import cluster

if TYPE_CHECKING:
    from headrace.runtime.commit.transactions import (
        Attempt,
        BatchTransactions,
        QueueMessages,
        StageWriter,
    )
    from headrace.runtime.job_plan import JobConnection

__all__ = ["unguarded"]


class UnguardedPlan(JobPlan):
    """A job without guarantees."""

    def make_transactions(self, job: JobConnection) -> BatchTransactions:
        """Make the cluster's transactions, with nothing staged in them."""
        found: Any = super().make_transactions(job)
        send = sender(job.client)

        def writer(attempt: Attempt) -> StageWriter:
            return _UnguardedWriter(attempt, send)

        found.writer = writer
        return found  # type: ignore[no-any-return]


class _UnguardedWriter:
    def __init__(self, attempt: Attempt, send: Any) -> None:
        self._attempt = attempt
        self._send = send

    def stage(self, messages: QueueMessages) -> int | None:
        if not messages.is_state:
            self._send(messages)
        return None

    def finish(self) -> StagedPart:
        place = self._attempt
        return StagedPart(
            stage=place.stage, partition=place.partition, attempt=place.number, chunks=0, records=0
        )


@contextmanager
def unguarded() -> Iterator[None]:
    """Let jobs that are started meanwhile have no guarantees."""
    with patch.object(cluster, "JobPlan", UnguardedPlan):
        yield
