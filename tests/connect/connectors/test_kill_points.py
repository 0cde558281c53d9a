"""Connectors that promise exactly once keep it at every point at which they can be killed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from headrace.connect import SinkConnector, SourceConnector
from headrace.connect.connectors.datagen import DatagenSourceConnector
from headrace.connect.connectors.file import FileSinkConnector, FileSourceConnector
from headrace.connect.connectors.sqlite import SqliteSinkConnector, SqliteSourceConnector
from headrace.connect.connectors.storage import FilesSinkConnector, FilesSourceConnector
from headrace.connect.testing import SinkTaskKit, SourceTaskKit

ROWS = 20


@dataclass(frozen=True)
class Source:
    connector: type[SourceConnector]
    #: Makes what is read, and gives the config.
    made: Callable[[Path], dict[str, str]]
    #: What tells which of the rows a record is.
    number: Callable[[Any], int]


@dataclass(frozen=True)
class Sink:
    connector: type[SinkConnector]
    config: Callable[[Path], dict[str, str]]
    #: What has been written so far.
    written: Callable[[Path], list[int]]


def lines(folder: Path) -> dict[str, str]:
    path = folder / "in.txt"
    path.write_text("".join(f"{number}\n" for number in range(ROWS)))
    return {"file": str(path), "topic": "t", "batch.max.rows": "3"}


def documents(folder: Path) -> dict[str, str]:
    for start in (0, ROWS // 2):
        text = "".join(f"{number}\n" for number in range(start, start + ROWS // 2))
        (folder / f"{start:02}.jsonl").write_text(text)
    quick = {"settle.ms": "0", "scan.interval.ms": "0", "batch.max.rows": "3"}
    return {"uri": str(folder), "topic": "t", "when.done": "delete"} | quick


def counted(folder: Path) -> dict[str, str]:
    return {
        "topic": "t",
        "fields": '{"n": "sequence"}',
        "count": str(ROWS),
        "rate": "0",
        "batch.max.rows": "3",
    }


def stored(folder: Path) -> dict[str, str]:
    path = folder / "in.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE numbers (n INTEGER PRIMARY KEY)")
        database.executemany("INSERT INTO numbers VALUES (?)", [(n,) for n in range(ROWS)])
    return {
        "database": str(path),
        "tables": "numbers",
        "poll.interval.ms": "0",
        "batch.max.rows": "3",
    }


SOURCES = {
    "file": Source(FileSourceConnector, lines, int),
    "files": Source(FilesSourceConnector, documents, int),
    "datagen": Source(DatagenSourceConnector, counted, lambda row: int(row["n"])),
    "sqlite": Source(SqliteSourceConnector, stored, lambda row: int(row["n"])),
}


def of_files(folder: Path) -> list[int]:
    paths = [*sorted(folder.glob("out.txt.0*")), folder / "out.txt"]
    documents = "".join(path.read_text() for path in paths).splitlines()
    return [orjson.loads(text)["n"] for text in documents]


def of_folders(folder: Path) -> list[int]:
    texts = [path.read_bytes() for path in sorted(folder.glob("t/t+*"))]
    return [orjson.loads(line)["n"] for text in texts for line in text.splitlines()]


def of_tables(folder: Path) -> list[int]:
    with closing(sqlite3.connect(folder / "out.db")) as database:
        return [number for (number,) in database.execute("SELECT n FROM t ORDER BY rowid")]


SINKS = {
    "file": Sink(FileSinkConnector, lambda folder: {"file": f"{folder}/out.txt"}, of_files),
    "rotated file": Sink(
        FileSinkConnector,
        lambda folder: {"file": f"{folder}/out.txt", "rotate.max.bytes": "20"},
        of_files,
    ),
    "files": Sink(
        FilesSinkConnector,
        lambda folder: {"uri": str(folder), "format": "jsonl"},
        of_folders,
    ),
    "sqlite": Sink(
        SqliteSinkConnector,
        lambda folder: {"database": f"{folder}/out.db", "auto.create": "true"},
        of_tables,
    ),
}

# A crash in this process leaves a file to the garbage collector, which says so.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

sources = pytest.mark.parametrize("case", list(SOURCES.values()), ids=list(SOURCES))
sinks = pytest.mark.parametrize("case", list(SINKS.values()), ids=list(SINKS))


@pytest.mark.requirement(21)
@sources
@pytest.mark.parametrize("polls", [1, 2, 3])
def test_source_goes_on_behind_its_last_commit(case: Source, polls: int, tmp_path: Path) -> None:
    taken: list[int] = []
    with SourceTaskKit(case.connector, case.made(tmp_path)) as kit:
        while len(taken) < ROWS:
            found = [kit.poll() for _ in range(polls)]
            kit.commit()
            taken += [case.number(record.value) for some in found for record in some]
            kit.poll()
            kit.crash()
        assert kit.read_all() == []
    assert taken == list(range(ROWS))


@sources
def test_source_gives_the_same_again_until_it_is_committed(case: Source, tmp_path: Path) -> None:
    with SourceTaskKit(case.connector, case.made(tmp_path)) as kit:
        first = [record.value for record in kit.read(ROWS)]
        kit.crash()
        assert [record.value for record in kit.read(ROWS)] == first
        kit.restart()
        assert [record.value for record in kit.read(ROWS)] == first


def values(first: int, count: int) -> Sequence[dict[str, int]]:
    return [{"n": first + more} for more in range(count)]


@pytest.mark.requirement(45)
@sinks
@pytest.mark.parametrize("columns", [False, True])
def test_sink_has_every_record_once(case: Sink, columns: bool, tmp_path: Path) -> None:
    with SinkTaskKit(case.connector, case.config(tmp_path) | {"topics": "t"}) as kit:
        for first in range(0, ROWS, 4):
            kit.send(*values(first, 4))
            kit.put(2, columns=columns)
            kit.crash()  # between put and flush
            kit.put(3, columns=columns)
            kit.flush(commit=False)
            kit.crash()  # between the sink's commit and the runtime's
            kit.deliver(columns=columns)
            kit.crash()  # between two batches
        assert kit.deliver() == 0
        kit.restart()
    assert case.written(tmp_path) == list(range(ROWS))


@sinks
def test_sink_takes_the_same_records_again_once(case: Sink, tmp_path: Path) -> None:
    with SinkTaskKit(case.connector, case.config(tmp_path) | {"topics": "t"}) as kit:
        kit.send(*values(0, 3))
        records = kit._log[kit.queues[0]]
        kit.task.put(records[:2])
        kit.put()
        kit.flush()
        kit.task.put(records)
        kit.send(*values(3, 1))
        kit.deliver()
    assert case.written(tmp_path) == [0, 1, 2, 3]
