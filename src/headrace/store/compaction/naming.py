"""Names of the files of a queue's log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.store.compaction.manifest import FileMeta

__all__ = ["data_path", "index_path", "keys_path", "make_name", "synced_path"]


def make_name(base: int, generation: int) -> str:
    """Name a file by its first offset; the generation makes the name unique.

    >>> make_name(12, 3)
    '00000000000000000012-3'
    """
    return f"{base:020d}-{generation}"


def data_path(folder: Path, name: str) -> Path:
    """Path of a data file.

    >>> data_path(Path("q"), "0-1").name
    '0-1.data'
    """
    return folder / f"{name}.data"


def index_path(folder: Path, meta: FileMeta) -> Path:
    """Path of a file's index."""
    return folder / f"{meta.name}.{meta.derived}.index"


def keys_path(folder: Path, meta: FileMeta) -> Path:
    """Path of a file's key sidecar."""
    return folder / f"{meta.name}.{meta.derived}.keys"


def synced_path(folder: Path, name: str) -> Path:
    """Path of the note that tells how far the active file was synced.

    >>> synced_path(Path("q"), "0-1").name
    '0-1.synced'
    """
    return folder / f"{name}.synced"
