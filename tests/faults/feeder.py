"""Feeds the word count of the kill test."""

from __future__ import annotations

import threading

from headrace.client import Client, PullConsumer
from tests.faults.broker import make_lines, send_lines
from tests.faults.word_pipeline import LINES, pipeline


class Feeder:
    """Sends lines from a thread of its own, a few at a time, until it is told to stop.

    It keeps some batches ahead of the job, so that there is always work and never much to catch
    up with.  The mark is that of the job, where several share a cluster.
    """

    _CHUNK = 12
    _AHEAD = 240
    _PAUSE = 0.1

    def __init__(self, namesrv: str, most: int = 50_000, mark: str = "") -> None:
        self._namesrv, self._mark = namesrv, mark
        self._lines = make_lines(most)
        self._confirmed = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self._failure: Exception | None = None

    @property
    def confirmed(self) -> list[str]:
        """Lines that must be in the topic; a lost answer may have doubled some."""
        return self._lines[: self._confirmed]

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the lines that are being sent, and end."""
        self._over.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with Client(self._namesrv) as client:
                while self._confirmed < len(self._lines) and not self._over.wait(self._PAUSE):
                    if self._confirmed - self._lines_read(client) < self._AHEAD:
                        end = self._confirmed + self._CHUNK
                        send_lines(client, self._lines[self._confirmed : end], self._mark)
                        self._confirmed = end
        except Exception as error:
            self._failure = error

    def _lines_read(self, client: Client) -> int:
        consumer = PullConsumer(client, pipeline(self._mark).name)
        return sum(consumer.committed(queue) or 0 for queue in client.queues(LINES + self._mark))
