"""Whole files, written in a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.connect.connectors.formats.writing import write_rows

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["write_file"]


def write_file(path: Path, column: pa.Array, kind: str, compression: str) -> None:
    """Write a file so that it is whole as soon as it has its name.

    Caller: syncs the folder.
    """
    draft = path.with_name(f".{path.name}.tmp")
    with draft.open("wb") as file:
        write_rows(file, column, kind, compression, path.name)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
