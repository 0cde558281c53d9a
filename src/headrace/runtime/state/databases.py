"""RocksDB databases of state stores: their options, and how one process after another opens them."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rocksdict import BlockBasedOptions, Options, Rdict

from headrace.errors import StateError, StateLockedError
from headrace.private import owners_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["open_database"]

_LOCK_WAIT = 30.0
_LOCK_POLL = 0.005


def _options() -> Options:
    options = Options(raw_mode=True)
    table = BlockBasedOptions()
    table.set_bloom_filter(10, block_based=False)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(32 << 20)
    # Each batch leaves one small file: with filters, a few more to look into cost less than to
    # merge them sooner.
    options.set_level_zero_file_num_compaction_trigger(12)
    options.set_keep_log_file_num(1)
    options.set_max_open_files(64)
    return options


def open_database(path: Path) -> Rdict:
    """Open a database for writing, and make it where there is none; wait while another task has it.

    Where the process that has it is stopped, it may keep it for ever: then a database beside it is
    taken, ``db-1`` for ``db``, which goes once its place is free again.

    Raises
    ------
    StateLockedError
        Another task did not close it in time.
    StateError
        The disk or its permissions are at fault.
    """
    owners_folder(path.parent)
    deadline = time.monotonic() + _LOCK_WAIT
    while True:
        for place in _places(path):
            try:
                database = _open(place)
            except StateLockedError:
                if not _is_stopped(_owner(place / "LOCK")):
                    break
            else:
                if place == path:
                    for beside in path.parent.glob(f"{path.name}-*"):
                        _is_removed(beside)
                return database
        if time.monotonic() > deadline:
            raise StateLockedError(
                f"another task has held the state store in {path} for {_LOCK_WAIT:.0f} s",
                hint="a task of an earlier start may hang: the job tries again",
            )
        time.sleep(_LOCK_POLL)


def _places(path: Path) -> Iterator[Path]:
    yield path
    for number in itertools.count(1):
        yield path.with_name(f"{path.name}-{number}")


def _open(path: Path) -> Rdict:
    try:
        # Without its column family by name, a database that exists is opened with the options of
        # RocksDB: no filters, so that a look-up reads a block of every file.
        return Rdict(str(path), _options(), column_families={"default": _options()})
    except Exception as error:
        if "lock" in str(error).lower():
            raise StateLockedError(f"another task has the state store in {path}") from error
        if "corrupt" in str(error).lower() and _is_removed(path):
            return _open(path)
        raise StateError(
            f"cannot open the local copy of a state store in {path}: {error}",
            hint="check the disk and its permissions; the folder may be deleted, the state topic is"
            " the truth",
        ) from error


def _is_removed(path: Path) -> bool:
    """Delete a database under its own lock, so that one which some task has stays whole."""
    try:
        Rdict.destroy(str(path), _options())
    except Exception as error:  # noqa: BLE001 - RocksDB has one class for all of them
        return "lock" in str(error).lower()
    return True


def _owner(lock: Path) -> int | None:
    """Find the process that has locked a file; None where the system does not tell.

    Not by asking for the lock: to close the file again would end a lock of this process's own.
    """
    try:
        inode = lock.stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        match line.split():
            case [_, "POSIX", _, _, pid, place, *_] if place.endswith(f":{inode}"):
                return int(pid)
    return None


def _is_stopped(process: int | None) -> bool:
    if process is None:
        return False
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in {"T", "t"}
