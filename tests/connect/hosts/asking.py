"""A sink whose task asks its context for what a test says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from headrace.connect import Config, SinkConnector, SinkRecord, SinkTask, declare, key
from headrace.connect.plugins import SinkTaskContext
from headrace.connect.records import Queue


class AskingTask(SinkTask):
    """Writes down what is called, and asks for something in some of the calls."""

    #: What was called, with what.
    calls: ClassVar[list[str]] = []
    #: Asks, by the call in which that is done.
    asks: ClassVar[dict[str, Callable[[SinkTaskContext], object]]] = {}

    def start(self, config: Config) -> None:
        """Find out where to write down too what is called, and whether to go back once."""
        self._seen = config.get("seen")
        self._goes_back = config["goes.back"]

    def _called(self, call: str) -> None:
        self.calls.append(call)
        if self._seen:
            with Path(self._seen).open("a") as seen:
                seen.write(f"{call}\n")
        if call in self.asks:
            self.asks[call](self.context)

    def open(self, queues: Collection[Queue]) -> None:
        """Write it down."""
        self._called(f"open {len(queues)}")

    def put(self, records: Sequence[SinkRecord]) -> None:
        """Write down which records they are."""
        places = [f"{record.queue.queue_id}-{record.offset}" for record in records]
        self._called(f"put {' '.join(places)}")

    def flush(self, offsets: Mapping[Queue, int]) -> None:
        """Write down how far."""
        ends = [f"{queue.queue_id}-{offset}" for queue, offset in sorted(offsets.items())]
        self._called(f"flush {' '.join(ends)}")
        if self._goes_back:
            self._goes_back = False
            self.context.offsets(dict.fromkeys(offsets, 0))


class AskingConnector(SinkConnector):
    """A sink whose task asks for something."""

    task = AskingTask
    config = declare(
        key("seen", str, "Where what is called is written down."),
        key("goes.back", bool, "Whether the first flush goes back to the first record."),
    )
