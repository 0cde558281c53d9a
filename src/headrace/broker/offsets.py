"""Consumer offsets: how far each group has come in each queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

__all__ = ["ConsumerOffsets"]

_Place = tuple[str, str, int]
_Table = dict[str, dict[str, dict[int, int]]]
#: A client that was told so often, and reads elsewhere, goes by offsets of its own.
_MOST_TOLD = 3


@dataclass(slots=True)
class _Reset:
    offset: int
    #: How often each client was told, by the number of its connection.
    told: Counter[int] = field(default_factory=Counter)


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
        self._resets: dict[_Place, _Reset] = {}
        #: Number of changes so far: a saver compares it to know whether there is news.
        self.version = 0

    def table(self) -> dict[str, dict[str, dict[int, int]]]:
        """Offsets by group, topic and queue id, for a snapshot."""
        return self._table

    def copy(self) -> dict[str, dict[str, dict[int, int]]]:
        """Return the offsets as they are now."""
        return _copied(self._table)

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

    def put(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Let the group begin elsewhere; a reset that waits to be heard of leads there, too."""
        if (group, topic, queue_id) in self._resets:
            self._resets[group, topic, queue_id] = _Reset(offset)
        self._set(group, topic, queue_id, offset)

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Move the group, by queue id; its pulls are told so until one goes on from there."""
        for queue_id, offset in offsets.items():
            self._resets[group, topic, queue_id] = _Reset(offset)
            self._set(group, topic, queue_id, offset)

    def reset_for(
        self, group: str, topic: str, queue_id: int, *, peer: int, pulled: int
    ) -> int | None:
        """Return where a client that pulls must go on, None when it need not.

        A pull that waits may be of a client that has given up the queue since, and an answer may
        get lost: so a reset waits until a client that was told of it pulls from there.
        """
        place = group, topic, queue_id
        reset = self._resets.get(place) if self._resets else None
        if reset is None:
            return None
        has_heard = peer in reset.told and pulled == reset.offset
        if has_heard or reset.told[peer] == _MOST_TOLD:
            del self._resets[place]
            return None
        reset.told[peer] += 1
        return reset.offset

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
        for place in [place for place in (*self._pulled, *self._resets) if gone(place)]:
            self._pulled.pop(place, None)
            self._resets.pop(place, None)
        self.version += 1


def _copied(table: Mapping[str, Mapping[str, Mapping[int, int]]]) -> _Table:
    return {
        group: {topic: dict(queues) for topic, queues in topics.items()}
        for group, topics in table.items()
    }
