"""Files that were read and stay, more than a commit record should name: each is read once."""

from __future__ import annotations

import json
import os
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from pyarrow import fs

from headrace.connect.connectors.storage import FilesSourceConnector
from headrace.connect.connectors.storage.formats import FileProgress, ReadyFile
from headrace.connect.connectors.storage.ledger import FileLedger
from headrace.connect.connectors.storage.places import DiskFolder
from headrace.connect.testing.contexts import KitOffsets
from headrace.errors import StoreError
from tests.connect.connectors.runs import SourceRun, source


class Memory(dict[str, bytes], DiskFolder):
    """Keeps segments."""

    def __init__(self) -> None:
        DiskFolder.__init__(self, fs.LocalFileSystem(), "memory")

    def read(self, name: str) -> bytes | None:
        return self.get(name)

    def write(self, name: str, content: bytes | pa.Buffer) -> None:
        self[name] = bytes(content)

    def remove(self, name: str) -> None:
        self.pop(name, None)

    def names(self) -> list[str]:
        return list(self)


def found(number: int, modified: int | None = None) -> ReadyFile:
    return ReadyFile(f"in/part-{number:07}.csv", 100 + number, modified or 10**18 + number * 10**9)


def done(files: list[ReadyFile]) -> dict[str, FileProgress]:
    return {one.name: FileProgress(7, one.size, one.modified, done=True) for one in files}


def opened(
    files: Memory, committed: KitOffsets, generation: int = 1, share: str = "0/1"
) -> FileLedger:
    return FileLedger(files, share, generation, committed, lambda _: True)


def fold(ledger: FileLedger, files: list[ReadyFile], committed: KitOffsets) -> None:
    for partition, offset in ledger.fold(done(files)):
        committed.put(partition, offset)
    ledger.commit()


def check_many(number: int, step: int) -> None:
    files, committed = Memory(), KitOffsets()
    ledger, written = opened(files, committed), 0
    there = [found(one) for one in range(number)]
    for first in range(0, number, step):
        fold(ledger, there[first : first + step], committed)
        written += sum(map(len, files.values()))
        assert len(json.dumps(committed.all())) < 4_000
        assert len(committed.all()) == len(files) <= 20
    late, same = found(number, modified=1), found(5, modified=2)
    again = [*there[:5], same, *there[6:], late]
    for one in (ledger, opened(files, committed, generation=2)):
        assert [place for place, is_done in enumerate(one.are_done(again)) if not is_done] == [
            5,
            number,
        ]
        assert one.standing(late.name) is None
        assert one.standing(same.name) == FileProgress(7, 105, there[5].modified, done=True)
        assert one.missing({file.name for file in there[1:]}) == [there[0].name]


def test_many_files_have_few_short_positions() -> None:
    check_many(10_000, 500)


@pytest.mark.slow
def test_a_million_files_have_few_short_positions() -> None:
    check_many(1_000_000, 40_000)


def test_what_is_forgotten_stays_so_and_what_nobody_names_is_removed() -> None:
    files, committed = Memory(), KitOffsets()
    there = [found(number) for number in range(40)]
    ledger = opened(files, committed)
    fold(ledger, there[:30], committed)
    ledger.forget(there[3].name)
    assert ledger.are_done(there[:5]) == [True, True, True, False, True]
    assert ledger.forgotten == 1
    fold(ledger, there[30:32], committed)
    assert ledger.forgotten == 0
    ledger.fold(done(there[32:34]))
    assert len(files) == 3, "and the last one is of a life that ends here"
    ledger = opened(files, committed, generation=2)
    assert set(files) == {partition["ledger"] for partition, _ in committed.all()}
    assert [one for one, is_done in zip(there, ledger.are_done(there), strict=True) if is_done] == [
        *there[:3],
        *there[4:32],
    ]


def test_segment_that_is_gone_or_damaged_is_named() -> None:
    files, committed = Memory(), KitOffsets()
    fold(opened(files, committed), [found(1), found(2)], committed)
    (name,) = files
    content = files[name]
    for broken, why in ((b"x" + content[1:], "is not what was written"), (None, "is gone")):
        files.pop(name)
        if broken is not None:
            files[name] = broken
        with pytest.raises(StoreError, match=f"{name} in .* {why}; .* which 2 files"):
            opened(files, committed, generation=2)


# With real files.


def texts(folder: Path, **more: str) -> dict[str, str]:
    given = {name.replace("_", "."): value for name, value in more.items()}
    fixed = {"uri": str(folder), "topic": "rows", "settle.ms": "0", "scan.interval.ms": "0"}
    return {**fixed, "files": "*.jsonl", "ledger.after.files": "3", **given}


def read_all(run: SourceRun) -> list[Any]:
    """Have everything read, and its positions folded."""
    found: list[Any] = []
    while more := run.values(rounds=25):
        found += more
    run.values(rounds=25)
    return found


def segments(folder: Path) -> set[str]:
    return {one.name for one in (folder / ".headrace").iterdir()}


def test_files_that_stay_are_read_once_however_many_they_are(tmp_path: Path) -> None:
    with source(FilesSourceConnector, texts(tmp_path)) as run:
        for number in range(0, 40, 10):
            for one in range(number, number + 10):
                (tmp_path / f"{one:02}.jsonl").write_text(f"{one}\n")
            assert sorted(read_all(run)) == list(range(number, number + 10))
            assert len(run.committed.all()) < 9
            run.kill()
            assert read_all(run) == []
        late, same, longer = (tmp_path / f"{name}.jsonl" for name in ("late", "07", "08"))
        late.write_text("100\n")
        os.utime(late, (1, 1))
        same.write_text("0\n")
        with longer.open("a") as file:
            file.write("103\n")
        (tmp_path / "09.jsonl").rename(tmp_path / "renamed.jsonl")
        run.kill()
        assert sorted(read_all(run)) == [0, 9, 100, 103]
        run.kill()
        assert read_all(run) == []
        named = {partition.get("ledger") for partition, _ in run.committed.all()}
        assert named - {None} == segments(tmp_path)


def test_files_are_shared_out_otherwise(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number}.jsonl").write_text(f"{number}\n")
    with source(FilesSourceConnector, texts(tmp_path), tasks=2) as run:
        assert sorted(read_all(run)) == list(range(20))
        for tasks in (2, 1, 3, 2):
            run.most = tasks
            run.kill()
            assert read_all(run) == []
            for number in range(12):
                (tmp_path / f"{number}-of-{tasks}-{len(run.records)}.jsonl").write_text(
                    f"{number}\n"
                )
                (tmp_path / f"{number}.jsonl").touch()
            assert sorted(read_all(run)) == sorted(2 * list(range(12)))


def test_what_is_folded_while_files_are_looked_through_is_not_read_again(tmp_path: Path) -> None:
    with source(FilesSourceConnector, texts(tmp_path, ledger_after_files="4")) as run:
        for number in (7, 8, 9):
            (tmp_path / f"{number}.jsonl").write_text(f"{number}\n")
        assert read_all(run) == [7, 8, 9]
        for number in (1, 2):
            (tmp_path / f"{number}.jsonl").write_text(f"{number}\n")
        found: list[Any] = []
        for _ in range(20):
            found += run.values(rounds=1)
        assert found == [1, 2]
        assert [list(partition) for partition, _ in run.committed.all()] == [["ledger"], ["file"]]


def test_position_that_is_set_by_hand_holds_before_the_ledger(tmp_path: Path) -> None:
    with source(FilesSourceConnector, texts(tmp_path)) as run:
        for number in range(5):
            (tmp_path / f"{number}.jsonl").write_text(f"{number}\n")
        assert len(read_all(run)) == 5
        run.committed.put({"file": "3.jsonl"}, {"row": 0})
        run.kill()
        assert read_all(run) == [3]
        run.kill()
        assert read_all(run) == []


@pytest.mark.parametrize("action", ["move", "delete"])
def test_files_of_the_ledger_leave_when_they_are_to(tmp_path: Path, action: str) -> None:
    folder, target = tmp_path / "in", tmp_path / "done"
    folder.mkdir()
    for number in range(8):
        (folder / f"{number}.jsonl").write_text(f"{number}\n")
    with source(FilesSourceConnector, texts(folder)) as run:
        assert len(read_all(run)) == 8
        run.texts = texts(folder, when_done=action, done_uri=str(target))
        run.kill()
        assert read_all(run) == []
        assert list(folder.glob("*.jsonl")) == []
        assert len(list(target.glob("*"))) == (8 if action == "move" else 0)
        (folder / "1.jsonl").write_text("1\n")
        assert read_all(run) == [1]


def test_gone_files_leave_the_ledger(tmp_path: Path) -> None:
    with source(FilesSourceConnector, texts(tmp_path, forget_after_ms="0")) as run:
        for number in range(8):
            (tmp_path / f"{number}.jsonl").write_text(f"{number}\n")
        assert len(read_all(run)) == 8
        times = (tmp_path / "1.jsonl").stat().st_mtime_ns
        for number in range(4):
            (tmp_path / f"{number}.jsonl").unlink()
        assert read_all(run) == []
        run.kill()
        (tmp_path / "1.jsonl").write_text("1\n")
        os.utime(tmp_path / "1.jsonl", ns=(times, times))
        assert read_all(run) == [1], "as a file that was never there"


def test_without_a_place_for_the_ledger_positions_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    config = texts(tmp_path, ledger_uri=str(tmp_path / "file" / "ledger"))
    with source(FilesSourceConnector, config) as run:
        for number in range(8):
            (tmp_path / f"{number}.jsonl").write_text(f"{number}\n")
        assert sorted(read_all(run)) == list(range(8))
        run.kill()
        assert read_all(run) == []
        assert len(run.committed.all()) == 8
    assert "name another place by ledger.uri" in caplog.text


STEPS = ["file", "late", "poll", "poll", "poll", "commit", "kill", "replace", "append", "remove"]


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.sampled_from(STEPS), max_size=25), tasks=st.integers(1, 2))
@example(steps=["file", "file", "remove", "file", "replace", "replace", "kill"], tasks=1)
def test_every_row_is_read_once_whatever_becomes_of_files(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], tasks: int
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    numbers, times = count(1000), count(10**9)
    files: list[Path] = []

    def write(path: Path, mode: str, *, late: bool = False) -> None:
        with path.open(mode) as file:
            file.write(f"{next(numbers)}\n")
        when = next(times) - (10**8 if late else 0)
        os.utime(path, (when, when))

    with source(FilesSourceConnector, texts(folder, forget_after_ms="0"), tasks) as run:
        for step in [*steps, "file"]:
            if step in {"file", "late"}:
                files.append(folder / f"{len(files) * 7 % 10}-{len(files)}.jsonl")
                write(files[-1], "w", late=step == "late")
            elif step == "poll":
                run.poll(rounds=1)
            elif step == "commit":
                run.commit()
            elif step == "kill":
                run.kill()
            elif files:
                # What is not read before it is gone never comes.
                read_all(run)
                if step == "remove":
                    files[0].unlink(missing_ok=True)
                else:
                    write(files[0], "a" if step == "append" else "w")
        read_all(run)
        rows = sorted(record.value for record in run.records)
        assert rows == list(range(1000, next(numbers)))
        run.kill()
        assert read_all(run) == []
