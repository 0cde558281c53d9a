"""``s3-source``: the rows of a bucket's objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote

import msgspec
from pyarrow import fs

from headrace.connect import Config, ConfigDeclaration, ConfigProblem, SourceConnector, declare, key
from headrace.connect.connectors.formats.task import FilesTask, shares
from headrace.connect.connectors.formats.writing import (
    READING_KEYS,
    Readable,
    ReadyFile,
    delimiter_problems,
    is_unfinished,
)
from headrace.connect.connectors.s3.connection import (
    S3_KEYS,
    Bucket,
    connection_problems,
    failure_of,
    outage_of,
)
from headrace.errors import FencedError, StoreError

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.connect import Queue
    from headrace.connect.records import Position


# Keys of a sink's objects: each follows from topic, queue and offset alone.

_MARKS = "_headrace"


def object_key(prefix: str, folder: str, queue: Queue, first: int, ending: str) -> str:
    """Name the object that begins with an offset of a queue.

    >>> from headrace.connect import Queue
    >>> object_key("raw", "lines/day=7", Queue("lines", "broker-a", 3), 12, "csv.gz")
    'raw/lines/day=7/lines+broker-a+3+0000000000000000012.csv.gz'
    """
    return _below(prefix, f"{folder}/{_name(queue)}+{first:019d}.{ending}")


def mark_key(prefix: str, queue: Queue) -> str:
    """Name the object that says how far a queue has been written.

    >>> from headrace.connect import Queue
    >>> mark_key("", Queue("lines", "broker-a", 3))
    '_headrace/lines+broker-a+3.json'
    """
    return _below(prefix, f"{_MARKS}/{_name(queue)}.json")


def _name(queue: Queue) -> str:
    return "+".join((quote(queue.topic, safe="%"), quote(queue.broker, safe=""), str(queue[2])))


def _below(prefix: str, key: str) -> str:
    inner = prefix.strip("/")
    return f"{inner}/{key}" if inner else key


# How far a sink has written each queue: a small object per queue, beside the rows.


class WriteProgress(msgspec.Struct, frozen=True):
    """How far one queue has been written.

    The offset is what commits: objects from it on are of a batch that was not finished.
    """

    #: The next offset; ``None`` where nothing has been written.
    offset: int | None = None
    #: The life of the task that has the queue.
    generation: int = 0
    #: Keys of objects that may be there though their batch was not finished.
    drafts: tuple[str, ...] = ()


class WriteProgressFiles:
    """Reads and writes marks.

    Parameters
    ----------
    bucket, prefix
        Where they are.
    generation
        The life of this task; 0 is nobody's.
    """

    def __init__(self, bucket: Bucket, prefix: str, generation: int) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._generation = generation

    def read(self, queue: Queue) -> WriteProgress:
        """Return the mark of a queue, as it is now.

        Raises
        ------
        FencedError
            Where a later life of the task has the queue.
        """
        path = self._path(queue)
        try:
            with self._bucket.files.open_input_stream(path) as stream:
                text = stream.read()
        except FileNotFoundError:
            return WriteProgress()
        try:
            mark = msgspec.json.decode(text, type=WriteProgress)
        except msgspec.MsgspecError as error:
            message = f"The object {path} cannot be read: {error}."
            hint = 'Write it as it was, such as {"offset": 7}.'
            raise StoreError(message, hint=hint) from error
        if 0 < self._generation < mark.generation:
            raise self._fenced(queue, mark.generation)
        return mark

    def write(
        self, queue: Queue, offset: int | None, drafts: tuple[str, ...] = ()
    ) -> WriteProgress:
        """Set the mark of a queue; give it."""
        mark = WriteProgress(offset, self._generation, drafts)
        write_object(self._bucket, self._path(queue), msgspec.json.encode(mark), "application/json")
        return mark

    def _path(self, queue: Queue) -> str:
        return self._bucket.path(mark_key(self._prefix, queue))

    def _fenced(self, queue: Queue, generation: int) -> FencedError:
        return FencedError(
            f"{self._path(queue)} says that generation {generation} writes this queue, and this"
            f" task is of generation {self._generation}.",
            hint="Another task has taken over, or another cluster has written to this prefix: then"
            " give this connector a prefix of its own, or set its offsets by hand to take over.",
        )


def write_object(bucket: Bucket, path: str, content: bytes | pa.Buffer, kind: str) -> None:
    """Write an object, which is there whole or not at all."""
    # Arrow would compress by itself what a key's ending says is compressed.
    files, metadata = bucket.files, {"Content-Type": kind}
    stream = files.open_output_stream(path, compression=None, metadata=metadata)
    stream.write(content)
    # An end before this leaves no object: a large one is put together by its close.
    stream.close()


class LedgerObjects:
    """Objects with segments of a ledger."""

    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self._bucket = bucket
        self._path = bucket.path(prefix)

    def __str__(self) -> str:
        """Name the place."""
        return self._path

    def read(self, name: str) -> bytes | None:
        """Return an object; ``None`` where there is none."""
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
        """Return the names of all objects."""
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

    def look(self) -> Iterator[ReadyFile]:
        """List the objects below the prefixes, in the order of their keys."""
        found = {one.name: one for prefix in self._prefixes() for one in self._listed(prefix)}
        return iter(sorted(found.values(), key=lambda one: one.name))

    def _prefixes(self) -> list[str]:
        return [prefix.strip("/") for prefix in self._config["prefixes"]] or [""]

    def _listed(self, prefix: str) -> Iterator[ReadyFile]:
        where = fs.FileSelector(self._bucket.path(prefix), allow_not_found=True, recursive=True)
        try:
            infos = self._bucket.files.get_file_info(where)
        except OSError as error:
            raise failure_of(error, f"bucket {self._bucket.name}") from error
        for info in infos:
            key = info.path.removeprefix(self._bucket.path(""))
            below = key.removeprefix(prefix).lstrip("/")
            if info.type is fs.FileType.File and self._is_wanted(below):
                yield ReadyFile(key, info.size, info.mtime_ns)

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
        """Return the object's key."""
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
