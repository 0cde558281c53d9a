"""Static topics: queues with numbers of their own, and where this broker keeps each of them.

Clients name a queue of a static topic by its global id and count its messages by logical
offsets; the broker turns both into its own.  No I/O: mappings are judged here and saved elsewhere.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

import msgspec

from headrace.errors import BrokerError, InvalidParameterError
from headrace.protocol.codes import ResponseCode
from headrace.protocol.routes import MappingDetail, MappingInfo, MappingItem

# Rates of counters over the last seconds and minutes.

_SPANS = (10.0, 60.0, 600.0)


class Rate:
    """How fast a counter rises.

    Examples
    --------
    >>> rate = Rate()
    >>> for second in range(21):
    ...     rate.note(now=float(second), total=100 * second)
    >>> rate.per_second()
    (100.0, 100.0, 100.0)
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def note(self, *, now: float, total: int) -> None:
        """Take a sample of the counter, at a time in seconds."""
        self._samples.append((now, total))
        # One sample beyond the longest span is where that span begins.
        while len(self._samples) > 1 and self._samples[1][0] <= now - _SPANS[-1]:
            self._samples.popleft()

    def per_second(self) -> tuple[float, float, float]:
        """Return the rate over the last 10 s, minute and 10 minutes, as far as there are samples."""
        if len(self._samples) < 2:
            return (0.0, 0.0, 0.0)
        short, middle, long = (self._over(span) for span in _SPANS)
        return (short, middle, long)

    def _over(self, span: float) -> float:
        end, last = self._samples[-1]
        older = (sample for sample in reversed(self._samples) if sample[0] <= end - span)
        begin, first = next(older, self._samples[0])
        return (last - first) / (end - begin)


_SCOPE = "__global__"


@dataclass(frozen=True, slots=True)
class LogicalQueue:
    """A queue as clients name it, and as this broker keeps it."""

    #: Queue id that clients use.
    global_id: int
    #: Queue id that this broker uses.
    queue_id: int
    #: What to add to an offset of this broker to get the clients'.
    delta: int = 0
    #: First offset, as clients count, that lies on this broker.
    begin: int = 0

    def logical(self, offset: int) -> int:
        """Turn an offset of this broker into the clients'.

        >>> LogicalQueue(3, 0, delta=100, begin=100).logical(7)
        107
        """
        return max(offset + self.delta, self.begin)

    def physical(self, offset: int) -> int:
        """Turn an offset as clients count into this broker's."""
        return max(offset - self.delta, 0)


class StaticTopics:
    """The mappings of all static topics of a broker.

    Parameters
    ----------
    broker
        Name of the broker.
    saved
        Mappings of an earlier run.

    Examples
    --------
    >>> topics = StaticTopics("broker-a")
    >>> here = MappingItem(bname="broker-a", queue_id=1)
    >>> detail = MappingDetail(
    ...     topic="t", total_queues=1, bname="broker-a", epoch=1, hosted_queues={"0": [here]}
    ... )
    >>> topics.put(topics.merged(detail))
    >>> topics.locate("t", 0)
    LogicalQueue(global_id=0, queue_id=1, delta=0, begin=0)
    """

    def __init__(self, broker: str, saved: Iterable[MappingDetail] = ()) -> None:
        self._broker = broker
        self._details = {detail.topic: detail for detail in saved}
        #: Number of changes so far.
        self.version = 0

    def __contains__(self, topic: str) -> bool:
        return topic in self._details

    def details(self) -> dict[str, MappingDetail]:
        """Return all mappings, by topic."""
        return dict(self._details)

    def replace(self, details: Iterable[MappingDetail]) -> None:
        """Take over all mappings of another broker."""
        self._details = {detail.topic: detail for detail in details}
        self.version += 1

    def find(self, topic: str) -> MappingDetail | None:
        """Return the mapping of a topic, None when it is not static."""
        return self._details.get(topic)

    def info(self, topic: str) -> MappingInfo | None:
        """Return which queues of a topic are here now, or None if it is not static."""
        detail = self._details.get(topic)
        if detail is None:
            return None
        here = {
            global_id: items[-1].queue_id
            for global_id, items in detail.hosted_queues.items()
            if items and items[-1].bname == self._broker
        }
        return MappingInfo(
            topic=topic,
            scope=detail.scope,
            total_queues=detail.total_queues,
            bname=self._broker,
            epoch=detail.epoch,
            curr_id_map=here,
        )

    def infos(self) -> dict[str, MappingInfo]:
        """Return which queues of each static topic are here now."""
        return {topic: info for topic in self._details if (info := self.info(topic)) is not None}

    def merged(
        self, detail: MappingDetail, *, queues: int | None = None, force: bool = False
    ) -> MappingDetail:
        """Check a new mapping of a topic, or a later one, and return the one to :meth:`put`.

        Parameters
        ----------
        detail
            The mapping.
        queues
            Queues that the topic has on this broker, None for any number.
        force
            Take it whatever it was before.

        Raises
        ------
        InvalidParameterError
            When it contradicts itself, or is not a continuation of the present one.
        """
        self._check(detail, queues)
        before = self._details.get(detail.topic)
        if before is not None:
            hosted = dict(before.hosted_queues) if force else _continued(before, detail)
            hosted.update(detail.hosted_queues)
            return msgspec.structs.replace(detail, hosted_queues=hosted)
        return detail

    def put(self, detail: MappingDetail) -> None:
        """Take a mapping that was judged."""
        self._details[detail.topic] = detail
        self.version += 1

    def forget(self, topic: str) -> None:
        """Drop the mapping of a deleted topic."""
        if self._details.pop(topic, None) is not None:
            self.version += 1

    def locate(self, topic: str, global_id: int) -> LogicalQueue | None:
        """Return a queue on this broker, or None if the topic is not static.

        A negative id stands for any queue that is here.

        Raises
        ------
        BrokerError
            With RocketMQ's code for it when another broker has the queue.
        """
        detail = self._details.get(topic)
        if detail is None:
            return None
        if global_id < 0:
            global_id = self._any(detail)
        items = detail.hosted_queues.get(str(global_id), [])
        if not items or items[-1].bname != self._broker:
            message = f"queue {global_id} of the static topic {topic!r} is not on this broker"
            hint = "Ask the name server for the topic's route again."
            raise BrokerError(message, number=ResponseCode.NOT_LEADER_FOR_QUEUE, hint=hint)
        item = items[-1]
        delta = item.logic_offset - item.start_offset
        return LogicalQueue(global_id, item.queue_id, delta, item.logic_offset)

    def _any(self, detail: MappingDetail) -> int:
        here = (
            int(global_id)
            for global_id, items in detail.hosted_queues.items()
            if items and items[-1].bname == self._broker
        )
        return min(here, default=0)

    def _check(self, detail: MappingDetail, queues: int | None) -> None:
        what = f"the mapping of topic {detail.topic!r}"
        if detail.bname != self._broker:
            _refuse(f"{what} is for broker {detail.bname!r}, this is {self._broker!r}")
        if detail.scope != _SCOPE:
            _refuse(f"{what} has the scope {detail.scope!r}; only {_SCOPE!r} is known here")
        if detail.epoch < 0:
            _refuse(f"{what} has the epoch {detail.epoch}")
        for global_id, items in detail.hosted_queues.items():
            if not global_id.isdecimal() or int(global_id) >= detail.total_queues:
                _refuse(f"{what} has a queue {global_id}, but {detail.total_queues} queues in all")
            _check_items(f"{what}, queue {global_id},", items)
        used = [
            items[-1].queue_id
            for items in detail.hosted_queues.values()
            if items[-1].bname == self._broker
        ]
        if len(set(used)) != len(used):
            _refuse(f"{what} puts two queues into one of this broker's: {sorted(used)}")
        if queues is not None and max(used, default=-1) >= queues:
            _refuse(f"{what} uses queue {max(used)}, but the topic has {queues} queues here")


def _check_items(what: str, items: list[MappingItem]) -> None:
    if not items:
        _refuse(f"{what} has no place")
    for before, after in itertools.pairwise(items):
        if after.gen <= before.gen or 0 <= after.logic_offset < before.logic_offset:
            _refuse(f"{what} has places out of order")
    for item in items:
        if item.queue_id < 0 or item.start_offset < 0:
            _refuse(f"{what} has a place with queue {item.queue_id}, offset {item.start_offset}")
    if items[-1].logic_offset < 0:
        _refuse(f"{what} does not say at which offset its last place begins")


def _continued(before: MappingDetail, after: MappingDetail) -> dict[str, list[MappingItem]]:
    """Return what stays of a mapping when a later one comes."""
    what = f"the new mapping of topic {after.topic!r}"
    if after.epoch < before.epoch:
        _refuse(f"{what} has epoch {after.epoch}, but epoch {before.epoch} is known already")
    if after.total_queues < before.total_queues:
        _refuse(f"{what} has {after.total_queues} queues in all, before {before.total_queues}")
    for global_id, old in before.hosted_queues.items():
        new = after.hosted_queues.get(global_id)
        if new is None and after.epoch == before.epoch:
            _refuse(f"{what} lacks queue {global_id}, in the same epoch {after.epoch}")
        if new is None:
            continue
        places = [_place(item) for item in new]
        kept = [place for place in map(_place, old) if place in places]
        if places[: len(kept)] != kept or not kept or kept[-1] != _place(old[-1]):
            _refuse(f"{what} changes where the old messages of queue {global_id} are")
        if after.epoch == before.epoch and len(new) > len(old):
            _refuse(f"{what} moves queue {global_id}, in the same epoch {after.epoch}")
    return dict(before.hosted_queues)


def _place(item: MappingItem) -> tuple[int, int, str, int]:
    return item.gen, item.queue_id, item.bname, item.start_offset


def _refuse(message: str) -> NoReturn:
    raise InvalidParameterError(message, hint="Ask for the present mapping: GET_TOPIC_CONFIG.")
