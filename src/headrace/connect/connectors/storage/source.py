"""``directory-source`` and ``s3-source``: the rows of whole files, each file once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from headrace.connect import Config, ConfigDeclaration, ConfigProblem, SourceConnector, declare, key
from headrace.connect.connectors.sharing import TaskShare
from headrace.connect.connectors.storage.formats import (
    READING_KEYS,
    ReadyFile,
    delimiter_problems,
    is_unfinished,
)
from headrace.connect.connectors.storage.places import (
    S3_KEYS,
    Bucket,
    DiskFolder,
    Storage,
    connection_problems,
)
from headrace.connect.connectors.storage.task import FilesTask

if TYPE_CHECKING:
    from headrace.connect.records import Position


class DirectorySourceTask(FilesTask):
    """Reads its share of a folder's files."""

    def places(self, config: Config) -> tuple[Storage, Storage, Storage]:
        """Look at the folder."""
        path: Path = config["directory"]
        ledger = DiskFolder.of(config["ledger.directory"] or path / ".headrace")
        return DiskFolder.existing(path), ledger, DiskFolder.of(config["done.directory"] or path)

    def look(self) -> Iterator[ReadyFile]:
        """Find the files that nobody writes to any more, in the order of their names."""
        folder: Path = self._config["directory"]
        latest = time.time_ns() - int(self._config["settle.ms"].total_seconds() * 1e9)
        for path in sorted(folder.glob(self._config["files"])):
            name = path.relative_to(folder).as_posix()
            if is_unfinished(name):
                continue
            try:
                state = path.stat()
            except FileNotFoundError:  # moved away since it was listed
                continue
            if path.is_file() and state.st_mtime_ns <= latest:
                yield ReadyFile(name, state.st_size, state.st_mtime_ns)

    def partition(self, name: str) -> Mapping[str, str]:
        """Name a file by its path below the folder."""
        return {"file": name}

    def name_of(self, partition: Position) -> str | None:
        """Return the path of the file."""
        return partition.get("file")


class DirectorySourceConnector(SourceConnector):
    """Reads files that come into a folder, whole and once."""

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
        return TaskShare.configs(max_tasks)

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


class S3SourceTask(FilesTask):
    """Reads its share of a bucket's objects."""

    def places(self, config: Config) -> tuple[Storage, Storage, Storage]:
        """Look at the bucket."""
        self._bucket = Bucket.of(config)
        self._prefixes = [prefix.strip("/") for prefix in config["prefixes"]] or [""]
        ledger = config["ledger.prefix"] or f"{self._prefixes[0]}/.headrace"
        done = self._bucket.below(config["done.prefix"] or "")
        return self._bucket, self._bucket.below(ledger), done

    def look(self) -> Iterator[ReadyFile]:
        """List the objects below the prefixes, in the order of their keys."""
        found = {one.name: one for prefix in self._prefixes for one in self._listed(prefix)}
        return iter(sorted(found.values(), key=lambda one: one.name))

    def _listed(self, prefix: str) -> Iterator[ReadyFile]:
        for name, info in self._bucket.below(prefix).found():
            if not is_unfinished(name) and fnmatchcase(name, self._config["objects"]):
                yield ReadyFile(f"{prefix}/{name}".lstrip("/"), info.size, info.mtime_ns)

    def partition(self, name: str) -> Mapping[str, str]:
        """Name an object by its bucket and key."""
        return {"bucket": self._config["bucket"], "object": name}

    def name_of(self, partition: Position) -> str | None:
        """Return the object's key."""
        is_ours = partition.get("bucket") == self._config["bucket"]
        return partition.get("object") if is_ours else None


class S3SourceConnector(SourceConnector):
    """Reads objects of a bucket, each once."""

    version = "1.0"
    task = S3SourceTask
    exactly_once = True
    config: ClassVar[ConfigDeclaration] = (
        S3_KEYS
        | declare(
            key("topic", str, "The topic that the rows go to.", required=True),
            key(
                "prefixes",
                list,
                "Where in the bucket: keys up to a slash, by commas; everything below is read.",
                default=[],
            ),
            key(
                "objects",
                str,
                "Which objects, by what follows the prefix: a pattern such as *.parquet, whose * "
                "stands for slashes too.",
                default="*",
            ),
        )
        | READING_KEYS
        | declare(
            key(
                "ledger.prefix",
                str,
                "Where in the bucket the ledger is written; by default in .headrace below the "
                "first prefix.",
                importance="low",
            ),
            key("done.prefix", str, "Where in the bucket when.done=move moves objects to."),
            key(
                "scan.interval.ms",
                timedelta,
                "How often the bucket is listed.",
                default=timedelta(seconds=10),
            ),
        )
    )

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        """Share the objects out by their keys."""
        return TaskShare.configs(max_tasks)

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Name what does not fit together."""
        yield from connection_problems(config)
        yield from delimiter_problems(config)
        if config["when.done"] == "move":
            yield from _moving_problems(config)


def _moving_problems(config: Config) -> Iterable[ConfigProblem]:
    if not config["done.prefix"]:
        yield ConfigProblem("done.prefix", "when.done=move needs done.prefix.")
        return
    target = config["done.prefix"].strip("/") + "/"
    read = [f"{prefix.strip('/')}/".lstrip("/") for prefix in config["prefixes"]] or [""]
    if any(target.startswith(prefix) for prefix in read):
        message = "done.prefix is below what is read: objects would be found again."
        yield ConfigProblem("done.prefix", message)
