"""An inbox that answers requests as soon as they are in its journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.connect.connectors.http._inbox import Arrival, Inbox, answer
from headrace.watched import watched_thread

if TYPE_CHECKING:
    from headrace.connect.connectors.http._journal import Journal

__all__ = ["JournaledInbox"]


class JournaledInbox(Inbox):
    """Writes requests to a journal, all that have come meanwhile at once.

    Parameters
    ----------
    journal
        Where they are written; what it holds already is given first.
    most
        Records that may wait for their commit.
    """

    def __init__(self, journal: Journal, most: int) -> None:
        super().__init__(journal.last, most)
        self._journal = journal
        self._unwritten: list[Arrival] = []
        for arrival in journal.recovered:
            self._fresh.append(arrival)
            self._count(arrival)
        #: What is being written just now.
        self._writing: list[Arrival] = []
        self._writer = watched_thread(self._write_all, name="http-journal", on_failure=self._fail)
        self._writer.start()

    def commit(self, number: int) -> None:
        """Forget what is committed."""
        super().commit(number)
        self._journal.trim(number)

    def close(self) -> None:
        """Answer those whose requests are not written that they are not."""
        super().close()
        self._writer.join()
        for arrival in self._unwritten:
            answer(arrival, committed=False)
        self._journal.close()

    def _accept(self, arrival: Arrival) -> None:
        self._unwritten.append(arrival)

    def _write_all(self) -> None:
        while arrivals := self._next():
            self._journal.append(arrivals)
            with self._changed:
                for arrival in arrivals:
                    arrival.committed = True
                    self._fresh.append(arrival)
                    answer(arrival, committed=True)
                self._changed.notify_all()

    def _next(self) -> list[Arrival]:
        with self._changed:
            while not self._unwritten and not self._closed:
                self._changed.wait()
            if self._closed:
                return []
            self._writing, self._unwritten = self._unwritten, []
            return self._writing

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self.failure = error
            self._closed = True
            for arrival in self._writing:
                if not arrival.committed:
                    answer(arrival, committed=False)
            self._changed.notify_all()
