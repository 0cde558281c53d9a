"""Which files of a folder are ready."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from headrace.connect.connectors.formats.standing import Found, is_unfinished

__all__ = ["ready_files"]


def ready_files(folder: Path, pattern: str, settle: float) -> Iterator[Found]:
    """Give the files that match, in the order of their names.

    Files that were written less than ``settle`` seconds ago may not be finished; nor may those
    whose names begin with a dot or an underscore, or end as unfinished files do.
    """
    latest = time.time_ns() - int(settle * 1e9)
    for path in sorted(folder.glob(pattern)):
        name = path.relative_to(folder).as_posix()
        if is_unfinished(name):
            continue
        try:
            state = path.stat()
        except FileNotFoundError:  # moved away since it was listed
            continue
        if path.is_file() and state.st_mtime_ns <= latest:
            yield Found(name, state.st_size, state.st_mtime_ns)
