"""Tables on disk: whole files of JSON, replaced in one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from headrace.errors import CorruptLogError
from headrace.store.fileops import FileOps, replace_file, write_error

T = TypeVar("T")


@dataclass(slots=True)
class SavedTable:
    """A table that changes in memory, and its file."""

    path: Path
    #: Number of changes so far.
    version: Callable[[], int]
    #: Returns what is to be written; nobody changes it meanwhile.
    content: Callable[[], list[Any] | dict[str, Any]]
    #: The version that is on disk.
    saved: int

    @property
    def is_saved(self) -> bool:
        """Whether the file holds what the table does."""
        return self.saved == self.version()


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
        replace_file(ops, path, _encoded(table))
    except OSError as error:
        # A failed write does not name its file.
        raise write_error(ops, path, error) from error


def _encoded(table: object) -> bytes:
    """Write a table as JSON, a line for each of its rows: between two, other threads have a turn."""
    encode = msgspec.json.encode
    if isinstance(table, list) and table:
        return b"[\n" + b",\n".join(map(encode, table)) + b"\n]\n"
    if isinstance(table, dict) and table:
        rows = (encode(str(key)) + b": " + encode(value) for key, value in table.items())
        return b"{\n" + b",\n".join(rows) + b"\n}\n"
    return encode(table)


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
