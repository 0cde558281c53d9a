"""Where the records of a sink go, where the user's functions decide it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.runtime.user_code.calls import Locator, UserFunction

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.runtime.chunk import Chunk
    from headrace.topology.operators.core import RecordFunction, Sink

__all__ = ["Placing"]


class Placing:
    """Calls the functions of a sink that choose topic, key and queue of each record.

    Parameters
    ----------
    sink
        Has at least one such function.
    queues
        Writable queues of each of its topics.
    locator
        Takes records that cannot be placed, where the sink's policy is to go on.
    """

    def __init__(
        self, sink: Sink, queues: Mapping[str, Sequence[object]], locator: Locator
    ) -> None:
        self._sink = sink
        self._queues = queues
        functions = (sink.choose, sink.message_key, sink.queue_number)
        first = next(each for each in functions if each is not None)
        self._calls = UserFunction(sink, first.function, locator)

    def by_topic(self, chunk: Chunk) -> Iterator[tuple[str, Chunk]]:
        """Give the records of each topic, with the keys and queue numbers of their messages."""
        keys = chunk.key_list()
        kept, places = self._calls.each(chunk, keys, chunk.values, step=self._place)
        if self._sink.message_key is not None:
            kept = kept.with_keys([key for _, key, _ in places])
        if self._sink.queue_number is not None:
            kept = replace(kept, queues=np.array([number for _, _, number in places], np.intp))
        for topic in self._queues:
            picks = [index for index, place in enumerate(places) if place[0] == topic]
            if picks:
                yield topic, kept.take(np.array(picks, np.intp))

    def _place(self, key: Any, value: Any) -> tuple[str, Any, int]:
        sink = self._sink
        topic = sink.topic if sink.choose is None else _called(sink.choose, key, value)
        if topic not in self._queues:
            message = f"it chose topic {topic!r:.100}, not one of topics={list(sink.choices)}"
            raise ValueError(message)
        number = 0
        if sink.queue_number is not None:
            number = _called(sink.queue_number, key, value)
            count = len(self._queues[topic])
            if type(number) is not int or not 0 <= number < count:
                message = f"it gave {number!r:.100} for a queue of '{topic}': 0 to {count - 1}"
                raise ValueError(message)
        if sink.message_key is not None:
            key = _called(sink.message_key, key, value)
        return topic, key, number


def _called(function: RecordFunction, key: Any, value: Any) -> Any:
    return function.function(key, value) if function.takes_key else function.function(value)
