"""Changes of committed state between two batches: one committed step, all of it or nothing."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec

from headrace.errors import (
    HeadraceError,
    PartitionCountError,
    StateError,
    TopicNotFoundError,
    refuse,
)
from headrace.keys import decode_key
from headrace.protocol.transactions import CommitRecord, StateSummary
from headrace.runtime.commit.drivers import DriverName, Lease
from headrace.runtime.commit.transactions import Attempt, BatchEnd
from headrace.runtime.sinks import state_messages
from headrace.runtime.standing import operator_notes
from headrace.runtime.state.interface import ChangeSet
from headrace.runtime.state.store import encode_entries
from headrace.topology.shapes import shape_changes, state_shape

if TYPE_CHECKING:
    from headrace.runtime.job_plan import JobPlan
    from headrace.runtime.state.home import StateHome
    from headrace.serdes import Serde


_BLOCK_ENTRIES = 20_000
_MODULUS = 1 << 64

Change = Callable[[bytes, bytes], bytes | None]
"""Function that takes key and value of an entry and returns the new value; None drops the entry."""

Moved = Callable[[int], None]
"""Told of entries as they are done."""

Places = Callable[[Sequence[bytes], int], list[int]]
"""Function from state keys and the number of partitions to the partitions of the entries."""


def unchanged(key: bytes, value: bytes) -> bytes:
    """Keep a value."""
    del key
    return value


def _nothing(key: bytes, value: bytes) -> None:
    del key, value


@dataclass(slots=True)
class _Tally:
    """What a partition of a store holds after the step."""

    count: int = 0
    checksum: int = 0
    size: int = 0
    #: Next offset of its queue; None while the step has changed nothing in it.
    next_offset: int | None = None


@contextmanager
def stopped(home: StateHome) -> Iterator[Callable[[], CommitRecord]]:
    """Yield what opens an epoch of a job that nobody runs; whatever it builds on is published.

    Raises
    ------
    StateError
        A driver of the job runs.
    """
    owner = str(DriverName.here())
    lease = Lease(home.client, home.job, owner)

    def begin() -> CommitRecord:
        record = home.transactions.open(owner).record
        home.transactions.publish(record)
        return record

    lease.require()
    try:
        yield begin
    finally:
        home.transactions.close()
        lease.release()


class StateStep:
    """One step: reads stores as of a commit, and commits them rewritten.

    Parameters
    ----------
    home
        The job's cluster.
    record
        The open record of an epoch that is ours: what the step builds on.
    partitions
        Partitions of the job after the step.
    moved
        Told of entries as they are done.
    """

    def __init__(
        self,
        home: StateHome,
        record: CommitRecord,
        partitions: int,
        moved: Moved | None = None,
    ) -> None:
        self._home = home
        self._record = record
        self._partitions = partitions
        self._moved = moved
        self._clock = int(time.time() * 1000)
        self._writer = home.transactions.writer(
            Attempt(
                job=home.job,
                epoch=record.epoch,
                batch=record.batch + 1,
                stage=0,
                partition=0,
                number=0,
            )
        )
        self._tallies: dict[str, list[_Tally]] = {}
        self._queues: dict[str, list[str]] = {}

    def move(
        self,
        source: str,
        target: str,
        *,
        places: Places | None = None,
        change: Change = unchanged,
    ) -> None:
        """Bring the entries of one store to another, or to other partitions of itself.

        Parameters
        ----------
        source, target
            Names of the stores.
        places
            Returns the partitions of entries.  Without it they stay in their partition.
        change
            Returns the new value of each entry.
        """
        self._begin(source)
        self._begin(target)
        for partition, entries in self._blocks(source):
            keys = [key for key, _ in entries]
            news = [change(key, value) for key, value in entries]
            targets = [partition] * len(keys) if places is None else places(keys, self._partitions)
            stays = [
                source == target and place == partition and new == value
                for place, new, (_, value) in zip(targets, news, entries, strict=True)
            ]
            self._keep(source, partition, list(itertools.compress(entries, stays)))
            moves = [not stay for stay in stays]
            self._put(target, targets, keys, news, moves)
            gone = [
                key
                for key, place, new, moved in zip(keys, targets, news, moves, strict=True)
                if moved and (new is None or (target, place) != (source, partition))
            ]
            self._stage(source, partition, gone, [None] * len(gone))
            if self._moved is not None:
                self._moved(len(keys))

    def spread(self, store: str) -> None:
        """Bring all entries to partitions that are new, of a store that has them in each."""
        self._begin(store)
        new = range(self._record.partitions, self._partitions)
        for partition, entries in self._blocks(store):
            keys, values = [key for key, _ in entries], [value for _, value in entries]
            if partition >= self._partitions:
                self._stage(store, partition, keys, [None] * len(keys))
            elif not partition:
                for place in new:
                    self._stage(store, place, keys, list(values))
                    self._keep(store, place, entries)
            if self._moved is not None:
                self._moved(len(keys))

    def replace(self, store: str, entries: dict[bytes, bytes], places: Places | None) -> None:
        """Replace a store's entries by these; without ``places``, each partition gets all."""
        self._begin(store)
        left = self._shares(entries, places)
        for partition, block in self._blocks(store):
            own = left[partition]
            gone = [key for key, _ in block if key not in own]
            self._stage(store, partition, gone, [None] * len(gone))
            kept = [(key, value) for key, value in block if own.get(key) == value]
            self._keep(store, partition, kept)
            for key, _ in kept:
                del own[key]
        for partition, own in enumerate(left):
            rest = iter(own.items())
            while some := list(itertools.islice(rest, _BLOCK_ENTRIES)):
                values: list[bytes | None] = [value for _, value in some]
                self._stage(store, partition, [key for key, _ in some], values)
                self._keep(store, partition, some)

    def _shares(
        self, entries: dict[bytes, bytes], places: Places | None
    ) -> list[dict[bytes, bytes]]:
        """Return what each partition is to hold."""
        if places is None:
            return [dict(entries) for _ in range(self._partitions)]
        shares: list[dict[bytes, bytes]] = [{} for _ in range(self._partitions)]
        targets = places(list(entries), self._partitions)
        for place, (key, value) in zip(targets, entries.items(), strict=True):
            shares[place][key] = value
        return shares

    def drop(self, store: str) -> None:
        """Delete every entry of a store."""
        self.move(store, store, change=_nothing)

    def drop_all(self) -> None:
        """Delete every entry of every store."""
        for store in sorted({state.store for state in self._record.states if state.count}):
            self.drop(store)

    def commit(self, record: CommitRecord) -> CommitRecord:
        """Commit the step; ``record`` says all but the state that it leaves."""
        before = self._record
        part = self._writer.finish()
        states = {"partitions": self._partitions, "states": self._summaries(before.batch + 1)}
        committed = record.committed(before.epoch, self._clock, **states)
        parts = [part] if part.records else []
        transactions = self._home.transactions
        transactions.commit(BatchEnd(previous=before.batch, parts=parts, record=committed))
        transactions.publish(committed)
        return committed

    def _begin(self, store: str) -> None:
        if store not in self._tallies:
            widest = max(self._partitions, self._record.partitions)
            self._tallies[store] = [_Tally() for _ in range(widest)]
            self._queues[store] = self._home.queues(store)

    def _blocks(self, store: str) -> Iterator[tuple[int, list[tuple[bytes, bytes]]]]:
        """Yield the committed entries of a store, partition by partition."""
        record = self._record
        with tempfile.TemporaryDirectory(prefix="headrace-state-") as folder:
            copies = self._home.copies([store], Path(folder))
            for summary in record.states:
                if summary.store != store:
                    continue
                copy = copies.open(store, summary.partition, summary, record.lineage)
                try:
                    scan = copy.base.scan()
                    while block := list(itertools.islice(scan, _BLOCK_ENTRIES)):
                        yield summary.partition, block
                finally:
                    copy.close()

    def _put(
        self,
        store: str,
        places: list[int],
        keys: list[bytes],
        values: list[bytes | None],
        chosen: list[bool],
    ) -> None:
        for place in sorted(set(itertools.compress(places, chosen))):
            entries = [
                (keys[i], value)
                for i, value in enumerate(values)
                if chosen[i] and places[i] == place and value is not None
            ]
            self._stage(store, place, [k for k, _ in entries], [v for _, v in entries])
            self._keep(store, place, entries)

    def _keep(self, store: str, partition: int, entries: Iterable[tuple[bytes, bytes]]) -> None:
        found = list(entries)
        tally = self._tallies[store][partition]
        bodies = encode_entries(
            [key for key, _ in found], [value for _, value in found]
        ).to_pylist()
        tally.count += len(found)
        tally.checksum = (tally.checksum + sum(map(crc32, bodies))) % _MODULUS
        tally.size += sum(map(len, bodies))

    def _stage(
        self, store: str, partition: int, keys: list[bytes], values: list[bytes | None]
    ) -> None:
        if not keys:
            return
        tally = self._tallies[store][partition]
        queue = self._queues[store][partition]
        if tally.next_offset is None:
            # Nobody else writes to state topics in our epoch.
            tally.next_offset = self._home.end_offset(queue)
        changes = ChangeSet(keys, values, encode_entries(keys, values), 0, 0)
        sent_to = self._writer.stage(state_messages(queue, changes, self._clock))
        tally.next_offset = sent_to or tally.next_offset + len(keys)

    def _summaries(self, batch: int) -> list[StateSummary]:
        found = {
            (state.store, state.partition): state
            for state in self._record.states
            if state.partition < self._partitions
        }
        for store, tallies in self._tallies.items():
            for partition, tally in enumerate(tallies[: self._partitions]):
                if tally.next_offset is not None:
                    found[store, partition] = StateSummary(
                        store=store,
                        partition=partition,
                        count=tally.count,
                        checksum=tally.checksum,
                        size=tally.size,
                        epoch=self._record.epoch,
                        batch=batch,
                        attempt=0,
                        end_offset=tally.next_offset,
                    )
        return [found[place] for place in sorted(found)]


# A start compares the state that is there with the topology, and refuses or moves it.


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMigration:
    r"""What a start does with the state of an operator that has changed.

    Parameters
    ----------
    to
        Name of the operator that goes on with it.
    function
        Returns an entry's new value by its key and value; None drops it.  Default: unchanged.
    old, new
        Serdes of the values before and after; without them the function takes and returns bytes.

    Examples
    --------
    >>> from headrace import serdes
    >>> migration = StateMigration(
    ...     to="total", function=lambda key, cents: cents / 100, old=serdes.int, new=serdes.float
    ... )
    >>> serdes.float.deserialize(migration.change(b"\x05\x01k", serdes.int.serialize(250)))
    2.5
    """

    to: str
    function: Callable[[Any, Any], Any] | None = None
    old: Serde[Any] | None = None
    new: Serde[Any] | None = None

    def change(self, key: bytes, value: bytes) -> bytes | None:
        """Return the new value of an entry."""
        if self.function is None:
            return value
        found: Any = value if self.old is None else self.old.deserialize(value)
        result = self.function(_readable(key), found)
        if result is None:
            return None
        return bytes(result) if self.new is None else self.new.serialize(result)


Migrations = Mapping[str, str | StateMigration]
"""What becomes of the state of operators, by their old names; text is the new name alone."""


def settled_record(
    home: StateHome, record: CommitRecord, plan: JobPlan, migrations: Migrations
) -> CommitRecord:
    """Compare the last commit with the topology that is to go on from it.

    State is moved or dropped where the settings say so, as a committed step of its own.

    Raises
    ------
    PartitionCountError
        The job's state has another number of partitions.
    StateError
        The topology lacks an operator that has state, or keeps it in another form.
    """
    refuse(f"job '{plan.job}' cannot go on", unusable_state(record, plan, migrations))
    partitions, shapes = plan.settings.partitions, _shapes(plan)
    differences = _differences(record, shapes)
    wanted = _wanted(migrations)
    moves = {old: wanted[old] for old in wanted if old in differences}
    settled = msgspec.structs.replace(
        record,
        partitions=partitions,
        stores=sorted(shapes),
        shapes=shapes,
        operators=operator_notes(plan.topology),
    )
    if not differences:
        return settled
    step = StateStep(home, record, partitions)
    for old, migration in moves.items():
        step.move(old, migration.to, change=migration.change)
    for name in differences:
        if name not in moves:
            step.drop(name)
    return step.commit(settled)


def unusable_state(
    record: CommitRecord | None, plan: JobPlan, migrations: Migrations
) -> list[HeadraceError]:
    """Return why a topology cannot go on from the state of a commit."""
    problems: list[HeadraceError] = []
    partitions, shapes, wanted = plan.settings.partitions, _shapes(plan), _wanted(migrations)
    if record is not None and record.batch and record.partitions not in (0, partitions):
        problems.append(other_partitions(plan.job, record.partitions, partitions))
    problems += [
        StateError(
            f"migrate= moves state to '{migration.to}', and job '{plan.job}' has no such"
            f" operator: it has {', '.join(shapes) or 'none with state'}"
        )
        for migration in wanted.values()
        if migration.to not in shapes
    ]
    if record is not None and not plan.settings.allow_state_loss:
        differences = _differences(record, shapes)
        losses = {name: what for name, what in differences.items() if name not in wanted}
        problems += [_refusal(record, shapes, losses)] if losses else []
    return problems


def _shapes(plan: JobPlan) -> dict[str, dict[str, str]]:
    return {operator.name: state_shape(operator) for operator in plan.topology.stateful}


def _wanted(migrations: Migrations) -> dict[str, StateMigration]:
    return {
        old: StateMigration(to=new) if isinstance(new, str) else new
        for old, new in migrations.items()
    }


def other_partitions(job: str, there: int, wanted: int) -> PartitionCountError:
    """Return the error that state cannot be used with another number of partitions as it is."""
    return PartitionCountError(
        f"job '{job}' has its state in {there} partitions, but was started with {wanted}",
        hint=f"start it with partitions={there} (--partitions {there}), or move its state first:"
        f" headrace job rescale {job} --partitions {wanted}",
    )


def _differences(record: CommitRecord, shapes: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return operators with entries in their stores that are gone or keep another kind of state."""
    found: dict[str, str] = {}
    for store in sorted({state.store for state in record.states if state.count}):
        if store not in shapes:
            found[store] = "is gone"
        elif store in record.shapes:
            changes = shape_changes(record.shapes[store], shapes[store])
            if changes:
                found[store] = "has changed: " + ", ".join(changes)
    return found


def _refusal(
    record: CommitRecord, shapes: Mapping[str, Mapping[str, str]], losses: Mapping[str, str]
) -> StateError:
    keys = dict.fromkeys(losses, 0)
    for state in record.states:
        if state.store in keys:
            keys[state.store] += state.count
    lines = [f"  {name} {what} ({keys[name]:,} entries)" for name, what in losses.items()]
    added = [name for name in shapes if name not in record.stores]
    lines += [f"  {name} is new" for name in added]
    return StateError(
        f"job '{record.job}' has state of {', '.join(losses)} that its topology cannot use:\n"
        + "\n".join(lines),
        hint="give the operator its old name and form (name=...), move the state with"
        ' StreamJob(..., migrate={"OLD": "NEW"}), or drop it with --allow-state-loss'
        " (allow_state_loss=True)",
    )


def _readable(key: bytes) -> Any:
    try:
        return decode_key(key)
    except Exception:  # noqa: BLE001 - keys of windows and joins are more than a record's key
        return key


# A job begins anew: its offsets and its state are dropped, in one committed step.


def reset(home: StateHome) -> CommitRecord | None:
    """Drop what a stopped job has read and kept, so that it starts as one that never ran.

    What it wrote stays.  Its batches are numbered on, so that nothing of before is taken for
    something of after.

    Parameters
    ----------
    home
        The job's cluster.

    Returns
    -------
    CommitRecord | None
        The commit of the step; None where the job has committed nothing.

    Raises
    ------
    StateError
        A driver of the job runs.
    """
    try:
        last = home.transactions.plan([], {}, 0, 0).record
    except TopicNotFoundError:
        return None
    if last is None or not last.batch:
        return None
    with stopped(home) as begin:
        record = begin()
        step = StateStep(home, record, record.partitions)
        step.drop_all()
        return step.commit(record.begun_anew(offsets={}))
