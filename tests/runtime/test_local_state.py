"""Local copies of state: always the last commit, from whatever lies on the disk."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rocksdict import Rdict

from headrace.errors import StateMismatchError
from headrace.protocol.transactions import StateSummary
from headrace.runtime.state import local
from headrace.runtime.state.interface import ChangeSet
from headrace.runtime.state.local import LocalCopies, StateTopicBlock, restoring
from headrace.runtime.state.store import CopiedStore

LINEAGE = [[1, 1]]


class FakeTopic:
    """A state topic in memory, which counts how much was read."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, bytes | None]] = []
        self.read_messages = 0

    def append(self, changes: ChangeSet) -> None:
        self.messages += zip(changes.keys, changes.values, strict=True)

    def read(
        self, store: str, partition: int, start: int, end: int, batch: int | None = None
    ) -> Iterator[StateTopicBlock]:
        for at in range(start, end, 2):
            part = self.messages[at : min(at + 2, end)]
            self.read_messages += len(part)
            yield StateTopicBlock([k for k, _ in part], [v for _, v in part], at + len(part))


class Job:
    """Commits batches of one store with one partition, as a driver and its tasks would."""

    def __init__(self, folder: Path) -> None:
        self.topic = FakeTopic()
        self.copies = LocalCopies(folder, self.topic)
        self.summary: StateSummary | None = None
        self.epoch = 1
        self.lineage: list[list[int]] = [[1, 1]]
        self.batch = 0
        self.model: dict[bytes, bytes] = {}

    def attempt(self, changes: dict[bytes, bytes | None], number: int) -> ChangeSet:
        base = self.summary
        store = CopiedStore(self.copies, "store", 0)
        try:
            store.recover(base, self.lineage)
            assert dict(store.scan()) == self.model
            store.put_many(list(changes), list(changes.values()))
            return store.persist((self.epoch, self.batch + 1, number))
        finally:
            store.close()

    def commit(self, changes: dict[bytes, bytes | None], number: int = 1) -> None:
        change_set = self.attempt(changes, number)
        self.batch += 1
        self.topic.append(change_set)
        self.summary = StateSummary(
            store="store",
            partition=0,
            count=change_set.count,
            checksum=change_set.checksum,
            epoch=self.epoch,
            batch=self.batch,
            attempt=number,
            end_offset=len(self.topic.messages),
        )
        for key, value in changes.items():
            if value is None:
                self.model.pop(key, None)
            else:
                self.model[key] = value

    def content(self) -> dict[bytes, bytes]:
        copy = self.copies.open("store", 0, self.summary, self.lineage)
        try:
            return dict(copy.base.scan())
        finally:
            copy.close()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    job = Job(tmp_path)
    job.commit({b"a": b"1", b"b": b"1"})
    job.commit({b"a": b"2", b"c": b"1", b"b": None})
    return job


def test_next_open_applies_the_change_file_that_the_commit_names(job: Job) -> None:
    assert job.content() == {b"a": b"2", b"c": b"1"}
    assert job.topic.read_messages == 0


def test_change_files_of_attempts_that_do_not_count_are_ignored(job: Job, tmp_path: Path) -> None:
    job.attempt({b"x": b"lost"}, number=7)
    job.commit({b"d": b"1"}, number=8)
    assert job.content() == {b"a": b"2", b"c": b"1", b"d": b"1"}
    assert list(tmp_path.rglob("*.arrow")) == []


def test_lost_change_file_is_made_up_for_from_the_topic(job: Job, tmp_path: Path) -> None:
    job.content()
    job.commit({b"e": b"1"})
    shutil.rmtree(tmp_path / "store" / "0" / "changes")
    assert job.content() == job.model
    assert job.topic.read_messages == 1


@pytest.mark.parametrize("damage", [b"", b"ARROW1\0\0 and then nothing of use"])
def test_damaged_change_file_is_not_trusted(job: Job, tmp_path: Path, damage: bytes) -> None:
    job.content()
    job.commit({b"e": b"1"})
    (path,) = tmp_path.rglob("*.arrow")
    path.write_bytes(damage)
    assert job.content() == job.model


def test_change_file_of_which_a_byte_differs_is_never_applied(job: Job, tmp_path: Path) -> None:
    job.content()
    job.commit({b"e": b"1", b"f": b"2"})
    (path,) = tmp_path.rglob("*.arrow")
    whole = path.read_bytes()
    # The values, as a machine leaves them that went down before it had written all: with a footer.
    at = whole.index(b"1212" if b"1212" in whole else b"12")
    path.write_bytes(whole[:at] + bytes(2) + whole[at + 2 :])
    assert job.content() == job.model
    assert job.topic.read_messages == 2


def test_change_file_of_a_job_that_began_anew_is_not_taken_for_its_own(
    job: Job, tmp_path: Path
) -> None:
    job.content()
    job.attempt({b"a": b"3", b"d": b"1"}, number=5)
    # Topics were deleted, so epochs, batches and attempts are numbered as before; elsewhere:
    anew = Job(tmp_path / "elsewhere")
    anew.commit({b"a": b"1", b"b": b"1"})
    anew.commit({b"a": b"2", b"c": b"1", b"b": None})
    anew.commit({b"a": b"3", b"d": b"2"}, number=5)
    job.summary, job.batch, job.topic.messages = anew.summary, 3, anew.topic.messages
    assert job.content() == anew.model


def test_copy_that_is_discarded_stays_the_task_s_own(job: Job, tmp_path: Path) -> None:
    job.content()
    job.epoch, job.lineage = 2, [[2, 1]]
    number = os.open(tmp_path / "store" / "0" / "db" / "IDENTITY", os.O_RDONLY)
    try:
        summary = job.summary
        assert summary is not None
        job.summary = msgspec.structs.replace(summary, epoch=2)
        assert job.content() == job.model
        assert job.topic.read_messages == summary.end_offset
        assert os.fstat(number).st_nlink == 1, "nobody else may have found the place empty"
    finally:
        os.close(number)


def test_damaged_database_that_another_process_has_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks meet the damage, and one has mended it when the other one would delete it."""
    holder = started(tmp_path / "db")
    asked: list[str] = []

    class Damaged:
        destroy = Rdict.destroy

        def __new__(cls, path: str, *given: Any, **named: Any) -> Any:
            asked.append(path)
            if len(asked) == 1:
                raise RuntimeError("Corruption: as it was a moment ago")
            holder.kill()
            holder.wait()
            return Rdict(path, *given, **named)

    monkeypatch.setattr(local, "Rdict", Damaged)
    database = local.open_database(tmp_path / "db")
    try:
        assert database.get(b"k") == b"v"
    finally:
        database.close()


@pytest.mark.skipif(sys.platform != "linux", reason="where the system tells who has a lock")
def test_process_that_is_stopped_does_not_hold_its_successor_up(tmp_path: Path) -> None:
    holder = started(tmp_path / "db")
    holder.send_signal(signal.SIGSTOP)
    try:
        for _ in range(2):
            began = time.monotonic()
            database = local.open_database(tmp_path / "db")
            assert time.monotonic() - began < 5
            assert database.get(b"k") is None, "a copy of its own"
            database.close()
    finally:
        holder.kill()
        holder.wait()
    database = local.open_database(tmp_path / "db")
    assert database.get(b"k") == b"v"
    database.close()
    assert not (tmp_path / "db-1" / "CURRENT").exists()


def started(path: Path) -> subprocess.Popen[str]:
    """Start a process that has a database open."""
    program = (
        "import sys, time; from pathlib import Path\n"
        "from headrace.runtime.state.local import open_database\n"
        "database = open_database(Path(sys.argv[1])); database.put(b'k', b'v'); print('open')\n"
        "sys.stdout.flush(); time.sleep(60)"
    )
    command = [sys.executable, "-c", program, str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    process.stdout.close()
    return process


def test_copy_that_is_several_batches_behind_catches_up(job: Job, tmp_path: Path) -> None:
    job.content()
    saved = tmp_path / "saved"
    shutil.copytree(tmp_path / "store", saved)
    before = job.topic.read_messages
    job.commit({b"a": None, b"f": b"1"})
    job.commit({b"g": b"1"})
    job.content()
    shutil.rmtree(tmp_path / "store")
    shutil.move(saved, tmp_path / "store")
    assert job.content() == job.model
    assert job.topic.read_messages - before == 3


def test_lost_copy_is_replayed_from_the_start(job: Job, tmp_path: Path) -> None:
    job.content()
    shutil.rmtree(tmp_path / "store")
    assert job.content() == job.model
    assert job.topic.read_messages == len(job.topic.messages)


def test_replay_never_brings_a_deleted_value_back(job: Job, tmp_path: Path) -> None:
    job.commit({b"a": None})
    shutil.rmtree(tmp_path / "store", ignore_errors=True)
    assert b"a" not in job.content()


def test_copy_off_the_lineage_is_discarded(job: Job, tmp_path: Path) -> None:
    job.content()
    # The same batch was committed again by another epoch: what the copy holds never counted.
    job.epoch, job.lineage = 2, [[1, 1], [2, 2]]
    job.topic.messages[2:] = [(b"z", b"9")]
    job.summary = None
    job.model = {b"a": b"1", b"b": b"1", b"z": b"9"}
    probe = Job(tmp_path / "probe")
    probe.commit(dict(job.model))
    assert probe.summary is not None
    job.summary = StateSummary(
        store="store",
        partition=0,
        count=3,
        checksum=probe.summary.checksum,
        epoch=2,
        batch=2,
        attempt=1,
        end_offset=3,
    )
    assert job.content() == job.model


def test_topic_that_lost_messages_is_noticed(job: Job, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "store", ignore_errors=True)
    job.topic.messages[0] = (b"a", b"changed")
    del job.topic.messages[3]
    job.topic.messages.append((b"c", b"other"))
    with pytest.raises(StateMismatchError, match="store 'store', partition 0"):
        job.content()


def test_entries_that_end_as_they_were_are_not_written(job: Job) -> None:
    changes = job.attempt({b"a": b"2", b"nothing": None}, number=3)
    assert changes.keys == []
    assert job.summary is not None
    assert (changes.count, changes.checksum) == (job.summary.count, job.summary.checksum)


def test_no_restore_is_reported_when_none_runs(job: Job, tmp_path: Path) -> None:
    job.content()
    assert restoring(tmp_path) == (0, 0)


def test_two_stores_of_one_process_do_not_share_what_is_read(job: Job, tmp_path: Path) -> None:
    """Defect 17: a second RocksDB of a process took over the handles of the first."""
    other = Job(tmp_path / "other")
    other.commit({b"a": b"other"})
    other.commit({b"d": b"other"})
    first = job.copies.open("store", 0, job.summary, job.lineage)
    second = other.copies.open("store", 0, other.summary, other.lineage)
    try:
        for _ in range(2):
            assert first.base.get_many([b"a", b"c", b"d"]) == [b"2", b"1", None]
            assert second.base.get_many([b"a", b"c", b"d"]) == [b"other", None, b"other"]
    finally:
        first.close()
        second.close()
    assert job.content() == {b"a": b"2", b"c": b"1"}


def test_a_start_keeps_what_is_there_and_shares_no_folder(job: Job, tmp_path: Path) -> None:
    """Defect 23: the folder was deleted at every start, and shared by the processes of a job."""
    job.content()
    again = Job(tmp_path)
    again.topic, again.summary, again.model = job.topic, job.summary, job.model
    again.copies = LocalCopies(tmp_path, job.topic)
    before = job.topic.read_messages
    assert again.content() == job.model
    assert job.topic.read_messages == before
    context = multiprocessing.get_context("spawn")
    copy = job.copies.open("store", 0, job.summary, job.lineage)
    with ProcessPoolExecutor(1, context) as pool:
        other = pool.submit(entries, tmp_path, job.topic, job.summary)
        assert not wait([other], timeout=2).done, "one writer at a time"
        copy.close()
        assert other.result(60) == job.model


def entries(folder: Path, topic: FakeTopic, summary: StateSummary | None) -> dict[bytes, bytes]:
    copy = LocalCopies(folder, topic).open("store", 0, summary, LINEAGE)
    try:
        return dict(copy.base.scan())
    finally:
        copy.close()


def test_filters_are_in_use_also_in_a_database_that_exists(job: Job, tmp_path: Path) -> None:
    job.commit({b"d": b"1"})
    assert job.content()[b"d"] == b"1"
    options = max(tmp_path.glob("**/db/OPTIONS-*"), key=lambda path: path.stat().st_mtime_ns)
    assert "filter_policy=bloomfilter" in options.read_text()
