"""File descriptors: how many a process may have, and how many of them connections may take."""

from __future__ import annotations

import contextlib
import resource

#: So many are kept for the files of the store.
_FOR_FILES = 256


def raise_limit() -> None:
    """Allow this process as many descriptors as the system lets it have.

    Caller: the start of a process that is a broker and nothing else.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_connections(wanted: int) -> int:
    """Cut a number of connections to what leaves the store its files.

    >>> 0 < most_connections(10**9) < 10**9
    True
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(soft // 2, soft - _FOR_FILES - soft // 8))
