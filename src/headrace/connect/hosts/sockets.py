"""Sockets in a folder, however long the folder's path is."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["connect", "listen"]

#: What the system takes as the name of a socket.
_LONGEST = 100


def listen(path: Path) -> socket.socket:
    """Listen at a path that nothing stands at yet."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _short(path) as name:
        listener.bind(name)
    listener.listen(16)
    return listener


def connect(path: Path, timeout: float) -> socket.socket:
    """Connect to whoever listens at a path.

    Raises
    ------
    OSError
        Nobody does.
    """
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connected.settimeout(timeout)
    try:
        with _short(path) as name:
            connected.connect(name)
    except BaseException:
        connected.close()
        raise
    return connected


@contextmanager
def _short(path: Path) -> Iterator[str]:
    if len(os.fsencode(path)) < _LONGEST:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
