"""Setting a job back: to other offsets, or to before its first batch, as one committed step."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import orjson
from msgspec.structs import replace

from headrace.client import Admin, MessageQueue
from headrace.errors import ConfigurationError, OffsetExpiredError, StateError, TopicNotFoundError
from headrace.runtime.stage import PROCESSORS
from headrace.runtime.state.steps import StateStep, stopped
from headrace.topology.names import state_topic
from headrace.topology.operators.core import ThroughSource

if TYPE_CHECKING:
    from headrace.protocol.transactions import CommitRecord, QueueName
    from headrace.runtime.state.home import StateHome
    from headrace.runtime.state.layouts import StateEntry, StateLayout
    from headrace.runtime.state.views import StateView


# Another number of partitions for a job: its state moves by the key hash, in one committed step.


def rescale(
    home: StateHome,
    partitions: int,
    progress: Callable[[int, int], None] | None = None,
) -> CommitRecord:
    """Move the state of a job to another number of partitions.

    Nothing changes before the one commit at the end; a rescale that fails is as if it had never
    been started.

    Parameters
    ----------
    home
        The job's cluster.
    partitions
        The new number.
    progress
        Told of entries that are done, and of all.

    Raises
    ------
    StateError
        A driver of the job runs, or the job has no state.
    """
    if partitions < 1:
        raise ConfigurationError(f"a job cannot have {partitions} partitions")
    last = home.record()
    for store in _stores(last):
        layout_of(last, store)
    with stopped(home) as begin:
        if last.partitions == partitions:
            return last
        return _moved(home, begin(), partitions, progress)


def _moved(
    home: StateHome,
    record: CommitRecord,
    partitions: int,
    progress: Callable[[int, int], None] | None,
) -> CommitRecord:
    stores = _stores(record)
    for store in stores:
        _grow(home, store, max(partitions, record.partitions))
    total = sum(state.count for state in record.states)
    done = 0

    def moved(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    step = StateStep(home, record, partitions, moved)
    for store in stores:
        layout = layout_of(record, store)
        if layout.everywhere:
            step.spread(store)
        else:
            step.move(store, store, places=layout.places)
    return step.commit(record)


def _stores(record: CommitRecord) -> list[str]:
    """Return the names of the stores that hold something, or will."""
    return sorted({state.store for state in record.states if state.count} | set(record.stores))


def _grow(home: StateHome, store: str, partitions: int) -> None:
    """Add the queues that a state topic lacks; those beyond a job's partitions stay, empty."""
    queues = home.queues(store)
    if len(queues) < partitions:
        # On other brokers too, its queues would stand in another order.
        brokers = sorted({MessageQueue.parse(queue).broker for queue in queues})
        topic = state_topic(home.job, store)
        Admin(home.client).create_topic(topic, partitions, brokers=brokers)


def layout_of(record: CommitRecord, store: str) -> StateLayout:
    """Return how a store is laid out.

    Raises
    ------
    StateError
        Nothing says which key an entry of the store belongs to.
    """
    kinds = {kind.__name__: processor for kind, processor in PROCESSORS.items()}
    shape = record.shapes.get(store, {})
    name = shape.get("operator", "")
    layout = kinds[name].layout if name in kinds else None
    if layout is None:
        raise StateError(
            f"the state of '{store}' of job '{record.job}' cannot be moved: its operator"
            f" ({name or 'of unknown kind'}) does not say which keys its entries belong to",
            hint="start the job once with this release, if its last start was by an older one",
        )
    return layout.of(shape)


# State stores as files: a line of JSON per entry, to keep, to move and to read.


def entry_line(entry: StateEntry) -> str:
    """Write an entry for people: key, window and value as JSON, or as text where JSON has no form.

    >>> from headrace.runtime.state.layouts import StateEntry
    >>> entry_line(StateEntry("k", 3))
    '{"key":"k","value":3}'
    """
    told: dict[str, Any] = {"key": entry.key}
    if entry.start is not None:
        told |= {"start": entry.start, "end": entry.end}
    if entry.part:
        told["part"] = entry.part
    if entry.item is not None:
        told["item"] = entry.item
    told["value"] = entry.value
    return orjson.dumps(told, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()


def exported(view: StateView[Any, Any]) -> Iterator[str]:
    """Write every entry of a store as a line, exactly: keys and values in base64."""
    for key, value in view.raw():
        line = {"key": b64encode(key).decode(), "value": b64encode(value).decode()}
        yield msgspec.json.encode(line).decode()


def import_state(home: StateHome, operator: str, lines: Iterable[str]) -> int:
    """Replace the entries of an operator's store by those of a file, in one committed step.

    Return the number of entries.

    Raises
    ------
    StateError
        A driver of the job runs, the job has no such state, or a line is not an entry.
    """
    entries = dict(map(_entry, enumerate(lines, start=1)))
    last = home.record()
    if operator not in {*last.stores, *(state.store for state in last.states)}:
        raise StateError(
            f"job '{home.job}' has no state of an operator '{operator}'",
            hint=f"it has state of {', '.join(last.stores) or 'none'}",
        )
    with stopped(home) as begin:
        record = begin()
        step = StateStep(home, record, record.partitions)
        layout = layout_of(record, operator)
        step.replace(operator, entries, None if layout.everywhere else layout.places)
        step.commit(record)
    return len(entries)


def _entry(numbered: tuple[int, str]) -> tuple[bytes, bytes]:
    number, line = numbered
    try:
        told = msgspec.json.decode(line)
        return b64decode(told["key"], validate=True), b64decode(told["value"], validate=True)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StateError(
            f"line {number} is no entry of a state store: {type(error).__name__}: {error}",
            hint='headrace state export writes such lines: {"key": BASE64, "value": BASE64}',
        ) from None


Place = Literal["first", "last"] | datetime | dict[str, int]
"""Where a job goes on: an edge of each queue, a time, or offsets by queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetPlan:
    """What a reset would change."""

    #: The commit that it builds on.
    batch: int
    #: Where the job goes on, by queue, and where it stands; None: it has read nothing there.
    offsets: dict[QueueName, tuple[int | None, int]]
    #: Queues whose offsets are forgotten: their sources begin where they say.
    forgotten: list[QueueName]
    #: Entries of state that are dropped, by operator; empty where state stays.
    dropped: dict[str, int]

    @property
    def rewinds(self) -> bool:
        """Whether records are read a second time."""
        return any(old is not None and new < old for old, new in self.offsets.values())


def plan_reset(
    home: StateHome,
    place: Place | None,
    *,
    topics: Collection[str] = (),
    forget: bool = False,
) -> ResetPlan:
    """Return what a reset would change.

    Parameters
    ----------
    home
        The job's cluster.
    place
        Where it goes on; None: where its sources begin, as at its first start.
    topics
        Only queues of these topics; none: all that the job reads.
    forget
        Drop all state, and begin event time and counters anew.

    Raises
    ------
    StateError
        The job has committed nothing.
    ConfigurationError
        It reads no such topic or queue, or none at all.
    OffsetExpiredError
        A queue does not hold such an offset.
    """
    record = home.record()
    loops = _loop_topics(record)
    chosen = _chosen_topics(record, loops, topics)
    names = [queue.name for topic in sorted(chosen) for queue in sorted(_queues_of(home, topic))]
    if place is not None and not names and not forget:
        raise ConfigurationError(
            f"job '{record.job}' reads no topic: it has no offsets that could move",
            hint="its spouts go on from their states; --forget lets them begin anew",
        )
    offsets = {} if place is None else _offsets_at(home, place, names)
    if forget:
        # What the job wrote for itself must not be read into state that begins anew.
        own = [queue.name for topic in sorted(loops) for queue in sorted(_queues_of(home, topic))]
        offsets |= _offsets_at(home, "last", own)
    dropped: dict[str, int] = {}
    for state in record.states if forget else ():
        dropped[state.store] = dropped.get(state.store, 0) + state.count
    return ResetPlan(
        batch=record.batch,
        offsets={queue: (record.offsets.get(queue), at) for queue, at in offsets.items()},
        forgotten=[queue for queue in record.offsets if forget and queue not in offsets],
        dropped=dropped,
    )


def reset(home: StateHome, plan: ResetPlan, *, forget: bool = False) -> CommitRecord:
    """Do what a plan says, in one committed step.

    Raises
    ------
    StateError
        A driver of the job runs, or the job has gone on since the plan was made.
    """
    with stopped(home) as begin:
        record = begin()
        if record.batch != plan.batch:
            raise StateError(
                f"job '{home.job}' has gone on from batch {plan.batch} to {record.batch}",
                hint="look at it again, and reset it once nothing runs",
            )
        step = StateStep(home, record, record.partitions)
        if forget:
            step.drop_all()
        return step.commit(_as_planned(record, plan, forget=forget))


def _as_planned(record: CommitRecord, plan: ResetPlan, *, forget: bool) -> CommitRecord:
    kept = {q: at for q, at in record.offsets.items() if q not in plan.forgotten}
    offsets = kept | {queue: new for queue, (_, new) in plan.offsets.items()}
    if not (forget or plan.rewinds):
        return replace(record, offsets=offsets)
    # What waited for a time of the wall clock is asked at once.
    begun = record.begun_anew(offsets, due=None if record.due is None else 0)
    return replace(begun, counters={}, stores=[], shapes={}) if forget else begun


def _loop_topics(record: CommitRecord) -> set[str]:
    """Topics that the job writes for itself."""
    label = ThroughSource.label
    notes = record.operators.values()
    return {topic for note in notes if note.label == label for topic in note.topics}


def _chosen_topics(record: CommitRecord, loops: set[str], topics: Collection[str]) -> set[str]:
    read = {MessageQueue.parse(queue).topic for queue in record.offsets}
    read |= {topic for note in record.operators.values() for topic in note.topics}
    if unknown := sorted(set(topics) - read):
        raise ConfigurationError(
            f"job '{record.job}' reads no topic {unknown[0]!r}",
            hint=f"it reads {', '.join(sorted(read)) or 'nothing yet'}",
        )
    return set(topics) or read - loops


def _queues_of(home: StateHome, topic: str) -> list[MessageQueue]:
    try:
        return home.client.queues(topic)
    except TopicNotFoundError as error:
        error.hint = "name the topics that are left with --topic"
        raise


def _offsets_at(
    home: StateHome, place: Place, names: Collection[QueueName]
) -> dict[QueueName, int]:
    queues = [MessageQueue.parse(name) for name in names]
    begins, ends = home.consumer.begin_offsets(queues), home.consumer.end_offsets(queues)
    if isinstance(place, dict):
        held = {queue.name: (begins[queue], ends[queue]) for queue in queues}
        return _checked(home.job, place, held)
    if place == "first":
        return {queue.name: at for queue, at in begins.items()}
    if place == "last":
        return {queue.name: at for queue, at in ends.items()}
    found = home.consumer.offsets_for_time(queues, place)
    return {queue.name: at for queue, at in found.items()}


def _checked(
    job: str, given: Mapping[str, int], held: Mapping[QueueName, tuple[int, int]]
) -> dict[QueueName, int]:
    """Return the queues that offsets name: in one word, or as topic and number.

    >>> _checked("j", {"lines:1": 5}, {"lines@broker-a@0": (0, 9), "lines@broker-a@1": (2, 9)})
    {'lines@broker-a@1': 5}
    """
    found: dict[QueueName, int] = {}
    for name, offset in given.items():
        matches = [queue for queue in held if name in (queue, _short(queue))]
        if len(matches) != 1:
            raise ConfigurationError(
                f"job '{job}' reads {'several queues' if matches else 'no queue'} '{name}'",
                hint=f"its queues are {', '.join(sorted(held)) or 'none'}",
            )
        (queue,) = matches
        first, end = held[queue]
        if not first <= offset <= end:
            raise OffsetExpiredError(
                f"queue {queue} holds offsets {first} to {end}: job '{job}' cannot go on at"
                f" {offset}",
                hint="choose an offset that it holds; its end is one past its last message",
            )
        found[queue] = offset
    return found


def _short(queue: QueueName) -> str:
    parsed = MessageQueue.parse(queue)
    return f"{parsed.topic}:{parsed.queue_id}"
