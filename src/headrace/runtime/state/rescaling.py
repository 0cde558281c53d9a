"""Another number of partitions for a job: its state moves by the key hash, in one committed step."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson

from headrace.client import Admin, MessageQueue
from headrace.errors import ConfigurationError, StateError
from headrace.runtime.commit.drivers import DriverName, Lease
from headrace.runtime.stage import PROCESSORS
from headrace.runtime.state.steps import StateStep
from headrace.topology.names import commit_topic, state_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.protocol.transactions import CommitRecord
    from headrace.runtime.state.home import StateHome
    from headrace.runtime.state.layouts import StateEntry, StateLayout
    from headrace.runtime.state.views import StateView


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
    owner = str(DriverName.here())
    lease = Lease(home.client, home.job, commit_topic(home.job), owner)
    lease.require()
    try:
        return last if last.partitions == partitions else _moved(home, partitions, progress, owner)
    finally:
        home.transactions.close()
        lease.release()


def _moved(
    home: StateHome, partitions: int, progress: Callable[[int, int], None] | None, owner: str
) -> CommitRecord:
    record = home.transactions.open(owner).record
    home.transactions.publish(record)
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
    """Name the stores that hold something, or will."""
    return sorted({state.store for state in record.states if state.count} | set(record.stores))


def _grow(home: StateHome, store: str, partitions: int) -> None:
    """Give a state topic enough queues; those beyond a job's partitions stay, empty."""
    queues = home.queues(store)
    if len(queues) < partitions:
        # On other brokers too, its queues would stand in another order.
        brokers = sorted({MessageQueue.parse(queue).broker for queue in queues})
        topic = state_topic(home.job, store)
        Admin(home.client).create_topic(topic, partitions, brokers=brokers)


def layout_of(record: CommitRecord, store: str) -> StateLayout:
    """Tell how a store is laid out.

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


def exported(view: StateView) -> Iterator[str]:
    """Write every entry of a store as a line, exactly: keys and values in base64."""
    for key, value in view.raw():
        line = {"key": b64encode(key).decode(), "value": b64encode(value).decode()}
        yield orjson.dumps(line).decode()


def import_state(home: StateHome, operator: str, lines: Iterable[str]) -> int:
    """Let the store of an operator hold what a file holds, in one committed step.

    Gives the number of entries.

    Raises
    ------
    StateError
        A driver of the job runs, the job has no such state, or a line is no entry.
    """
    entries = dict(map(_entry, enumerate(lines, start=1)))
    last = home.record()
    if operator not in {*last.stores, *(state.store for state in last.states)}:
        raise StateError(
            f"job '{home.job}' has no state of an operator '{operator}'",
            hint=f"it has state of {', '.join(last.stores) or 'none'}",
        )
    owner = str(DriverName.here())
    lease = Lease(home.client, home.job, commit_topic(home.job), owner)
    lease.require()
    try:
        record = home.transactions.open(owner).record
        home.transactions.publish(record)
        step = StateStep(home, record, record.partitions)
        layout = layout_of(record, operator)
        step.replace(operator, entries, None if layout.everywhere else layout.places)
        step.commit(record)
    finally:
        home.transactions.close()
        lease.release()
    return len(entries)


def _entry(numbered: tuple[int, str]) -> tuple[bytes, bytes]:
    number, line = numbered
    try:
        told = orjson.loads(line)
        return b64decode(told["key"], validate=True), b64decode(told["value"], validate=True)
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"line {number} is no entry of a state store: {type(error).__name__}: {error}",
            hint='headrace state export writes such lines: {"key": BASE64, "value": BASE64}',
        ) from None
