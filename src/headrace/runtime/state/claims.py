"""Who keeps the local copies of a job's state on this machine."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from headrace.private import owners_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["claimed"]

_FILE = "claim"


@contextlib.contextmanager
def claimed(root: Path) -> Iterator[bool]:
    """Claim a folder of local state for as long as the context lasts; tell whether it is ours.

    Drivers do without a claim that another process has: epochs and RocksDB's own locks keep two of
    them apart.  Who only follows a job must have it, as it would take copies back to a commit that
    the driver has gone beyond.  The system ends the claim of a process that dies.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder, claimed(Path(folder)) as first:
    ...     with claimed(Path(folder)) as second:
    ...         print(first, second)
    True False
    """
    import fcntl

    owners_folder(root)
    number = os.open(root / _FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True
    finally:
        os.close(number)
