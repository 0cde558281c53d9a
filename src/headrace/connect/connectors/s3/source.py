"""``s3-source``: the rows of a bucket's objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from pyarrow import fs

from headrace.connect import (
    Config,
    ConfigDeclaration,
    ConfigProblem,
    SourceConnector,
    declare,
    key,
)
from headrace.connect.connectors.formats.keys import READING_KEYS, delimiter_problems
from headrace.connect.connectors.formats.reading import Readable
from headrace.connect.connectors.formats.standing import Found, is_unfinished
from headrace.connect.connectors.formats.task import FilesTask, shares
from headrace.connect.connectors.s3._marks import write_object
from headrace.connect.connectors.s3.connection import (
    S3_KEYS,
    Bucket,
    connection_problems,
    failure_of,
    outage_of,
)

if TYPE_CHECKING:
    from headrace.connect.records import Position

__all__ = ["S3SourceConnector", "S3SourceTask"]


class LedgerObjects:
    """Objects with segments of a ledger."""

    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self._bucket = bucket
        self._path = bucket.path(prefix)

    def __str__(self) -> str:
        """Name the place."""
        return self._path

    def read(self, name: str) -> bytes | None:
        """Give an object; ``None`` where there is none."""
        try:
            with self._bucket.files.open_input_file(self._named(name)) as stream:
                content: bytes = stream.read()
                return content
        except FileNotFoundError:
            return None
        except OSError as error:
            raise failure_of(error, self._named(name)) from error

    def write(self, name: str, content: bytes) -> None:
        """Write an object, which is there whole or not at all."""
        try:
            write_object(
                self._bucket, self._named(name), content, "application/vnd.apache.arrow.file"
            )
        except OSError as error:
            raise failure_of(error, self._named(name)) from error

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
        try:
            self._bucket.files.delete_file(self._named(name))
        except FileNotFoundError:
            return
        except OSError as error:
            raise failure_of(error, self._named(name)) from error

    def names(self) -> list[str]:
        """Give the names of all objects."""
        try:
            found = self._bucket.files.get_file_info(
                fs.FileSelector(self._path, allow_not_found=True)
            )
        except OSError as error:
            raise failure_of(error, self._path) from error
        return [info.base_name for info in found]

    def _named(self, name: str) -> str:
        return f"{self._path}/{name}"


class S3SourceTask(FilesTask):
    """Reads its share of a bucket's objects."""

    def start(self, config: Config) -> None:
        """Look at the bucket."""
        self._bucket = Bucket(config)
        super().start(config)

    def look(self) -> Iterator[Found]:
        """List the objects below the prefixes, in the order of their keys."""
        found = {one.name: one for prefix in self._prefixes() for one in self._listed(prefix)}
        return iter(sorted(found.values(), key=lambda one: one.name))

    def _prefixes(self) -> list[str]:
        return [prefix.strip("/") for prefix in self._config["prefixes"]] or [""]

    def _listed(self, prefix: str) -> Iterator[Found]:
        where = fs.FileSelector(self._bucket.path(prefix), allow_not_found=True, recursive=True)
        try:
            infos = self._bucket.files.get_file_info(where)
        except OSError as error:
            raise failure_of(error, f"bucket {self._bucket.name}") from error
        for info in infos:
            key = info.path.removeprefix(self._bucket.path(""))
            below = key.removeprefix(prefix).lstrip("/")
            if info.type is fs.FileType.File and self._is_wanted(below):
                yield Found(key, info.size, info.mtime_ns)

    def _is_wanted(self, name: str) -> bool:
        return not is_unfinished(name) and fnmatchcase(name, self._config["objects"])

    def readable(self, name: str) -> Readable:
        """Tell how an object is opened."""
        path = self._bucket.path(name)
        opened = partial(self._bucket.files.open_input_file, path)
        return Readable(path, opened, partial(outage_of, what=path))

    def partition(self, name: str) -> Mapping[str, str]:
        """Name an object by its bucket and key."""
        return {"bucket": self._bucket.name, "object": name}

    def name_of(self, partition: Position) -> str | None:
        """Give the object's key."""
        return partition.get("object") if partition.get("bucket") == self._bucket.name else None

    def ledger_files(self) -> LedgerObjects:
        """Tell where it is written down which objects were read, where they are many."""
        first = self._prefixes()[0]
        prefix = self._config["ledger.prefix"] or f"{first}/.headrace"
        return LedgerObjects(self._bucket, prefix.strip("/"))

    def remove(self, name: str) -> None:
        """Move an object to another place of the bucket, or delete it."""
        path, files = self._bucket.path(name), self._bucket.files
        try:
            if self._config["when.done"] == "move":
                files.copy_file(path, self._bucket.path(self._target(name)))
            files.delete_file(path)
        except FileNotFoundError:  # an end came between that and the news of it
            return
        except OSError as error:
            raise failure_of(error, path) from error

    def _target(self, name: str) -> str:
        return f"{self._config['done.prefix'].strip('/')}/{name}"


class S3SourceConnector(SourceConnector):
    """Reads objects of a bucket, each once; see docs/connect-storage.md."""

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
        return shares(max_tasks)

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
