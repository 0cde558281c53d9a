"""The rule of the commit log: what counts, by the order of the records alone."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.commit_log import CommitLog, Verdict, record_key
from headrace.protocol.transactions import CommitRecord

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
    log = CommitLog()
    found = [log.feed(place, record(*step)) for place, (step, _) in enumerate(steps)]
    assert found == [verdict for _, verdict in steps]
    newest = [step for step, verdict in steps if verdict is VALID][-1]
    assert log.record == record(*newest)
    assert log.closed == (newest[0] == "close")


def test_a_log_whose_beginning_is_gone_begins_with_what_is_there() -> None:
    log = CommitLog()
    assert log.feed(90, record("commit", 7, 40, "a")) is VALID
    assert (log.epoch, log.batch, log.driver) == (7, 40, "a")


def test_records_that_were_read_before_change_nothing() -> None:
    log = CommitLog()
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

    def next(self, log: CommitLog, kind: str) -> CommitRecord | None:
        if self.pending is not None:
            # No answer came: it appends the same again, under another key.
            self.doubts += 1
            return self.pending
        if kind == "open":
            return record("open", log.epoch + 1, log.batch, self.name)
        if self.epoch == 0 or self.epoch != log.epoch or log.closed:
            return None
        return record(kind, self.epoch, log.batch + (kind == "commit"), self.name)

    def look(self, log: CommitLog) -> None:
        """Read the log, and learn what became of the record."""
        if log.driver == self.name:
            self.epoch = log.epoch
        wanted = self.pending
        if wanted is not None and self.is_settled(log, wanted):
            self.pending = None
            # One that came too late: the next one needs a key of its own.
            self.doubts += wanted.kind == "open" and log.epoch != wanted.epoch

    def is_settled(self, log: CommitLog, wanted: CommitRecord) -> bool:
        if wanted.kind == "open":
            return log.epoch >= wanted.epoch or log.batch > wanted.batch
        if log.epoch > wanted.epoch or log.closed:
            return True
        return wanted.kind == "commit" and log.batch >= wanted.batch


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_compaction_changes_nothing(data: st.DataObject) -> None:
    """Records come late, and again under other keys; any beginning is compacted by key."""
    log, entries = CommitLog(), list[tuple[str, CommitRecord]]()
    under_way: list[tuple[str, CommitRecord]] = []
    drivers = [Driver(name) for name in "abc"]
    for _ in range(data.draw(st.integers(1, 25))):
        lands: bool = data.draw(st.booleans())
        if lands and under_way:
            key, made = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
            log.feed(len(entries), made)
            entries.append((key, made))
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
    begin = entries[-1][1].stands_on - 1 if entries else -1
    if begin >= 0 and begin in survivors(entries, cut):
        short = read(entries, compacted_before=cut, begin=begin)
        assert short.record == log.record
        assert (short.driver, short.closed) == (log.driver, log.closed)


def survivors(entries: list[tuple[str, CommitRecord]], compacted_before: int) -> set[int]:
    latest = {key: place for place, (key, _) in enumerate(entries[:compacted_before])}
    return {*latest.values(), *range(compacted_before, len(entries))}


def read(
    entries: list[tuple[str, CommitRecord]], compacted_before: int, begin: int = 0
) -> CommitLog:
    log = CommitLog()
    for place in sorted(survivors(entries, compacted_before)):
        if place >= begin:
            log.feed(place, entries[place][1])
    return log


def test_first_copy_that_comes_late_hides_nothing_when_compacted() -> None:
    """The commit was sent twice; its first copy lands when a newer epoch is open."""
    open_1, commit = record(*OPEN_1), record(*COMMIT_1)
    stale, fresh = record("open", 2, 0, "b"), record(*OPEN_2)
    entries = [
        (record_key(open_1), open_1),
        (record_key(commit, 1), commit),
        (record_key(stale), stale),
        (record_key(fresh, 1), fresh),
        (record_key(commit), commit),
    ]
    for cut in range(len(entries) + 1):
        assert read(entries, compacted_before=cut).record == fresh
