"""Folders of queues that are gone: deleted topics leave them behind when a crash comes between."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.store.index import folder_names

if TYPE_CHECKING:
    from headrace.store.fileops import FileOps
    from headrace.store.index import QueueIndex

__all__ = ["remove_strangers"]


def remove_strangers(root: Path, indexes: Iterable[QueueIndex], ops: FileOps) -> list[QueueIndex]:
    """Remove the folders of queues that are not named; the queues that have one."""
    topics = _folders(root)
    if not topics:
        return []
    known = {folder_names(index.key, index.birth): index for index in indexes}
    found = []
    for topic in topics:
        for queue in _folders(root / topic):
            index = known.get((topic, queue))
            if index is None:
                ops.remove_tree(root / topic / queue)
            else:
                found.append(index)
        with contextlib.suppress(OSError):
            (root / topic).rmdir()
    return found


def _folders(root: Path) -> list[str]:
    try:
        with os.scandir(root) as entries:
            return [entry.name for entry in entries if entry.is_dir()]
    except FileNotFoundError:
        return []
