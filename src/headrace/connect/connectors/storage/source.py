"""``files-source``: the rows of whole files, each file once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from headrace.connect import (
    Config,
    ConfigDeclaration,
    ConfigProblem,
    Schema,
    SchemaError,
    SourceBatch,
    SourceConnector,
    SourceRecord,
    SourceTask,
    declare,
    key,
)
from headrace.connect.connectors.sharing import TaskShare
from headrace.connect.connectors.storage.formats import (
    READING_KEYS,
    FileProgress,
    ReadyFile,
    Rows,
    delimiter_problems,
    format_of,
    is_appendable,
    read_rows,
    reading_of,
)
from headrace.connect.connectors.storage.ledger import FileLedger
from headrace.connect.connectors.storage.places import (
    PLACE,
    S3_KEYS,
    Storage,
    opened,
    place_problems,
    prefixes_of,
    split_uri,
)
from headrace.connect.schema import schema_of_arrow
from headrace.errors import ConnectionFailedError, ConnectorConfigError, DeserializationError

if TYPE_CHECKING:
    from headrace.connect.records import Position


#: Files that are gone are looked for so often, s: where thousands were read, that takes a moment.
_GONE_LOOK = 60.0
_NOTHING = pa.array([], pa.string())
_NO_LEDGER = (
    "which files were read cannot be written down in %s, so each keeps a position in the commit"
    " record, which has room for some 100,000: let the task write there, or name another place by"
    " ledger.uri: %s"
)


class FilesSourceTask(SourceTask):
    """Reads its share of the files, one after the other."""

    def start(self, config: Config) -> None:
        """Begin to look for files."""
        self._config = config
        self._files = opened(config)
        self._done = self._files.at(config["done.uri"] or config["uri"])
        self._written = _ledger_of(self._files, config)
        self._share = TaskShare.of(config)
        self._reading = reading_of(config)
        self._standings: dict[str, FileProgress] = {}
        self._waiting: dict[str, ReadyFile] = {}
        self._looked = self._looked_for_gone = self._complained = float("-inf")
        #: Since when files are missing that were read.
        self._missing: dict[str, float] = {}
        #: Positions that are to be committed without any rows.
        self._notes: deque[tuple[Position, Position | None]] = deque()
        self._ledger = FileLedger(
            self._written,
            str(self._share),
            self.context.generation,
            self.context.offsets,
            self._share.has,
        )
        #: How many files are done, at most, whose positions are in the commit record.
        self._kept = len(self._recorded())
        self._pieces: Iterator[tuple[ReadyFile, Rows, FileProgress]] = iter(())

    def poll(self) -> SourceBatch | Sequence[SourceRecord] | None:
        """Return the next rows of the file that is being read, or of the next one."""
        if self._notes:
            return self._note(*self._notes.popleft())
        piece = next(self._pieces, None)
        if piece is None:
            self._pieces = self._look_through()
            if self._notes:
                # Of what was so far: what is read from now on holds behind them.
                return self._note(*self._notes.popleft())
            piece = next(self._pieces, None)
        if piece is None:
            self.context.stopping.wait(0.2)
            return None
        found, rows, standing = piece
        partition, topic = self._files.partition(found.name), self._config["topic"]
        if isinstance(rows, pa.Array):
            offset = standing.offset()
            return SourceBatch(
                partition=partition,
                offset=offset,
                topic=topic,
                value=rows,
                value_schema=_schema(rows.type),
            )
        places = standing.places(len(rows))
        return [
            SourceRecord(partition=partition, offset=place, topic=topic, value=row)
            for row, place in zip(rows, places, strict=True)
        ]

    def commit(self) -> None:
        """Move, delete or write down files of which every row is committed."""
        for name, found in list(self._waiting.items()):
            standing = FileProgress.of(self.context.offsets.get(self._files.partition(name)))
            if standing.done and standing.is_of(found):
                del self._waiting[name]
                self._finish(found)
        self._ledger.commit()
        if self._kept + self._ledger.forgotten >= self._config["ledger.after.files"]:
            self._fold()

    def _recorded(self) -> dict[str, FileProgress]:
        """Return the standings of the task's files that the commit record has."""
        found = {}
        for partition, offset in self.context.offsets.all():
            name = self._files.name_of(partition)
            if name is not None and self._share.has(name):
                found[name] = FileProgress.of(offset)
        return found

    def _fold(self) -> None:
        """Write down in the ledger which files are done and stay, and forget their positions."""
        if self._notes or time.monotonic() - self._complained < _GONE_LOOK:
            return
        done = {
            name: standing
            for name, standing in self._recorded().items()
            if standing.done and standing.size is not None and self._is_at_rest(name, standing)
        }
        if len(done) + self._ledger.forgotten < self._config["ledger.after.files"]:
            return
        try:
            self._notes += self._ledger.fold(done)
        except (OSError, ConnectionFailedError, ConnectorConfigError) as error:
            self._complained = time.monotonic()
            self.context.logger.warning(_NO_LEDGER, self._written, error)
            return
        self._kept -= len(done)
        for name in done:
            self._standings.pop(name, None)
            self._notes.append((self._files.partition(name), None))

    def _is_at_rest(self, name: str, committed: FileProgress) -> bool:
        keeps = self._config["when.done"] == "keep"
        return keeps and self._standings.get(name, committed) == committed

    def _look_through(self) -> Iterator[tuple[ReadyFile, Rows, FileProgress]]:
        """Look for files; return what is to be read of them as it is asked for."""
        pause = self._config.get("scan.interval.ms", self._files.scan_interval)
        if time.monotonic() - self._looked < pause.total_seconds():
            return iter(())
        self._looked = time.monotonic()
        # What was committed before a restart, or when nobody said so, has waited for this.
        self.commit()
        there = list(self._files.ready(self._config))
        self._look_for_gone(there)
        mine = [found for found in there if self._share.has(found.name)]
        done = self._ledger.are_done(mine)
        return self._read_all(mine, done, self._recorded() if any(done) else ())

    def _read_all(
        self, mine: list[ReadyFile], are_done: list[bool], recorded: Collection[str]
    ) -> Iterator[tuple[ReadyFile, Rows, FileProgress]]:
        for found, done in zip(mine, are_done, strict=True):
            # What was read since, or set by hand, holds before what is written down.
            if not done or found.name in self._standings or self._is_in(found.name, recorded):
                yield from self._read(found)
            elif self._config["when.done"] != "keep":
                self._remove(found.name)
                self._ledger.forget(found.name)

    def _is_in(self, name: str, recorded: Collection[str]) -> bool:
        """Whether the commit record has a file that it had, and that may be folded since."""
        return (
            name in recorded and self.context.offsets.get(self._files.partition(name)) is not None
        )

    def _read(self, found: ReadyFile) -> Iterator[tuple[ReadyFile, Rows, FileProgress]]:
        try:
            kind = format_of(found.name, self._config["format"])
            appendable = self._files.appends and is_appendable(found.name, kind)
            first = self._standing(found).goes_on(found, appendable=appendable)
            if first is None:
                self._wait(found)
                return
            yield from self._pieces_of(found, kind, first)
        except FileNotFoundError:
            self.context.logger.warning("%s was removed before it was read", found.name)
        except DeserializationError as error:
            if self._config["bad.files"] == "fail":
                raise
            self.context.logger.error("a file is passed over: %s", error)
            self._standings[found.name] = FileProgress(0, found.size, found.modified, done=True)

    def _pieces_of(
        self, found: ReadyFile, kind: str, first: int
    ) -> Iterator[tuple[ReadyFile, Rows, FileProgress]]:
        file = self._files.readable(found.name)
        rows = read_rows(file, kind, first, self._reading)
        piece = next(rows, None)
        row = first
        if piece is None:
            # Nothing to commit: an empty file is remembered here alone.
            self._standings[found.name] = FileProgress(row, found.size, found.modified, done=True)
            self._finish(found)
        while piece is not None:
            following = next(rows, None)
            row += len(piece)
            done = following is None
            standing = FileProgress(row, found.size, found.modified, done)
            self._standings[found.name] = standing
            if done:
                self._kept += 1
                self._wait(found)
            yield found, piece, standing
            piece = following

    def _standing(self, found: ReadyFile) -> FileProgress:
        if found.name not in self._standings:
            offset = self.context.offsets.get(self._files.partition(found.name))
            written = self._ledger.standing(found.name) if offset is None else None
            self._standings[found.name] = written or FileProgress.of(offset)
        return self._standings[found.name]

    def _note(self, partition: Position, offset: Position | None) -> SourceBatch:
        return SourceBatch(
            partition=partition,
            offset=offset,
            topic=self._config["topic"],
            value=_NOTHING,
        )

    def _forget(self, name: str) -> None:
        """Have the position of a file leave the commit record."""
        self._standings.pop(name, None)
        partition = self._files.partition(name)
        if self.context.offsets.get(partition) is not None:
            self._kept -= 1
            self._notes.append((partition, None))

    def _look_for_gone(self, found: Iterable[ReadyFile]) -> None:
        """Find files that were read and have been missing for long enough."""
        now, patience = time.monotonic(), self._config["forget.after.ms"].total_seconds()
        if now - self._looked_for_gone < min(_GONE_LOOK, patience):
            return
        self._looked_for_gone = now
        there = {one.name for one in found}
        recorded = [name for name in self._recorded() if name not in there]
        written = set(self._ledger.missing(there))
        missing = written.union(recorded)
        self._missing = {name: self._missing.get(name, now) for name in missing}
        for name in [name for name in missing if now - self._missing[name] >= patience]:
            del self._missing[name]
            if name in written:
                self._ledger.forget(name)
            if name not in self._waiting:
                self._forget(name)

    def _wait(self, found: ReadyFile) -> None:
        if self._config["when.done"] != "keep":
            self._waiting[found.name] = found

    def _remove(self, name: str) -> None:
        if self._config["when.done"] == "move":
            self._files.move(name, self._done)
        else:
            self._files.remove(name)

    def _finish(self, found: ReadyFile) -> None:
        if self._config["when.done"] != "keep":
            self._remove(found.name)
            self._forget(found.name)


def _schema(kind: pa.DataType) -> Schema | None:
    try:
        return schema_of_arrow(kind)
    except SchemaError:  # a type that only Parquet has: its rows are maps without a schema
        return None


def _ledger_of(files: Storage, config: Config) -> Storage:
    if config["ledger.uri"] is not None:
        return files.at(config["ledger.uri"])
    first = next(iter(config["prefixes"]), "").strip("/")
    return files.at(config["uri"]).below(f"{first}/.headrace")


class FilesSourceConnector(SourceConnector):
    """Reads files that come into a folder or a bucket, whole and once."""

    version = "1.0"
    task = FilesSourceTask
    exactly_once = True
    config: ClassVar[ConfigDeclaration] = declare(
        key(
            "uri",
            str,
            "What to read: a folder (its path, or file:///folder), which exists, or all below "
            "a prefix of a bucket (s3://bucket/prefix).",
            required=True,
            valid=PLACE,
        ),
        key("topic", str, "The topic that the rows go to.", required=True),
        key(
            "files",
            str,
            "Which files: a pattern such as *.parquet. In a folder **/ looks into folders "
            "below too; in a bucket * stands for slashes too.",
            default="*",
        ),
        *READING_KEYS,
        key("done.uri", str, "Where when.done=move moves files to.", valid=PLACE),
        key(
            "ledger.uri",
            str,
            "Where the ledger is written; by default in .headrace in the folder, or below the "
            "first prefix.  Whatever worker runs a task must find it there.",
            valid=PLACE,
            importance="low",
        ),
        key(
            "settle.ms",
            timedelta,
            "How long nobody must have written to a file of a folder before it counts as finished.",
            default=timedelta(seconds=1),
        ),
        key(
            "prefixes",
            list,
            "Where below the prefix of the bucket, by commas; without, everything is read.",
            default=[],
            group="S3",
        ),
        *S3_KEYS,
    )

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        """Share the files out by their names."""
        return TaskShare.configs(max_tasks)

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Name what does not fit together."""
        yield from place_problems(config)
        yield from delimiter_problems(config)
        bucket = split_uri(config["uri"])[0]
        for name in ("done.uri", "ledger.uri"):
            if config[name] is not None and split_uri(config[name])[0] != bucket:
                where = f"a place of the bucket {bucket}" if bucket else "a folder, as uri is"
                yield ConfigProblem(name, f"The key {name} must be {where}.")
        if config["when.done"] == "move":
            if config["done.uri"] is None:
                yield ConfigProblem("done.uri", "when.done=move needs done.uri.")
            elif _finds_again(config):
                message = "done.uri is below what is read: files would be found again."
                yield ConfigProblem("done.uri", message)


def _finds_again(config: Config) -> bool:
    """Whether files would be moved to where they are looked for."""
    done = split_uri(config["done.uri"])[1]
    bucket, path = split_uri(config["uri"])
    if not bucket:
        return Path(done).absolute().is_relative_to(Path(path).absolute())
    # Objects keep their whole keys, behind the prefix.
    read = prefixes_of(config)
    targets = (Path(done, prefix) for prefix in read)
    return any(target.is_relative_to(prefix) for target in targets for prefix in read)
