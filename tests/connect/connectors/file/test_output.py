"""What was committed is there after any end, and nothing else."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from headrace.connect import Queue
from headrace.connect.connectors.file.sink import CommittedOutput, OutputFile, Rotation, side_of
from headrace.errors import ConnectorConfigError, StoreError, StoreLockedError

QUEUE = Queue("lines", "broker-a", 0)
NEVER = Rotation(None, None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.txt"


def test_committed_lines_and_offsets_are_one(path: Path) -> None:
    output = OutputFile(path, NEVER)
    output.append(b"one\n")
    output.commit({QUEUE: 1})
    output.append(b"two\n")
    output.close()  # as an end of the process at its worst: what was appended reached the file
    assert path.read_bytes() == b"one\ntwo\n"
    again = OutputFile(path, NEVER)
    assert path.read_bytes() == b"one\n"
    assert again.offsets == {QUEUE: 1}
    again.close()


def test_offsets_of_other_queues_stay(path: Path) -> None:
    output = OutputFile(path, NEVER)
    output.commit({QUEUE: 1})
    other = QUEUE._replace(queue_id=1)
    output.commit({other: 5})
    output.close()
    again = OutputFile(path, NEVER)
    assert again.offsets == {QUEUE: 1, other: 5}
    again.close()


def test_what_others_wrote_before_stays(path: Path) -> None:
    path.write_text("before\n")
    output = OutputFile(path, NEVER)
    output.append(b"never committed\n")
    output.close()
    OutputFile(path, NEVER).close()
    assert path.read_text() == "before\n"


def test_rotation_by_size_leaves_whole_files(path: Path) -> None:
    output = OutputFile(path, Rotation(8, None))
    for number in range(4):
        output.append(b"line\n")
        output.commit({QUEUE: number + 1})
    output.close()
    assert [one.name for one in sorted(path.parent.glob("out.txt*"))] == [
        "out.txt",
        "out.txt.000001",
        "out.txt.000002",
    ]
    assert path.with_name("out.txt.000002").read_text() == "line\nline\n"
    assert path.read_text() == ""


def test_rotation_by_age_spares_empty_files(path: Path) -> None:
    output = OutputFile(path, Rotation(None, timedelta(milliseconds=1)))
    output.commit({QUEUE: 0})
    assert not list(path.parent.glob("out.txt.*"))
    output.append(b"line\n")
    output.commit({QUEUE: 1})
    output.close()
    # The age counts from the file's begin, which is more than a millisecond ago: two fsyncs.
    assert path.with_name("out.txt.000001").read_text() == "line\n"


@pytest.mark.parametrize("renamed", [False, True])
def test_rotation_that_was_killed_is_finished(path: Path, renamed: bool) -> None:
    output = OutputFile(path, NEVER)
    output.append(b"line\n")
    output.commit({QUEUE: 1})
    output._keep(rotating=True)
    output.close()
    if renamed:
        path.rename(path.with_name("out.txt.000001"))
    again = OutputFile(path, NEVER)
    assert path.with_name("out.txt.000001").read_text() == "line\n"
    assert path.read_text() == ""
    assert again.offsets == {QUEUE: 1}
    again.close()


def test_file_that_somebody_cut_off_goes_on_at_its_end(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = OutputFile(path, NEVER)
    output.append(b"one\n")
    output.commit({QUEUE: 1})
    output.close()
    path.unlink()
    OutputFile(path, NEVER).close()
    assert "has 0 bytes, and 4 had been committed" in caplog.text


def test_one_file_has_one_writer(path: Path) -> None:
    output = OutputFile(path, NEVER)
    with pytest.raises(StoreLockedError, match=r"out\.txt is being written by another process"):
        OutputFile(path, NEVER)
    output.close()


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConnectorConfigError, match="no/such of the file"):
        OutputFile(tmp_path / "no" / "such" / "out.txt", NEVER)


def test_damaged_side_file_is_named(path: Path) -> None:
    side_of(path).write_text("{")
    with pytest.raises(StoreError, match=r"\.out\.txt\.committed cannot be read"):
        CommittedOutput.read(side_of(path))
