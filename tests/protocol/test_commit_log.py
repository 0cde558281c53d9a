"""The rule of the commit log: what counts, by the order of the records alone."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from headrace.protocol.transactions import (
    CommitReader,
    CommitRecord,
    Verdict,
    newest_known,
    record_key,
)

VALID, REPEATED, VOID = Verdict.VALID, Verdict.REPEATED, Verdict.VOID

Step = tuple[str, int, int, str]


def record(kind: str, epoch: int, batch: int, driver: str) -> CommitRecord:
    return CommitRecord(job="j", kind=kind, epoch=epoch, batch=batch, driver=driver)


OPEN_1: Step = ("open", 1, 0, "a")
COMMIT_1: Step = ("commit", 1, 1, "a")
OPEN_2: Step = ("open", 2, 1, "b")

CASES: dict[str, list[tuple[Step, Verdict]]] = {
    "one driver": [(OPEN_1, VALID), (COMMIT_1, VALID), (("commit", 1, 2, "a"), VALID)],
    "two drivers open at once: the first wins": [
        (OPEN_1, VALID),
        (("open", 1, 0, "b"), VOID),
        (("commit", 1, 1, "b"), VOID),
        (COMMIT_1, VALID),
    ],
    "an open whose answer was lost comes again": [
        (OPEN_1, VALID),
        (OPEN_1, REPEATED),
        (COMMIT_1, VALID),
        (OPEN_1, REPEATED),
    ],
    "a commit comes again": [
        (OPEN_1, VALID),
        (COMMIT_1, VALID),
        (COMMIT_1, REPEATED),
        (("commit", 1, 2, "a"), VALID),
        (COMMIT_1, REPEATED),
    ],
    "a commit after the open of a newer epoch": [
        (OPEN_1, VALID),
        (COMMIT_1, VALID),
        (OPEN_2, VALID),
        (("commit", 1, 2, "a"), VOID),
        (("commit", 2, 2, "b"), VALID),
    ],
    "a commit that builds on nothing": [(OPEN_1, VALID), (("commit", 1, 2, "a"), VOID)],
    "a commit without an open": [(OPEN_1, VALID), (("commit", 2, 1, "b"), VOID)],
    "an epoch is left out": [(OPEN_1, VALID), (("open", 3, 0, "b"), VOID)],
    "an open that does not know the last commit": [
        (OPEN_1, VALID),
        (COMMIT_1, VALID),
        (("open", 2, 0, "b"), VOID),
        (OPEN_2, VALID),
    ],
    "an old epoch opens late": [
        (OPEN_1, VALID),
        (("open", 2, 0, "b"), VALID),
        (("open", 1, 0, "c"), VOID),
    ],
    "an end in order": [
        (OPEN_1, VALID),
        (COMMIT_1, VALID),
        (("close", 1, 1, "a"), VALID),
        (("close", 1, 1, "a"), REPEATED),
        (("commit", 1, 2, "a"), VOID),
        (COMMIT_1, REPEATED),
        (OPEN_2, VALID),
    ],
    "an end after the takeover": [
        (OPEN_1, VALID),
        (("open", 2, 0, "b"), VALID),
        (("close", 1, 0, "a"), VOID),
    ],
    "the same driver opens again": [
        (OPEN_1, VALID),
        (("open", 2, 0, "a"), VALID),
        (COMMIT_1, VOID),
        (("commit", 2, 1, "a"), VALID),
    ],
}


@pytest.mark.parametrize("steps", CASES.values(), ids=CASES)
def test_verdicts(steps: list[tuple[Step, Verdict]]) -> None:
    log = CommitReader()
    found = [log.feed(place, record(*step)) for place, (step, _) in enumerate(steps)]
    assert found == [verdict for _, verdict in steps]
    newest = [step for step, verdict in steps if verdict is VALID][-1]
    assert log.record == record(*newest)
    assert log.closed == (newest[0] == "close")


def test_a_log_whose_beginning_is_gone_begins_with_what_is_there() -> None:
    log = CommitReader()
    assert log.feed(90, record("commit", 7, 40, "a")) is VALID
    assert (log.epoch, log.batch, log.driver) == (7, 40, "a")


def test_records_that_were_read_before_change_nothing() -> None:
    log = CommitReader()
    log.feed(0, record(*OPEN_1))
    log.feed(1, record(*COMMIT_1))
    assert log.feed(0, record("open", 2, 0, "b")) is REPEATED
    assert (log.epoch, log.next_offset) == (1, 2)


@dataclass
class Driver:
    """Appends as a driver does: what it believes in, one record at a time until that is clear."""

    name: str
    epoch: int = 0
    doubts: int = 0
    pending: CommitRecord | None = None

    def next(self, log: CommitReader, kind: str) -> CommitRecord | None:
        if self.pending is not None:
            # No answer came: it appends the same again, under another key.
            self.doubts += 1
            return self.pending
        if kind == "open":
            return record("open", log.epoch + 1, log.batch, self.name)
        if self.epoch == 0 or self.epoch != log.epoch or log.closed:
            return None
        return record(kind, self.epoch, log.batch + (kind == "commit"), self.name)

    def look(self, log: CommitReader) -> None:
        """Read the log, and learn what became of the record."""
        if log.driver == self.name:
            self.epoch = log.epoch
        wanted = self.pending
        if wanted is not None and self.is_settled(log, wanted):
            self.pending = None
            # One that came too late: the next one needs a key of its own.
            self.doubts += wanted.kind == "open" and log.epoch != wanted.epoch

    def is_settled(self, log: CommitReader, wanted: CommitRecord) -> bool:
        if wanted.kind == "open":
            return log.epoch >= wanted.epoch or log.batch > wanted.batch
        if log.epoch > wanted.epoch or log.closed:
            return True
        return wanted.kind == "commit" and log.batch >= wanted.batch


Entry = tuple[str, CommitRecord | None]


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_compaction_changes_nothing(data: st.DataObject) -> None:
    """Records come late, and again under other keys; any beginning is compacted by key.

    Somebody who has read any part of the log deletes records that nobody needs by then.
    """
    log, entries = CommitReader(), list[Entry]()
    under_way: list[Entry] = []
    drivers = [Driver(name) for name in "abc"]
    for _ in range(data.draw(st.integers(1, 60))):
        lands: bool = data.draw(st.booleans())
        if lands and under_way:
            key, made = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
            feed(log, len(entries), made)
            entries.append((key, made))
        if data.draw(st.integers(0, 3)) == 0:
            under_way += swept(entries, log.epoch)
        driver = data.draw(st.sampled_from(drivers))
        driver.look(log)
        kind = data.draw(st.sampled_from(["open", "commit", "commit", "close"]))
        if (sent := driver.next(log, kind)) is not None:
            if driver.pending is None:
                sent = msgspec.structs.replace(sent, stands_on=log.stands_on)
            driver.pending = sent
            under_way.append((record_key(sent, driver.doubts), sent))
    cut = data.draw(st.integers(0, len(entries)))
    compacted = read(entries, compacted_before=cut)
    assert compacted.record == log.record
    assert (compacted.driver, compacted.closed) == (log.driver, log.closed)
    # Who has read a part before, and goes on behind it.
    late = CommitReader()
    for place in range(data.draw(st.integers(0, len(entries)))):
        feed(late, place, entries[place][1])
    read(entries, compacted_before=cut, log=late)
    assert late.record == log.record
    assert (late.driver, late.closed) == (log.driver, log.closed)


def feed(log: CommitReader, offset: int, entry: CommitRecord | None) -> None:
    if entry is None:
        log.skip(offset)
    else:
        log.feed(offset, entry)


def swept(entries: list[Entry], epoch: int) -> list[Entry]:
    """Delete what lies before the first record of the epoch before the newest."""
    found: dict[str, None] = {}
    for key, made in entries:
        if made is not None:
            if made.epoch + 1 >= epoch:
                break
            found[key] = None
    return [(key, None) for key in found]


def survivors(entries: list[Entry], compacted_before: int) -> list[int]:
    latest = {key: place for place, (key, _) in enumerate(entries[:compacted_before])}
    kept = {place for place in latest.values() if entries[place][1] is not None}
    return sorted({*kept, *range(compacted_before, len(entries))})


def read(
    entries: list[Entry], compacted_before: int, log: CommitReader | None = None
) -> CommitReader:
    log = log or CommitReader()
    places = [at for at in survivors(entries, compacted_before) if at >= log.next_offset]
    whole = places == list(range(log.next_offset, len(entries)))
    known = -1 if whole else newest_known(entries[place][1] for place in places)
    assert known < log.next_offset or known in places
    for place in places:
        if place >= known:
            made = entries[place][1]
            if made is None:
                log.skip(place)
            else:
                log.feed(place, made, counts=place == known)
    return log


def test_first_copy_that_comes_late_hides_nothing_when_compacted() -> None:
    """The commit was sent twice; its first copy lands when a newer epoch is open."""
    open_1, commit = record(*OPEN_1), record(*COMMIT_1)
    stale, fresh = record("open", 2, 0, "b"), record(*OPEN_2)
    entries: list[Entry] = [
        (record_key(open_1), open_1),
        (record_key(commit, 1), commit),
        (record_key(stale), stale),
        (record_key(fresh, 1), fresh),
        (record_key(commit), commit),
    ]
    for cut in range(len(entries) + 1):
        assert read(entries, compacted_before=cut).record == fresh
