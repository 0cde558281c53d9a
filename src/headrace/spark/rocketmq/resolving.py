"""From positions to offsets: which queues they name, and what the brokers hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from headrace.errors import OffsetExpiredError, SettingsError
from headrace.spark.rocketmq.positions import (
    EARLIEST,
    LATEST,
    AtEdge,
    AtOffsets,
    AtTime,
    AtTimes,
    Offsets,
    Position,
    QueueTable,
    Strategy,
    local_name,
)

if TYPE_CHECKING:
    from headrace.client import MessageQueue, PullConsumer

__all__ = ["Resolver", "match_queues"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def match_queues(option: str, table: QueueTable, queues: Iterable[MessageQueue]) -> Offsets:
    """Find the queues that a table names, with their numbers.

    Raises
    ------
    SettingsError
        A queue does not exist, or several brokers have one of this number.
    """
    known: dict[tuple[str, str], list[MessageQueue]] = {}
    for queue in queues:
        for name in (local_name(queue), str(queue.queue_id)):
            known.setdefault((queue.topic, name), []).append(queue)
    found: Offsets = {}
    for topic, numbers in table.items():
        for name, number in numbers.items():
            matching = known.get((topic, name), [])
            if len(matching) != 1:
                raise _no_single_queue(option, topic, name, matching or _of_topic(known, topic))
            found[matching[0]] = number
    return found


def _of_topic(
    known: Mapping[tuple[str, str], list[MessageQueue]], topic: str
) -> list[MessageQueue]:
    return sorted({one for (name, _), found in known.items() if name == topic for one in found})


def _no_single_queue(
    option: str, topic: str, name: str, queues: list[MessageQueue]
) -> SettingsError:
    choice = ", ".join(local_name(queue) for queue in queues)
    if not queues:
        return SettingsError(
            f"option '{option}' names topic '{topic}', which is not read",
            hint="name topics of subscribe, subscribePattern or assign",
        )
    return SettingsError(
        f"option '{option}' names queue {name} of topic '{topic}', which is not one queue there",
        hint=f"name one of {choice}",
    )


class Resolver:
    """Turns positions into offsets by asking the brokers.

    Parameters
    ----------
    consumer
        Reads the bounds of queues.
    strategy
        What to do where no message is as late as a time to start at.
    fail_on_data_loss
        Whether an offset outside of its queue is an error, or moved to the nearest one inside.
    """

    def __init__(
        self, consumer: PullConsumer, strategy: Strategy, *, fail_on_data_loss: bool
    ) -> None:
        self._consumer = consumer
        self._strategy: Strategy = strategy
        self._fail = fail_on_data_loss

    def starts(self, position: Position, queues: list[MessageQueue]) -> Offsets:
        """Give the offset to begin at, for each queue.

        Raises
        ------
        SettingsError
            The position does not fit the queues.
        OffsetExpiredError
            An offset is outside of its queue.
        """
        match position:
            case AtTime(option, _) | AtTimes(option, _):
                found = self._by_time(position, queues)
                if self._strategy == "error":
                    self._refuse_ends(option, found)
                return found
            case _:
                return self._by_offset(position, queues)

    def ends(self, position: Position, queues: list[MessageQueue]) -> Offsets:
        """Give the offset to end in front of, for each queue; errors as ``starts``."""
        match position:
            case AtTime() | AtTimes():
                return self._by_time(position, queues)
            case _:
                return self._by_offset(position, queues)

    def _by_offset(self, position: AtEdge | AtOffsets, queues: list[MessageQueue]) -> Offsets:
        if isinstance(position, AtEdge):
            if position.edge == "earliest":
                return self._consumer.begin_offsets(queues)
            return self._consumer.end_offsets(queues)
        given = _for_all(position.option, position.table, queues)
        begins = self._consumer.begin_offsets(queues)
        ends = self._consumer.end_offsets(queues)
        edges = {EARLIEST: begins, LATEST: ends}
        named = {q: edges[n][q] if n in edges else n for q, n in given.items()}
        return {
            queue: self._inside(position.option, queue, offset, (begins[queue], ends[queue]))
            for queue, offset in named.items()
        }

    def _inside(
        self, option: str, queue: MessageQueue, offset: int, bounds: tuple[int, int]
    ) -> int:
        nearest = min(max(offset, bounds[0]), bounds[1])
        if self._fail and offset != nearest:
            raise OffsetExpiredError(
                f"option '{option}' has offset {offset} for queue {queue}, which holds"
                f" {bounds[0]} to {bounds[1]}",
                hint="give an offset that it holds, or -2 (earliest) or -1 (latest), or set"
                " failOnDataLoss to false to take the nearest one",
            )
        return nearest

    def _by_time(self, position: AtTime | AtTimes, queues: list[MessageQueue]) -> Offsets:
        if isinstance(position, AtTime):
            return self._consumer.offsets_for_time(queues, _datetime(position.time))
        times = _for_all(position.option, position.table, queues)
        return {
            queue: self._consumer.offset_for_time(queue, _datetime(time))
            for queue, time in times.items()
        }

    def _refuse_ends(self, option: str, found: Offsets) -> None:
        ends = self._consumer.end_offsets(found)
        for queue, offset in found.items():
            if offset >= ends[queue]:
                raise SettingsError(
                    f"option '{option}': queue {queue} has no message stored at this time or later",
                    hint="give an earlier time, or set startingOffsetsByTimestampStrategy to"
                    " latest to begin such a queue at its end",
                )


def _for_all(option: str, table: QueueTable, queues: list[MessageQueue]) -> Offsets:
    found = match_queues(option, table, queues)
    missing = [queue for queue in queues if queue not in found]
    if missing:
        raise SettingsError(
            f"option '{option}' says nothing of queue {missing[0]}, which is read, too",
            hint="name every queue; as an offset -2 is the earliest and -1 the latest",
        )
    return found


def _datetime(milliseconds: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=milliseconds)
