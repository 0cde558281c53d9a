"""Planning batches: where a query begins, how far the next batch goes, what its tasks read."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.client import MessageQueue, PullConsumer
from headrace.errors import OffsetExpiredError
from headrace.spark.rocketmq.cluster import QueueFinder, connect
from headrace.spark.rocketmq.ranges import ReadRange, share_out, split_ranges
from headrace.spark.rocketmq.resolving import Resolver

if TYPE_CHECKING:
    from headrace.spark.rocketmq.options import ReadOptions
    from headrace.spark.rocketmq.positions import Offsets

__all__ = ["BatchPlanner", "StreamPlanner"]

_log = logging.getLogger(__name__)


class BatchPlanner:
    """Plans a read that has an end.

    Parameters
    ----------
    options
        What to read.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def ranges(self) -> list[ReadRange]:
        """Say what the tasks read.

        Raises
        ------
        TopicNotFoundError
            A topic does not exist.
        SettingsError
            A position does not fit the queues.
        OffsetExpiredError
            A queue does not hold an offset that was asked for.
        """
        options = self._options
        queues = QueueFinder(options).all_queues()
        consumer = PullConsumer(connect(options.cluster))
        resolver = Resolver(consumer, options.strategy, fail_on_data_loss=options.fail_on_data_loss)
        # The ends first: what arrives in between cannot make a queue end before it begins.
        ends = resolver.ends(options.ending, queues)
        begins = resolver.starts(options.starting, queues)
        found = [ReadRange(queue, begins[queue], ends[queue]) for queue in queues]
        return split_ranges([one for one in found if len(one) > 0], options.min_partitions)


class StreamPlanner:
    """Plans the batches of one query.

    Parameters
    ----------
    options
        What to read.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._finder = QueueFinder(options)
        self._consumer = PullConsumer(connect(options.cluster), options.group)
        self._committed: Offsets = {}
        self._ends: Offsets = {}
        self._target: Offsets | None = None

    def initial(self) -> Offsets:
        """Say where a query begins that has no checkpoint; errors as a batch read's."""
        options = self._options
        resolver = Resolver(
            self._consumer, options.strategy, fail_on_data_loss=options.fail_on_data_loss
        )
        return resolver.starts(options.starting, self._finder.all_queues())

    def freeze(self) -> None:
        """Take what is there now as all that the query shall read."""
        self._target = self._consumer.end_offsets(self._finder.present_queues())

    def latest(self, start: Offsets, limit: int | None) -> Offsets:
        """Say where a batch ends that begins at ``start`` and reads at most ``limit`` messages.

        Raises
        ------
        OffsetExpiredError
            A queue ends before ``start``: its topic was made anew.
        TopicNotFoundError
            A topic is gone.
        """
        # Spark asks for the end of a batch when everything before its start is done.
        self.commit(start)
        self._ends = self._consumer.end_offsets(self._finder.present_queues())
        ends = self._ends if self._target is None else self._below_target()
        begins = self._begins(start, ends)
        backlogs = {q: ends[q] - begins[q] for q in sorted(ends) if ends[q] > begins[q]}
        shares = backlogs if limit is None else share_out(backlogs, limit)
        return {**start, **{queue: begins[queue] + size for queue, size in shares.items()}}

    def _below_target(self) -> Offsets:
        assert self._target is not None
        present = self._ends.items()
        return {q: min(end, self._target[q]) for q, end in present if q in self._target}

    def _begins(self, start: Mapping[MessageQueue, int], ends: Offsets) -> Offsets:
        """Where the batch begins in each queue: new queues, and topics made anew, at their first.

        A queue that was given its target before it was made anew has nothing more to give.
        """
        first = [queue for queue in ends if queue not in start]
        for queue in ends:
            if queue in start and self._ends.get(queue, ends[queue]) < start[queue]:
                self._report_loss(queue, start[queue], self._ends[queue])
                first.append(queue)
        known = {queue: start[queue] for queue in ends if queue in start}
        return {**known, **self._consumer.begin_offsets(first)}

    def _report_loss(self, queue: MessageQueue, start: int, end: int) -> None:
        what = f"queue {queue} was read up to offset {start}, but now ends at {end}"
        if self._options.fail_on_data_loss:
            raise OffsetExpiredError(
                f"{what}: its topic was made anew, or its broker lost messages",
                hint="start the query with a new checkpoint, or set failOnDataLoss to false to go"
                " on at the first message there is",
            )
        _log.warning("%s; going on at its first message", what)

    def reported(self) -> Offsets | None:
        """Say where the queues ended when that was last asked."""
        return self._ends or None

    def ranges(self, start: Offsets, end: Offsets) -> list[ReadRange]:
        """Say what the tasks of a batch read."""
        anew = [queue for queue in end if queue not in start or end[queue] < start[queue]]
        begins = {**start, **self._consumer.begin_offsets(anew)}
        found = [ReadRange(queue, begins[queue], end[queue]) for queue in sorted(end)]
        return split_ranges([one for one in found if len(one) > 0], self._options.min_partitions)

    def commit(self, offsets: Offsets) -> None:
        """Let the group's offsets follow, if there is a group."""
        if self._options.group is None:
            return
        moved = {q: at for q, at in offsets.items() if self._committed.get(q) != at}
        if moved:
            self._consumer.commit(moved)
            self._committed.update(moved)
