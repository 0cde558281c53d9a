"""The rule of the commit log: what counts, by the order of the records alone."""

from __future__ import annotations

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
    "an old epoch opens late": [(OPEN_1, VALID), (OPEN_2, VALID), (("open", 1, 0, "c"), VOID)],
    "an end in order": [
        (OPEN_1, VALID),
        (COMMIT_1, VALID),
        (("close", 1, 1, "a"), VALID),
        (("close", 1, 1, "a"), REPEATED),
        (("commit", 1, 2, "a"), VOID),
        (COMMIT_1, REPEATED),
        (OPEN_2, VALID),
    ],
    "an end after the takeover": [(OPEN_1, VALID), (OPEN_2, VALID), (("close", 1, 0, "a"), VOID)],
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


@settings(deadline=None)
@given(st.data())
def test_compaction_changes_nothing(data: st.DataObject) -> None:
    """Drivers append what they believe in, late and doubled; any prefix is compacted by key."""
    log, entries = CommitLog(), list[tuple[str, CommitRecord]]()
    waiting: list[tuple[str, CommitRecord]] = []
    epochs = dict.fromkeys("abc", 0)

    def append(key: str, entry: CommitRecord) -> None:
        verdict = log.feed(len(entries), entry)
        entries.append((key, entry))
        if verdict is VALID and entry.kind == "open":
            epochs[entry.driver] = entry.epoch

    for turn in range(data.draw(st.integers(1, 25))):
        driver = data.draw(st.sampled_from("abc"))
        match data.draw(st.sampled_from(["open", "commit", "commit", "close", "late"])):
            case "open":
                made = record("open", log.epoch + 1, log.batch, driver)
                key = record_key(made, turn)
            case "late" if waiting:
                key, made = data.draw(st.sampled_from(waiting))
                key = record_key(made, turn) if made.kind == "open" else key
            case kind if kind != "late" and epochs[driver]:
                batch = log.batch + (kind == "commit")
                made = record(kind, epochs[driver], batch, driver)
                key = record_key(made)
            case _:
                continue
        waiting.append((key, made))
        append(key, made)
    cut = data.draw(st.integers(0, len(entries)))
    latest = {key: place for place, (key, _) in enumerate(entries[:cut])}
    compacted = CommitLog()
    for place, (key, entry) in enumerate(entries):
        if place >= cut or latest[key] == place:
            compacted.feed(place, entry)
    assert compacted.record == log.record
    assert (compacted.driver, compacted.closed) == (log.driver, log.closed)
