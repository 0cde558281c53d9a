"""The queues of a sink task: none is read before the task has opened it."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.client import Admin, MessageQueue, PullConsumer
from headrace.connect.data.positions import read_positions, task_job
from headrace.connect.hosts.channel import TaskChannel
from headrace.connect.records import Queue
from headrace.errors import TopicNotFoundError
from headrace.protocol.transactions import Share
from headrace.runtime.sources.patterns import is_internal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from datetime import timedelta

    from headrace.client import Client
    from headrace.connect.data.orders import Start

__all__ = ["SinkQueues"]

#: So often a task that waits for a topic looks for it.
_LOOK_SECONDS = 1.0


class SinkQueues:
    """What a sink task reads, as topics and queues come.

    Parameters
    ----------
    order
        The task, with its topics or the pattern of their names.
    client
        Connection to the cluster.
    patience
        How long the task may take to open queues.
    waits
        Hears what the task waits for; an empty text: nothing any more.
    """

    def __init__(
        self, order: Start, client: Client, patience: timedelta, waits: Callable[[str], None]
    ) -> None:
        self._kept_as = order.kept_as or order.unit.connector
        self._job = task_job(self._kept_as, order.unit.task)
        self._terms = order.terms
        self._address = order.address
        self._client = client
        self._patience = patience
        self._waits = waits
        self._share = Share(number=order.unit.task, of=order.tasks)
        #: Every queue that the task has opened, by its name.
        self._opened: dict[str, Queue] = {}
        self._begins: dict[str, int] = {}
        self._missing = self._not_there()
        self._said = ""
        self._looked = time.monotonic()

    @property
    def topic(self) -> tuple[str, ...] | re.Pattern[str]:
        """Name what is read: by a pattern, where something of it has yet to come."""
        if self._terms.pattern:
            return re.compile(self._terms.pattern)
        if self._missing:
            return re.compile("|".join(map(re.escape, self._terms.topics)))
        return tuple(self._terms.topics)

    def open(self) -> dict[str | int, int]:
        """Give the task the queues that there are; give where it goes on, by queue.

        It takes no batch before it is told of the epoch that begins.
        That is where the sink itself says, or the last commit; in new queues, where its config
        says.
        """
        found = [queue for topic in self._topics() for queue in self._client.queues(topic)]
        names = [queue.name for queue in found if self._share.owns(queue.name)]
        offsets = self._open(names, {}, fenced=True)
        fresh = [name for name in names if name not in offsets]
        begins = (offsets, self._first_offsets(fresh))
        return {name: offset for part in begins for name, offset in part.items()}

    def begins(self) -> Mapping[str, int]:
        """Give where the queues are begun that came while the task ran."""
        return self._begins

    def learn(self, queues: Collection[str], offsets: Mapping[str, int]) -> bool:
        """Have the task open queues that are new; tell whether there were some.

        Caller: the driver, between two batches.

        Parameters
        ----------
        queues
            All queues that there are.
        offsets
            How far each has been handed over.
        """
        new = [name for name in queues if name not in self._opened]
        if not new:
            self._look()
            return False
        found = self._open([*self._opened, *new], offsets)
        self._begins |= {name: found[name] for name in new if name in found}
        self._missing = self._not_there()
        self._say_news()
        return True

    def _open(
        self, names: Collection[str], offsets: Mapping[str, int], *, fenced: bool = False
    ) -> dict[str, int]:
        """Open queues in the task; give where it goes on."""
        places = {name: _place(name) for name in names}
        known = {**read_positions(self._client, self._kept_as), **offsets}
        committed = {places[name]: known[name] for name in places if name in known}
        with TaskChannel(self._address, self._patience) as channel:
            kept = channel.open(places.values(), committed, fenced=fenced)
        self._opened = places
        found = {**committed, **(kept or {})}
        return {name: found[place] for name, place in places.items() if place in found}

    def _first_offsets(self, names: Collection[str]) -> dict[str, int]:
        """Give where queues begin that were never read; none where that is their first message."""
        begin = self._terms.begin
        if begin == "first" or not names:
            return {}
        queues = [MessageQueue.parse(name) for name in names]
        consumer = PullConsumer(self._client, self._job)
        if begin == "latest":
            found = consumer.end_offsets(queues)
        else:
            found = consumer.offsets_for_time(queues, datetime.fromtimestamp(begin / 1000, UTC))
        return {queue.name: offset for queue, offset in found.items()}

    def _look(self) -> None:
        """Look whether a topic is there of which other tasks have all the queues."""
        if self._said and time.monotonic() - self._looked > _LOOK_SECONDS:
            self._looked = time.monotonic()
            self._missing = self._not_there()
            self._say_news()

    def _topics(self) -> list[str]:
        terms = self._terms
        if not terms.pattern:
            return [topic for topic in terms.topics if topic not in self._missing]
        whole = re.compile(terms.pattern)
        known = Admin(self._client).topics()
        return [topic for topic in known if whole.fullmatch(topic) and not is_internal(topic)]

    def _not_there(self) -> list[str]:
        return [topic for topic in self._terms.topics if not self._is_there(topic)]

    def _is_there(self, topic: str) -> bool:
        try:
            self._client.queues(topic)
        except TopicNotFoundError:
            if is_internal(topic):
                # No pattern finds it when it comes.
                raise
            return False
        return True

    def say(self) -> None:
        """Tell what the task waits for, also where that is nothing."""
        self._said = self._lacks()
        self._waits(self._said)

    def _say_news(self) -> None:
        if self._lacks() != self._said:
            self.say()

    def _lacks(self) -> str:
        if self._terms.pattern and not self._opened and not self._topics():
            return f"a topic whose name matches {self._terms.pattern}: there is none yet"
        return _missing(self._missing)


def _missing(topics: list[str]) -> str:
    """Say which topics are missing, and what to do.

    >>> _missing(["orders"])
    'topic orders, which does not exist yet'
    >>> _missing(["orders", "bills"])
    'topics orders and bills, which do not exist yet'
    """
    if not topics:
        return ""
    if len(topics) == 1:
        return f"topic {topics[0]}, which does not exist yet"
    return f"topics {', '.join(topics[:-1])} and {topics[-1]}, which do not exist yet"


def _place(name: str) -> Queue:
    queue = MessageQueue.parse(name)
    return Queue(queue.topic, queue.broker, queue.queue_id)
