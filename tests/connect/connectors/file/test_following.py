"""Every line once: through renames, copies, cuts, restarts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from headrace.connect.connectors.file._identity import FilePosition, LineFormat, history
from headrace.connect.connectors.file.source import FileFollower, ReadLimits
from headrace.errors import DeserializationError

LIMITS = ReadLimits(chunk=64, rows=None, line=1024)


class Followed:
    """A follower that remembers lines, and can be killed."""

    def __init__(self, path: Path, limits: ReadLimits = LIMITS, *, past: bool = False) -> None:
        self.path = path
        self.limits = limits
        self.place: FilePosition | None = None
        self.lines: list[str] = []
        self.past = past
        self.start()

    def start(self) -> None:
        self.follower = FileFollower(
            self.path, self.place, LineFormat(), self.limits, past=self.past, patience=0.0
        )

    def kill(self) -> None:
        self.follower.let_go()
        self.start()

    def read(self) -> list[str]:
        before = len(self.lines)
        quiet = 0
        while quiet < 4:  # finding a file again takes a call of its own
            chunk = self.follower.read()
            quiet = quiet + 1 if chunk is None else 0
            if chunk is not None:
                lines = LineFormat().split(chunk.content, chunk.file, chunk.start)
                self.lines += lines.to_pylist()
                self.place = FilePosition.of(chunk.place.offset(), self.path)
        return self.lines[before:]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.log"


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_torn_last_line_waits_for_its_end(path: Path) -> None:
    append(path, "one\ntw")
    followed = Followed(path)
    assert followed.read() == ["one"]
    append(path, "o")
    assert followed.read() == []
    append(path, "\n")
    assert followed.read() == ["two"]


def test_file_may_come_later(path: Path) -> None:
    followed = Followed(path)
    assert followed.read() == []
    append(path, "one\n")
    assert followed.read() == ["one"]


def test_reading_goes_on_after_a_kill(path: Path) -> None:
    append(path, "one\ntwo\nth")
    followed = Followed(path)
    followed.read()
    followed.kill()
    append(path, "ree\n")
    assert followed.read() == ["three"]


@pytest.mark.parametrize("killed", [False, True])
def test_renamed_file_is_read_to_its_end_first(path: Path, killed: bool) -> None:
    append(path, "one\n")
    followed = Followed(path)
    followed.read()
    append(path, "two\n")
    path.rename(f"{path}.1")
    append(path, "three\n")
    if killed:
        followed.kill()
    assert followed.read() == ["two", "three"]


@pytest.mark.parametrize("killed", [False, True])
def test_file_rotated_twice_leaves_no_gap(path: Path, killed: bool) -> None:
    append(path, "one\n")
    followed = Followed(path)
    followed.read()
    append(path, "two\n")
    path.rename(f"{path}.1")
    append(path, "three\n")
    Path(f"{path}.1").rename(f"{path}.2")
    os.utime(f"{path}.2", ns=(0, 10**9))
    path.rename(f"{path}.1")
    os.utime(f"{path}.1", ns=(0, 2 * 10**9))
    append(path, "four\n")
    if killed:
        followed.kill()
    assert followed.read() == ["two", "three", "four"]


@pytest.mark.parametrize("killed", [False, True])
def test_copied_and_cut_file_goes_on_in_the_copy(path: Path, killed: bool) -> None:
    append(path, "one\n")
    followed = Followed(path)
    followed.read()
    append(path, "two\n")
    shutil.copy(path, f"{path}.1")
    os.truncate(path, 0)
    append(path, "three, longer than what was there\n")
    if killed:
        followed.kill()
    assert followed.read() == ["two", "three, longer than what was there"]


def test_cut_file_without_a_copy_starts_again(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    append(path, "one\ntwo\n")
    followed = Followed(path)
    followed.read()
    os.truncate(path, 0)
    append(path, "three\n")
    assert followed.read() == ["three"]
    assert "byte 8, where its reading stood, is in no file" in caplog.text


def test_file_that_an_editor_saved_anew_goes_on(path: Path) -> None:
    append(path, "one\n")
    followed = Followed(path)
    followed.read()
    followed.kill()
    other = path.with_name("app.log.swp")
    append(other, "one\ntwo\n")
    other.rename(path)
    assert followed.read() == ["two"]


def test_last_line_of_a_rotated_file_needs_no_end(path: Path) -> None:
    append(path, "one\ntorn")
    followed = Followed(path)
    followed.read()
    path.rename(f"{path}.1")
    append(path, "two\n")
    assert followed.read() == ["torn", "two"]


def test_removed_file_is_let_go_after_a_while(path: Path) -> None:
    append(path, "one\n")
    followed = Followed(path)
    followed.read()
    os.utime(path, (0, 0))
    assert not followed.follower.is_abandoned
    path.unlink()
    assert followed.follower.is_abandoned


def test_neighbours_are_no_pasts(path: Path) -> None:
    append(path, "one\n")
    append(path.with_name("app.log-other"), "no\n")
    append(path.with_name("app.log.gz"), "no\n")
    append(path.with_name("app.log.old"), "yes\n")
    assert [one.name for one in history(path)] == ["app.log.old", "app.log"]


def test_pasts_are_read_first_where_asked_for(path: Path) -> None:
    append(path.with_name("app.log.1"), "one\n")
    append(path, "two\n")
    assert Followed(path).read() == ["two"]
    assert Followed(path, past=True).read() == ["one", "two"]


def test_place_set_by_hand_needs_no_proof(path: Path) -> None:
    append(path, "one\ntwo\n")
    followed = Followed(path)
    followed.place = FilePosition.of({"position": 4}, path)
    followed.start()
    assert followed.read() == ["two"]


def test_line_longer_than_a_read_is_whole(path: Path) -> None:
    append(path, "x" * 1000 + "\nshort\n")
    assert Followed(path).read() == ["x" * 1000, "short"]


def test_line_that_is_too_long_is_named(path: Path) -> None:
    append(path, "x" * 5000 + "\n")
    with pytest.raises(DeserializationError, match=r"app\.log: the line at position 0 is longer"):
        Followed(path).read()


Step = st.sampled_from(["write", "tear", "rename", "copy", "kill", "read", "kill"])


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(Step, max_size=30), rows=st.sampled_from([None, 1, 3]))
def test_no_line_is_lost_or_doubled(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], rows: int | None
) -> None:
    path = tmp_path_factory.mktemp("follow") / "app.log"
    followed = Followed(path, ReadLimits(chunk=32, rows=rows, line=1024))
    append(path, "line 0\n")
    wrote = ["line 0"]
    followed.read()
    torn = False
    for number, step in enumerate(steps, 1):
        if step == "write":
            append(path, "\n" * torn + f"line {number}\n")
            wrote.append(f"line {number}")
            torn = False
        elif step == "tear" and not torn:
            append(path, f"torn {number}")
            wrote.append(f"torn {number}")
            torn = True
        elif step in {"rename", "copy"} and path.stat().st_size:
            past = path.with_name(f"app.log.{number}")
            if step == "rename":
                path.rename(past)
            else:
                shutil.copy(path, past)
                os.truncate(path, 0)
            os.utime(past, ns=(0, number * 10**9))
            append(path, f"first {number}\n")
            wrote.append(f"first {number}")
            torn = False
        elif step == "kill":
            followed.kill()
        elif step == "read":
            followed.read()
    append(path, "\n" * torn + "the end\n")
    wrote.append("the end")
    followed.read()
    assert followed.lines == wrote
