"""``directory-source``: the rows of whole files that come into a folder."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

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
    between,
    declare,
    key,
    one_of,
)
from headrace.connect.connectors.directory._listing import Found, Standing, ready_files
from headrace.connect.connectors.directory._reading import (
    FORMATS,
    Reading,
    Rows,
    format_of,
    is_appendable,
    read_rows,
)
from headrace.connect.values import schema_of_arrow
from headrace.errors import ConnectorConfigError, DeserializationError

__all__ = ["DirectorySourceConnector", "DirectorySourceTask"]

_SHARE = "task.share"


class DirectorySourceTask(SourceTask):
    """Reads its share of the files, one after the other."""

    def start(self, config: Config) -> None:
        """Look at the folder."""
        self._config = config
        self._folder: Path = config["directory"]
        if not self._folder.is_dir():
            message = f"The folder {self._folder} does not exist."
            raise ConnectorConfigError(message, hint="Make it, or correct the key directory.")
        number, _, tasks = config.texts.get(_SHARE, "0/1").partition("/")
        self._number, self._tasks = int(number), int(tasks)
        self._reading = _reading(config)
        self._standings: dict[str, Standing] = {}
        self._waiting: dict[str, Found] = {}
        self._looked = float("-inf")
        self._pieces: Iterator[tuple[Found, Rows, Standing]] = iter(())

    def poll(self) -> SourceBatch | Sequence[SourceRecord] | None:
        """Give the next rows of the file that is being read, or of the next one."""
        piece = next(self._pieces, None)
        if piece is None:
            self._pieces = self._read_all()
            piece = next(self._pieces, None)
        if piece is None:
            self.context.stopping.wait(0.2)
            return None
        found, rows, standing = piece
        partition, topic = {"file": found.name}, self._config["topic"]
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
        """Move or delete files of which every row is committed."""
        for name, found in list(self._waiting.items()):
            standing = Standing.of(self.context.offsets.get({"file": name}))
            if standing.done and standing.is_of(found):
                del self._waiting[name]
                self._finish(found)

    def _read_all(self) -> Iterator[tuple[Found, Rows, Standing]]:
        if time.monotonic() - self._looked < self._config["scan.interval.ms"].total_seconds():
            return
        self._looked = time.monotonic()
        # What was committed before a restart, or when nobody said so, has waited for this.
        self.commit()
        settle = self._config["settle.ms"].total_seconds()
        for found in ready_files(self._folder, self._config["files"], settle):
            if zlib.crc32(found.name.encode()) % self._tasks == self._number:
                yield from self._read(found)

    def _read(self, found: Found) -> Iterator[tuple[Found, Rows, Standing]]:
        try:
            kind = format_of(found.path, self._config["format"])
            first = self._standing(found).goes_on(found, appendable=is_appendable(found.path, kind))
            if first is None:
                self._wait(found)
                return
            yield from self._pieces_of(found, kind, first)
        except FileNotFoundError:
            self.context.logger.warning("%s was removed before it was read", found.path)
        except DeserializationError as error:
            if self._config["bad.files"] == "fail":
                raise
            self.context.logger.error("a file is passed over: %s", error)  # noqa: TRY400
            self._standings[found.name] = Standing(0, found.size, found.modified, done=True)

    def _pieces_of(
        self, found: Found, kind: str, first: int
    ) -> Iterator[tuple[Found, Rows, Standing]]:
        rows = read_rows(found.path, kind, first, self._reading)
        piece = next(rows, None)
        row = first
        if piece is None:
            # Nothing to commit: an empty file is remembered here alone.
            self._standings[found.name] = Standing(row, found.size, found.modified, done=True)
            self._finish(found)
        while piece is not None:
            following = next(rows, None)
            row += len(piece)
            done = following is None
            standing = Standing(row, found.size, found.modified, done)
            self._standings[found.name] = standing
            if done:
                self._wait(found)
            yield found, piece, standing
            piece = following

    def _standing(self, found: Found) -> Standing:
        if found.name not in self._standings:
            offset = self.context.offsets.get({"file": found.name})
            self._standings[found.name] = Standing.of(offset)
        return self._standings[found.name]

    def _wait(self, found: Found) -> None:
        if self._config["when.done"] != "keep":
            self._waiting[found.name] = found

    def _finish(self, found: Found) -> None:
        if self._config["when.done"] == "delete":
            found.path.unlink(missing_ok=True)
        elif self._config["when.done"] == "move":
            target = self._config["done.directory"] / found.name
            target.parent.mkdir(parents=True, exist_ok=True)
            found.path.replace(target)


def _schema(kind: pa.DataType) -> Schema | None:
    try:
        return schema_of_arrow(kind)
    except SchemaError:  # a type that only Parquet has: its rows are maps without a schema
        return None


def _reading(config: Config) -> Reading:
    return Reading(
        rows=config["batch.max.rows"],
        delimiter=config["csv.delimiter"].encode().decode("unicode_escape"),
        header=config["csv.header"],
        columns=tuple(config["csv.columns"]),
        text=config["csv.types"] == "text",
    )


class DirectorySourceConnector(SourceConnector):
    """Reads files that come into a folder, whole and once; see docs/connect-connectors.md."""

    version = "1.0"
    task = DirectorySourceTask
    exactly_once = True
    config: ClassVar[ConfigDeclaration] = declare(
        key("directory", Path, "The folder to read.", required=True),
        key("topic", str, "The topic that the rows go to.", required=True),
        key(
            "files",
            str,
            "Which files of the folder: a pattern; **/ looks into folders below too.",
            default="*",
        ),
        key(
            "format",
            str,
            "What the files are; auto goes by their endings; whole makes a record of each file.",
            default="auto",
            valid=one_of("auto", *FORMATS),
        ),
        key(
            "when.done",
            str,
            "What happens to a file once all its rows are committed.",
            default="keep",
            valid=one_of("keep", "move", "delete"),
        ),
        key("done.directory", Path, "Where when.done=move moves files to."),
        key(
            "bad.files",
            str,
            "What to do with a file that is not what its format says: fail the task, or log it "
            "and skip the rest of it.",
            default="fail",
            valid=one_of("fail", "skip"),
        ),
        key(
            "settle.ms",
            timedelta,
            "How long nobody must have written to a file before it counts as finished.",
            default=timedelta(seconds=1),
        ),
        key("csv.delimiter", str, r"What parts the fields of a CSV file, such as \t.", default=","),
        key("csv.header", bool, "Whether CSV files begin with a line of names.", default=True),
        key("csv.columns", list, "Names of the columns, instead of the header's.", default=[]),
        key(
            "csv.types",
            str,
            "Whether columns of CSV files get types by their first megabyte, or stay text.",
            default="infer",
            valid=one_of("infer", "text"),
        ),
        key(
            "batch.max.rows",
            int,
            "Most rows of a poll.",
            default=10_000,
            valid=between(1, 1_000_000),
            importance="low",
        ),
        key(
            "scan.interval.ms",
            timedelta,
            "How often to look for new files.",
            default=timedelta(seconds=1),
            importance="low",
        ),
    )

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        """Share the files out by their names."""
        return [{_SHARE: f"{number}/{max_tasks}"} for number in range(max_tasks)]

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Name what does not fit together."""
        if config["when.done"] == "move":
            folder = config["done.directory"]
            if folder is None:
                yield ConfigProblem("done.directory", "when.done=move needs done.directory.")
            elif folder.absolute().is_relative_to(config["directory"].absolute()):
                message = "done.directory is within directory: files would be found again."
                yield ConfigProblem("done.directory", message)
        if len(config["csv.delimiter"].encode().decode("unicode_escape")) != 1:
            yield ConfigProblem("csv.delimiter", "The key csv.delimiter must be one character.")
