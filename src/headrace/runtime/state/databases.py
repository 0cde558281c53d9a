"""RocksDB databases of state stores: their options, and how one process after another opens them."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

from rocksdict import BlockBasedOptions, Options, Rdict

from headrace.errors import StateError, StateLockedError

if TYPE_CHECKING:
    from pathlib import Path

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

    Raises
    ------
    StateLockedError
        Another task did not close it in time.
    StateError
        The disk or its permissions are at fault.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + _LOCK_WAIT
    while True:
        try:
            # Without its column family by name, a database that exists is opened with the options of
            # RocksDB: no filters, so that a look-up reads a block of every file.
            return Rdict(str(path), _options(), column_families={"default": _options()})
        except Exception as error:
            if "lock" in str(error).lower():
                if time.monotonic() > deadline:
                    raise StateLockedError(
                        f"another task has held the state store in {path} for {_LOCK_WAIT:.0f} s",
                        hint="a task of an earlier start may hang: the job tries again",
                    ) from error
                time.sleep(_LOCK_POLL)
            elif "corrupt" in str(error).lower():
                shutil.rmtree(path, ignore_errors=True)
            else:
                raise StateError(
                    f"cannot open the local copy of a state store in {path}: {error}",
                    hint="check the disk and its permissions; the folder may be deleted, the"
                    " state topic is the truth",
                ) from error
