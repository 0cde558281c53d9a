"""Small tables on disk: whole files of JSON, replaced in one step."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from headrace.errors import CorruptLogError
from headrace.store.fileops import FileOps, replace_file, write_error

__all__ = ["load_snapshot", "save_snapshot"]

T = TypeVar("T")


def save_snapshot(path: Path, table: object) -> None:
    """Replace a file by the JSON of a table, durably.

    A reader, also one after a crash, finds the old content or the new, never a mixture.

    Raises
    ------
    StoreError
        When the disk is full or broken; the old content stays.
    """
    ops = FileOps()
    try:
        ops.make_directory(path.parent)
        replace_file(ops, path, msgspec.json.format(msgspec.json.encode(table), indent=2))
    except OSError as error:
        # A failed write does not name its file.
        raise write_error(ops, path, error) from error


def load_snapshot(path: Path, kind: type[T]) -> T | None:
    """Read a table back; None when it was never saved.

    Raises
    ------
    CorruptLogError
        When the file is not what :func:`save_snapshot` writes.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        message = f"{path} does not hold the table that the broker saved there: {error}"
        hint = "Restore the file from a copy, or remove it to start with an empty table."
        raise CorruptLogError(message, hint=hint) from error
