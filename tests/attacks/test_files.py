"""Other users of the machine: what they could read, and what they could have put there."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace import java
from headrace.broker import spawn_broker
from headrace.client import Admin, Client
from headrace.errors import JavaNotFoundError, UnsafeFileError
from headrace.java import cache_folders, find_java
from headrace.private import is_private, owners_secret, private_folder, users_folder
from headrace.runtime.job_plan import pickle_secret
from headrace.settings import JobSettings
from tests.faults.broker import make_lines, send
from tests.faults.local_driver import LocalDriver
from tests.faults.word_pipeline import topology

OTHERS = 0o077
SOMEBODY = 54_321


@pytest.fixture
def careless() -> Iterator[None]:
    """A user whose new files everybody may read and write."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(root: Path) -> list[Path]:
    """List the files that others come to, from a folder that they can enter."""
    found: list[Path] = []
    for path in root.iterdir():
        if path.is_symlink():
            continue
        mode = stat.S_IMODE(path.lstat().st_mode)
        if path.is_dir():
            found += open_to_others(path) if mode & 0o011 else []
        elif mode & OTHERS:
            found.append(path)
    return found


def test_nothing_that_is_written_is_readable_by_others(careless: None, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    broker = spawn_broker(tmp_path / "data" / "broker", port=0)
    try:
        with Client(broker.address) as client:
            for topic in ("lines", "each", "latest", "windows"):
                Admin(client).create_topic(topic, queues=2)
        send(broker.address, make_lines(20))
        with LocalDriver(broker.address, tmp_path / "data" / "job", job=topology) as driver:
            driver.commit(driver.process())
    finally:
        broker.stop()
    pickle_secret(JobSettings(data_dir=tmp_path / "data"), "job")
    assert (tmp_path / "data" / "job").exists()
    assert (tmp_path / "data" / "broker" / "store").exists()
    assert open_to_others(tmp_path) == []


def test_a_folder_of_ours_that_was_open_is_closed(careless: None, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir(0o755)
    assert stat.S_IMODE(private_folder(tmp_path / "old").stat().st_mode) == 0o700


def give_away(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make something another user's."""
    if os.getuid() == 0:
        os.chown(place, SOMEBODY, SOMEBODY)
    else:
        own = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: SOMEBODY)
        place.rename(str(place).replace(f"-{own}", f"-{SOMEBODY}"))


def trap_link(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.parent / "elsewhere").mkdir()
    place.symlink_to(place.parent / "elsewhere")


def trap_open(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir()
    place.chmod(0o777)


def trap_of_somebody(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir(0o700)
    give_away(place, monkeypatch)


@pytest.mark.parametrize("trap", [trap_link, trap_open, trap_of_somebody])
def test_a_place_that_another_user_could_have_made_is_not_used(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    trap: object,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = find_java()
    # The home folder cannot be written to, so that the one for temporary files is left.
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    trap(tmp_path / f"headrace-{os.getuid()}", monkeypatch)  # type: ignore[operator]
    with pytest.raises(UnsafeFileError, match="only this user may write"):
        users_folder("spouts")
    assert list(cache_folders()) == []
    assert "only this user may write" in caplog.text
    # Java's wrapper is run, so it is written and looked for nowhere else.
    with pytest.raises(JavaNotFoundError, match="could be written nowhere"):
        java._wrapped(found)


def test_a_wrapper_that_lies_in_such_a_place_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = find_java()
    home = java._wrapped(found)
    assert (home / "bin" / "java").exists()
    assert java._wrapped(found) == home
    (tmp_path / "cache" / "headrace").chmod(0o777)
    assert java._wrapped(found) != home


def test_a_secret_is_made_once_and_by_its_owner_only(careless: None, tmp_path: Path) -> None:
    place = tmp_path / "secrets" / "job"
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: owners_secret(place, 32), range(8)))
    assert len(found) == 1
    assert [len(secret) for secret in found] == [32]
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert [path.name for path in place.parent.iterdir()] == ["job"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_secret_that_others_know_is_none(tmp_path: Path, mode: int) -> None:
    place = tmp_path / "secrets" / "job"
    owners_secret(place, 32)
    place.chmod(mode)
    with pytest.raises(UnsafeFileError, match="others can"):
        owners_secret(place, 32)


def test_a_secret_behind_a_link_is_none(tmp_path: Path) -> None:
    owners_secret(tmp_path / "secrets" / "other", 32)
    (tmp_path / "secrets" / "job").symlink_to(tmp_path / "secrets" / "other")
    with pytest.raises(UnsafeFileError, match="it is a link"):
        owners_secret(tmp_path / "secrets" / "job", 32)


def test_a_file_in_a_folder_of_all_is_nobodys_own(tmp_path: Path) -> None:
    place = tmp_path / "open"
    place.mkdir()
    (place / "file").touch(0o600)
    assert is_private(place / "file")
    place.chmod(0o777)
    assert not is_private(place / "file")
    # As in /tmp: who owns a file keeps it.
    place.chmod(0o1777)
    assert is_private(place / "file")
