"""``file-sink``: records as lines at the end of a file, each exactly once."""

from __future__ import annotations

import glob
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from headrace.connect import (
    Config,
    ConfigDeclaration,
    Queue,
    SinkBatch,
    SinkConnector,
    SinkRecord,
    SinkTask,
    Size,
    at_least,
    declare,
    key,
)
from headrace.connect.connectors.file._output import Committed, Output, Rotation, alter, side_of
from headrace.connect.connectors.offsets import Progress, newest, set_by_hand
from headrace.connect.connectors.texts import as_text, lines_of

if TYPE_CHECKING:
    from headrace.connect.records import Position

__all__ = ["FileSinkConnector", "FileSinkTask"]

_TASK = "{task}"


class FileSinkTask(SinkTask):
    """Appends lines; :meth:`flush` makes them durable together with their offsets."""

    def start(self, config: Config) -> None:
        """Open the file, and cut off what was never committed."""
        self._name = str(config["file"])
        path = Path(self._name.replace(_TASK, str(self.context.task)))
        self._end = config["line.end"].encode().decode("unicode_escape").encode()
        rotation = Rotation(config["rotate.max.bytes"], config["rotate.interval.ms"])
        self._output = Output(path, rotation)

    def open(self, queues: Collection[Queue]) -> None:
        """Go on from what is committed."""
        del queues
        self._output.roll_back()
        self._progress = Progress(self.offsets())

    def offsets(self) -> dict[Queue, int]:
        """Give what the side files of all tasks keep: queues may have moved among them."""
        kept = (Committed.read(side) for side in _sides(Path(self._name)))
        return newest(one.offsets.mapping() for one in kept if one is not None)

    def put(self, records: Sequence[SinkRecord]) -> None:
        """Append a line per record."""
        fresh = self._progress.fresh(records)
        self._append([record.value for record in fresh])
        self._progress.take(fresh)

    def put_batch(self, batch: SinkBatch) -> None:
        """Append a line per row."""
        rows = self._progress.fresh_rows(batch)
        column = rows.value
        kind = column.type
        plain = pa.types.is_string(kind) or pa.types.is_binary(kind)
        if plain and not column.null_count:
            for piece in lines_of(column, self._end):
                self._output.append(piece)
        else:
            self._append(column.to_pylist())
        self._progress.take_rows(rows)

    def flush(self, offsets: Mapping[Queue, int]) -> None:
        """Commit the lines and the offsets as one."""
        self._output.commit(offsets)

    def stop(self) -> None:
        """Close the file."""
        if output := getattr(self, "_output", None):
            output.close()

    def _append(self, values: Iterable[Any]) -> None:
        end = self._end
        self._output.append(b"".join([as_text(value) + end for value in values]))


def _sides(path: Path) -> list[Path]:
    """Give the side files of all tasks of a connector."""
    pattern = "*".join(map(glob.escape, side_of(path).name.split(_TASK)))
    return sorted(path.parent.glob(pattern))


class FileSinkConnector(SinkConnector):
    """Appends records to a file as lines; see docs/connect-connectors.md."""

    version = "1.0"
    task = FileSinkTask
    config: ClassVar[ConfigDeclaration] = declare(
        key(
            "file",
            Path,
            "The file to append to, in a folder that exists; with {task} in its name each task "
            "has a file of its own.",
            required=True,
        ),
        key(
            "line.end",
            str,
            r"What ends a line; \n, \r and \t are understood.",
            default=r"\n",
            importance="low",
        ),
        key(
            "rotate.max.bytes",
            Size,
            "Rename the file to FILE.000001 and so on once it has this size; by default never.",
            valid=at_least(1),
        ),
        key(
            "rotate.interval.ms",
            timedelta,
            "Rename the file likewise once it is this old; by default never.",
            valid=at_least(timedelta(milliseconds=1)),
        ),
    )

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        """One file has one writer."""
        several = _TASK in str(self.context.config["file"])
        return [{} for _ in range(max_tasks if several else 1)]

    def alter_offsets(
        self, config: Config, offsets: Sequence[tuple[Position, Position | None]]
    ) -> bool:
        """Set the offsets that the side files keep; lines that come again are written again."""
        changes = set_by_hand(offsets)
        path = Path(str(config["file"]).replace(_TASK, "0"))
        for side in _sides(config["file"]) or [side_of(path)]:
            alter(path, side, changes)
        return True
