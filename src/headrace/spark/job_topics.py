"""What lies in the topics that a job reads, and whether the job has done it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.client import PullConsumer
from headrace.runtime.planning import owes_batch
from headrace.runtime.standing import LagReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headrace.protocol.transactions import CommitRecord, PlanAnswer, QueueName
    from headrace.runtime.control import Summary
    from headrace.runtime.job_plan import JobConnection
    from headrace.runtime.standing import QueueLag
__all__ = ["JobTopics"]


class JobTopics:
    """The topics that a running job reads, those that it writes for itself among them.

    Parameters
    ----------
    connection
        The job.
    queues
        Writable queues of the topics that it writes.
    """

    def __init__(self, connection: JobConnection, queues: dict[str, list[QueueName]]) -> None:
        self._connection = connection
        self.queues = queues
        self._lag = LagReader(PullConsumer(connection.client, connection.plan.job))
        #: Ends of queues that were sent to at once, for the next batch to read.
        self._sent: dict[QueueName, int] = {}

    def note(self, summaries: Iterable[Summary]) -> None:
        """Note what the tasks of a batch sent: a broker may show it a moment later."""
        for summary in summaries:
            self._sent |= summary.sent

    def lag(self, record: CommitRecord) -> dict[QueueName, QueueLag]:
        """Tell what a commit leaves unread of each queue; a job that reads no topic asks nobody."""
        if not self._connection.source_topics():
            return {}
        return self._lag.read(record, self._ask().latest)

    def goals(self) -> Iterator[Callable[[CommitRecord], bool]]:
        """Give what must hold of the last commit, one after the other, for all to be done.

        That is what is in the topics now, then what it becomes in those that the job writes for
        itself: for each of them first the records, then event time, which follows them.  One may
        be fed by what came through another.
        """
        yield _reaches(self._ends())
        for _ in range(2 * len(self._connection.plan.topology.throughs)):
            answer = self._ask()
            assert answer.record is not None, "a job that runs has one"
            owed = owes_batch(self._connection.plan, answer, self.queues)
            yield _reaches({}, answer.record.batch + owed)
            yield _reaches(self._ends())

    def _ends(self) -> dict[QueueName, int]:
        latest = self._ask().latest
        return latest | {q: max(end, latest.get(q, 0)) for q, end in self._sent.items()}

    def _ask(self) -> PlanAnswer:
        connection = self._connection
        return connection.transactions.plan(connection.source_topics(), {}, 0, 0)


def _reaches(ends: dict[QueueName, int], batch: int = 0) -> Callable[[CommitRecord], bool]:
    return lambda record: (
        record.batch >= batch
        and all(end <= record.offsets.get(queue, 0) for queue, end in ends.items())
    )
