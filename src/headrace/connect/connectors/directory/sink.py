"""``directory-sink``: whole files, one per queue and batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import msgspec

from headrace.connect import (
    Config,
    ConfigDeclaration,
    Queue,
    SinkBatch,
    SinkConnector,
    SinkRecord,
    SinkTask,
    declare,
    key,
    one_of,
)
from headrace.connect.connectors.directory._naming import file_name, offsets_of
from headrace.connect.connectors.directory._writing import write_file
from headrace.connect.connectors.durable import sync_folder, write_whole
from headrace.connect.connectors.formats.writing import WRITERS, as_written, column_of, joined
from headrace.connect.connectors.offsets import KeptOffsets, Progress, changed, newest, set_by_hand
from headrace.errors import ConnectorConfigError, StoreError

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.connect.records import Position

__all__ = ["DirectorySinkConnector", "DirectorySinkTask"]

_SIDE = ".offsets-{}.json"


class DirectorySinkTask(SinkTask):
    """Gathers rows; :meth:`flush` makes a file of those of each queue."""

    def start(self, config: Config) -> None:
        """Look at the folder."""
        self._config = config
        self._folder: Path = config["directory"]
        if not self._folder.is_dir():
            message = f"The folder {self._folder} does not exist."
            raise ConnectorConfigError(message, hint="Make it, or correct the key directory.")
        self._side = self._folder / _SIDE.format(self.context.task)

    def open(self, queues: Collection[Queue]) -> None:
        """Go on from the files that are there."""
        for draft in self._folder.glob("**/.*+*.tmp"):
            # Half a file, from before a crash; other tasks' drafts are none of ours.
            if offsets_of([draft.with_name(draft.name[1:])]).keys() & set(queues):
                draft.unlink()
        self._pieces: dict[Queue, list[pa.Array]] = {}
        self._begin = self.offsets()
        self._progress = Progress(self._begin)

    def offsets(self) -> dict[Queue, int]:
        """Tell from the files' names, and from what was kept of files that are gone since."""
        return _offsets(self._folder)

    def put(self, records: Sequence[SinkRecord]) -> None:
        """Gather records."""
        by_queue: dict[Queue, list[SinkRecord]] = {}
        for record in self._progress.fresh(records):
            by_queue.setdefault(record.queue, []).append(record)
        for queue, some in by_queue.items():
            column = column_of([record.value for record in some], self._config["format"])
            self._add(queue, some[0].offset, column)
            self._progress.take(some)

    def put_batch(self, batch: SinkBatch) -> None:
        """Gather columns."""
        rows = self._progress.fresh_rows(batch)
        if len(rows) == 0:
            return
        column = as_written(rows.value, self._config["format"])
        self._add(batch.queue, rows.offset[0].as_py(), column)
        self._progress.take_rows(rows)

    def flush(self, offsets: Mapping[Queue, int]) -> None:
        """Write the files; each is there whole or not at all."""
        folders = set()
        for queue, pieces in self._pieces.items():
            first, end = self._begin[queue], offsets[queue]
            path = self._path(queue, first, end)
            kind = self._config["format"]
            write_file(path, joined(pieces, kind), kind, self._config["compression"])
            folders.add(path.parent)
            self._begin[queue] = end
        for folder in folders:
            sync_folder(folder)
        if folders:
            write_whole(self._side, msgspec.json.encode(KeptOffsets.of(self._begin)))
        self._pieces.clear()

    def _add(self, queue: Queue, offset: int, column: pa.Array) -> None:
        if queue not in self._pieces:
            self._begin[queue] = offset
        self._pieces.setdefault(queue, []).append(column)

    def _path(self, queue: Queue, first: int, end: int) -> Path:
        name = file_name(queue, first, end, self._config["format"])
        if not self._config["folders"]:
            return self._folder / name
        folder = self._folder / queue.topic
        if not folder.is_dir():
            folder.mkdir(exist_ok=True)
            sync_folder(self._folder)
        return folder / name


def _offsets(folder: Path) -> dict[Queue, int]:
    kept = [_kept(side) for side in folder.glob(_SIDE.format("*"))]
    return newest([offsets_of(folder.glob("**/*+*")), *kept])


def _kept(side: Path) -> dict[Queue, int]:
    try:
        return msgspec.json.decode(side.read_bytes(), type=KeptOffsets).mapping()
    except msgspec.MsgspecError as error:
        message = f"The file {side} cannot be read: {error}."
        hint = "Remove it if all files that this sink has written are still in the folder."
        raise StoreError(message, hint=hint) from error


class DirectorySinkConnector(SinkConnector):
    """Writes records as whole files into a folder; see docs/connect-connectors.md."""

    version = "1.0"
    task = DirectorySinkTask
    config: ClassVar[ConfigDeclaration] = declare(
        key("directory", Path, "The folder to write to, which exists.", required=True),
        key(
            "format",
            str,
            "What the files are.",
            default="parquet",
            valid=one_of(*WRITERS),
        ),
        key(
            "folders",
            bool,
            "Whether each topic has a folder of its own below the directory.",
            default=True,
        ),
        key(
            "compression",
            str,
            "How Parquet files are compressed.",
            default="zstd",
            valid=one_of("none", "snappy", "gzip", "zstd", "lz4"),
            importance="low",
        ),
    )

    def alter_offsets(
        self, config: Config, offsets: Sequence[tuple[Position, Position | None]]
    ) -> bool:
        """Set offsets further on; what has been written is refused to be written again."""
        changes = set_by_hand(offsets)
        folder = config["directory"]
        written = _offsets(folder)
        for queue, offset in changes.items():
            if queue in written and (offset is None or offset < written[queue]):
                message = (
                    f"Queue {queue.queue_id} of topic {queue.topic} on {queue.broker} has been "
                    f"written to {folder} up to offset {written[queue]}; it cannot go back."
                )
                hint = f"Move its files and {_SIDE.format('*')} away first."
                raise ConnectorConfigError(message, hint=hint)
        side = folder / _SIDE.format(0)
        kept = changed(_kept(side) if side.exists() else {}, changes)
        write_whole(side, msgspec.json.encode(KeptOffsets.of(kept)))
        return True
