"""Consumer offsets: how far each group has come in each queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

__all__ = ["ConsumerOffsets"]

_Place = tuple[str, str, int]
_Table = dict[str, dict[str, dict[int, int]]]


class ConsumerOffsets:
    """The offsets of all groups, and resets that members have not heard of yet.

    Examples
    --------
    >>> offsets = ConsumerOffsets()
    >>> offsets.update("g", "lines", 0, 42)
    >>> offsets.get("g", "lines", 0), offsets.get("g", "lines", 1)
    (42, None)
    """

    def __init__(self, table: Mapping[str, Mapping[str, Mapping[int, int]]] | None = None) -> None:
        self._table = _copied(table or {})
        self._pulled: dict[_Place, int] = {}
        self._pullers: set[str] = set()
        self._resets: dict[_Place, int] = {}
        #: Number of changes so far: a saver compares it to know whether there is news.
        self.version = 0

    def table(self) -> dict[str, dict[str, dict[int, int]]]:
        """Offsets by group, topic and queue id, for a snapshot."""
        return self._table

    def replace(self, table: Mapping[str, Mapping[str, Mapping[int, int]]]) -> None:
        """Have exactly these offsets."""
        self._table = _copied(table)
        self.version += 1

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the next offset that the group will read, None when it never said."""
        return self._table.get(group, {}).get(topic, {}).get(queue_id)

    def update(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note how far the group has come; ignored while a reset waits to be heard of."""
        if (group, topic, queue_id) not in self._resets:
            self._set(group, topic, queue_id, offset)

    def _set(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self._table.setdefault(group, {}).setdefault(topic, {})[queue_id] = offset
        self.version += 1

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Move the group, by queue id; its next pull from each queue is told so once."""
        for queue_id, offset in offsets.items():
            self._resets[group, topic, queue_id] = offset
            self._set(group, topic, queue_id, offset)

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset of a reset that the group has not heard of, and forget the reset."""
        return self._resets.pop((group, topic, queue_id), None) if self._resets else None

    def note_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note where the group read last, which is ahead of what it has processed."""
        self._pulled[group, topic, queue_id] = offset
        self._pullers.add(group)

    def pulled(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return where the group read last since the broker started."""
        return self._pulled.get((group, topic, queue_id))

    @property
    def group_count(self) -> int:
        """Number of groups that have an offset or have pulled."""
        return max(len(self._table), len(self._pullers))

    def knows(self, group: str) -> bool:
        """Whether a group has an offset or has pulled."""
        return group in self._pullers or group in self._table

    def groups(self) -> Iterator[str]:
        """Iterate over the groups that have an offset."""
        return iter(self._table)

    def topics_of(self, group: str) -> list[str]:
        """List the topics in which a group has an offset."""
        return list(self._table.get(group, {}))

    def groups_of(self, topic: str) -> list[str]:
        """List the groups that have an offset in a topic."""
        return [group for group, topics in self._table.items() if topic in topics]

    def forget_topic(self, topic: str) -> None:
        """Drop everything about a deleted topic."""
        for topics in self._table.values():
            topics.pop(topic, None)
        self._drop_volatile(lambda place: place[1] == topic)

    def forget_group(self, group: str) -> None:
        """Drop everything about a deleted group."""
        self._table.pop(group, None)
        self._pullers.discard(group)
        self._drop_volatile(lambda place: place[0] == group)

    def _drop_volatile(self, gone: Callable[[_Place], bool]) -> None:
        for notes in (self._pulled, self._resets):
            for place in [place for place in notes if gone(place)]:
                del notes[place]
        self.version += 1


def _copied(table: Mapping[str, Mapping[str, Mapping[int, int]]]) -> _Table:
    return {
        group: {topic: dict(queues) for topic, queues in topics.items()}
        for group, topics in table.items()
    }
