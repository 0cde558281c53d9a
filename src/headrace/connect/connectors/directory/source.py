"""``directory-source``: the rows of whole files that come into a folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from headrace.connect import (
    Config,
    ConfigDeclaration,
    ConfigProblem,
    SourceConnector,
    declare,
    key,
)
from headrace.connect.connectors.directory._listing import ready_files
from headrace.connect.connectors.durable import sync_folder, write_whole
from headrace.connect.connectors.formats.keys import READING_KEYS, delimiter_problems
from headrace.connect.connectors.formats.reading import Readable, is_appendable
from headrace.connect.connectors.formats.task import FilesTask, shares
from headrace.errors import ConnectorConfigError

if TYPE_CHECKING:
    from headrace.connect.connectors.formats.standing import Found
    from headrace.connect.records import Position

__all__ = ["DirectorySourceConnector", "DirectorySourceTask"]


class LedgerFolder:
    """A folder with segments of a ledger; it is made when the first one is written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __str__(self) -> str:
        """Name the folder."""
        return str(self._folder)

    def read(self, name: str) -> bytes | None:
        """Give a file; ``None`` where there is none."""
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Write a file, which is on disk before this returns."""
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True, exist_ok=True)
            sync_folder(self._folder.parent)
        write_whole(self._folder / name, content)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        (self._folder / name).unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Give the names of all files."""
        return [one.name for one in self._folder.iterdir()] if self._folder.is_dir() else []


class DirectorySourceTask(FilesTask):
    """Reads its share of a folder's files."""

    def start(self, config: Config) -> None:
        """Look at the folder."""
        self._folder: Path = config["directory"]
        if not self._folder.is_dir():
            message = f"The folder {self._folder} does not exist."
            raise ConnectorConfigError(message, hint="Make it, or correct the key directory.")
        super().start(config)

    def look(self) -> Iterable[Found]:
        """Find the files that nobody writes to any more."""
        settle = self._config["settle.ms"].total_seconds()
        return ready_files(self._folder, self._config["files"], settle)

    def readable(self, name: str) -> Readable:
        """Tell how a file is opened."""
        path = str(self._folder / name)
        return Readable(path, partial(pa.OSFile, path))

    def partition(self, name: str) -> Mapping[str, str]:
        """Name a file by its path below the folder."""
        return {"file": name}

    def name_of(self, partition: Position) -> str | None:
        """Give the path of the file."""
        return partition.get("file")

    def is_appendable(self, name: str, kind: str) -> bool:
        """Whether a file that has grown may have been appended to."""
        return is_appendable(name, kind)

    def ledger_files(self) -> LedgerFolder:
        """Tell where it is written down which files were read, where they are many."""
        return LedgerFolder(self._config["ledger.directory"] or self._folder / ".headrace")

    def remove(self, name: str) -> None:
        """Move a file away, or delete it."""
        path = self._folder / name
        if self._config["when.done"] == "delete":
            path.unlink(missing_ok=True)
            return
        target = self._config["done.directory"] / name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)


class DirectorySourceConnector(SourceConnector):
    """Reads files that come into a folder, whole and once; see docs/connect-connectors.md."""

    version = "1.0"
    task = DirectorySourceTask
    exactly_once = True
    config: ClassVar[ConfigDeclaration] = (
        declare(
            key("directory", Path, "The folder to read.", required=True),
            key("topic", str, "The topic that the rows go to.", required=True),
            key(
                "files",
                str,
                "Which files of the folder: a pattern; **/ looks into folders below too.",
                default="*",
            ),
        )
        | READING_KEYS
        | declare(
            key("done.directory", Path, "Where when.done=move moves files to."),
            key(
                "ledger.directory",
                Path,
                "Where the ledger is written; by default in .headrace in the folder that is read.  "
                "Whatever worker runs a task must find it there.",
                importance="low",
            ),
            key(
                "settle.ms",
                timedelta,
                "How long nobody must have written to a file before it counts as finished.",
                default=timedelta(seconds=1),
            ),
        )
    )

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        """Share the files out by their names."""
        return shares(max_tasks)

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Name what does not fit together."""
        if config["when.done"] == "move":
            folder = config["done.directory"]
            if folder is None:
                yield ConfigProblem("done.directory", "when.done=move needs done.directory.")
            elif folder.absolute().is_relative_to(config["directory"].absolute()):
                message = "done.directory is within directory: files would be found again."
                yield ConfigProblem("done.directory", message)
        yield from delimiter_problems(config)
