"""The seven oracles: what must hold of a log after whatever happened to it.

* I1: every record that was acknowledged as durable is readable.
* I2: what is there is a prefix of what was appended, in that order, without a hole.
* I3: no record is there that was not appended, and each is equal to the byte.
* I4: offsets strictly increase, and the next one is not below the last acknowledged one.
* I5: a compacted log shows all of the old view or all of the new one; the latest of a key stays.
* I6: opening twice gives the same bytes.
* I7: damage is told, by file and byte, and never skipped in silence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import CorruptLogError, StoreFailedError
from headrace.store import MessageStore, QueueAppend
from tests.store.samples import split

__all__ = [
    "Found",
    "History",
    "Key",
    "Step",
    "check_damage_is_told",
    "check_latest",
    "check_log",
    "check_same_twice",
    "check_views",
    "found_in",
    "offset_of",
]

Key = tuple[str, int]


def offset_of(record: bytes) -> int:
    """The queue offset of a stored record."""
    return int.from_bytes(record[20:28], "big")


@dataclass(frozen=True)
class Found:
    """What a reader sees: each queue's records in the order in which they were read."""

    records: Mapping[Key, list[bytes]]
    next_offsets: Mapping[Key, int]


@dataclass
class Step:
    """One append: all of it is there or nothing."""

    records: list[tuple[Key, bytes]]
    #: ``durable``: acknowledged.  ``refused``: said to be gone.  ``open``: nobody knows.
    outcome: str = "open"


@dataclass
class History:
    """What was appended, in order, and what was answered."""

    steps: list[Step] = field(default_factory=list)
    #: Whether the store has said that it takes no more.
    stopped: bool = False

    def append(self, store: MessageStore, *appends: QueueAppend, durable: bool = True) -> bool:
        """Append to a store, and remember it; whether it was acknowledged."""
        error = store.append(appends).exception(timeout=60)
        self.note(appends, self._outcome(error, durable=durable))
        return error is None

    def commit(self, store: MessageStore, *appends: QueueAppend) -> bool:
        """Commit appends as one unit, and remember it; whether it was acknowledged."""
        error = store.commit_unit([], appends).exception(timeout=60)
        self.note(appends, self._outcome(error, durable=True))
        return error is None

    def _outcome(self, error: BaseException | None, *, durable: bool) -> str:
        if error is None:
            return "durable" if durable else "open"
        if isinstance(error, StoreFailedError) and not self.stopped:
            # The request that met the failure: nobody knows what became of it.
            self.stopped = True
            return "open"
        return "refused"

    def note(self, appends: Iterable[QueueAppend], outcome: str) -> None:
        """Remember an append; its records were stamped in place."""
        records = [
            (append.key, record)
            for append in appends
            for record in split([memoryview(append.records.data)])
        ]
        if not all(int.from_bytes(record[28:36], "big") for _, record in records):
            outcome = "refused"  # before it had a place in the log
        self.steps.append(Step(records, outcome))

    def records(self) -> dict[tuple[Key, int], bytes]:
        """Every record that may be there, by queue and offset."""
        return {
            (key, offset_of(record)): record
            for step in self.steps
            if step.outcome != "refused"
            for key, record in step.records
        }


def found_in(store: MessageStore) -> Found:
    """Read all queues of a store from their first offset to their end."""
    records: dict[Key, list[bytes]] = {}
    for key in store.queues():
        offset, read = store.bounds(*key).min_offset, records.setdefault(key, [])
        while (result := store.read(*key, offset, 1000, 1 << 30)).count:
            read += split(result.slices)
            offset = result.next_offset
    return Found(records, {key: store.bounds(*key).max_offset for key in records})


def check_log(history: History, found: Found) -> int:
    """I1 to I4; the number of steps that are there."""
    wanted = history.records()
    seen: dict[tuple[Key, int], bytes] = {}
    for key, records in found.records.items():
        offsets = [offset_of(record) for record in records]
        assert offsets == sorted(set(offsets)), f"I4: offsets of {key} do not increase"
        for offset, record in zip(offsets, records, strict=True):
            assert wanted.get((key, offset)) == record, f"I3: {key} {offset} was never appended"
            seen[key, offset] = record
        if offsets:
            assert found.next_offsets[key] > offsets[-1], f"I4: next offset of {key}"
    kept = []
    for number, step in enumerate(step for step in history.steps if step.outcome != "refused"):
        there = {seen.get((key, offset_of(record))) == record for key, record in step.records}
        assert len(there) == 1, f"I2: step {number} is there in part"
        kept.append(there == {True})
        if step.outcome == "durable":
            assert kept[-1], f"I1: step {number} was acknowledged and is gone"
            for key, record in step.records:
                assert found.next_offsets[key] > offset_of(record), f"I4: next offset of {key}"
    count = sum(kept)
    assert kept == [True] * count + [False] * (len(kept) - count), f"I2: a hole in {kept}"
    return count


def check_same_twice(open_and_read: Callable[[], Found], bytes_of: Callable[[], object]) -> Found:
    """I6: opening once more shows the same, and leaves the same bytes."""
    first, before = open_and_read(), bytes_of()
    second = open_and_read()
    assert second == first, "I6: the second open shows something else"
    assert bytes_of() == before, "I6: the second open changed bytes"
    return first


def check_latest(
    appended: Iterable[bytes], found: Iterable[bytes], key_of: Callable[[bytes], bytes]
) -> None:
    """I5: the latest record of each key is there."""
    latest = {key_of(record): record for record in appended}
    missing = set(latest.values()) - set(found)
    assert not missing, f"I5: the latest of {sorted(map(key_of, missing))} is gone"


def check_views(found: list[bytes], *views: list[bytes]) -> None:
    """I5: one of several whole views is there, never a mixture."""
    offsets = [[offset_of(record) for record in view] for view in (found, *views)]
    assert found in views, f"I5: {offsets[0]} is none of {offsets[1:]}"


def check_damage_is_told(
    history: History, open_store: Callable[[], MessageStore], file: Path, byte: int
) -> list[Key]:
    """I7: the open or the reads of what is damaged raise with file and byte; the rest is there.

    Gives the queues of which a read failed, none when the open did.
    """
    told = re.compile(rf"{re.escape(str(file))}.* byte {byte} ", re.DOTALL)
    complaints: list[str] = []
    failed: list[Key] = []
    try:
        store = open_store()
    except CorruptLogError as error:
        complaints.append(str(error))
    else:
        with store:
            for (key, offset), record in history.records().items():
                try:
                    result = store.read(*key, offset, 1)
                except CorruptLogError as error:
                    complaints.append(str(error))
                    failed.append(key)
                else:
                    assert split(result.slices) == [record], f"I7: {key} {offset} is skipped"
    assert complaints, "I7: nothing was told"
    assert all(map(told.search, complaints)), f"I7: byte {byte} is not in {complaints}"
    return failed
