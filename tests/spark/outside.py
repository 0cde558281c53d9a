"""Both edges of a job in one process: an intake that counts, and an outlet that writes files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.topology.operators.core import Taken

__all__ = ["CountingIntake", "FileOutlet", "Readiness"]

ROWS = 100


@dataclass(frozen=True)
class CountingIntake:
    """Gives a hundred numbers for each batch, to two topics in turn; keyed by their last digit."""

    topics: tuple[str, str]
    folder: Path

    def take(self, epoch: int, batch: int) -> Taken:
        """Give the numbers behind those of the batch before."""
        with (self.folder / "asked").open("a") as log:
            log.write(f"{epoch} {batch}\n")
        numbers = [(batch - 1) * ROWS + number for number in range(ROWS)]
        records = pa.RecordBatch.from_pydict(
            {
                "topic": [self.topics[number % 2] for number in numbers],
                "queue": pa.array([None] * ROWS, pa.int32()),
                "key": pa.array([str(number % 10).encode() for number in numbers], pa.binary()),
                "value": pa.array([b"%d" % number for number in numbers], pa.binary()),
                "properties": pa.array([b"from\1counter\2"] * ROWS, pa.binary()),
                "timestamp": pa.array([1_700_000_000_000] * ROWS, pa.int64()),
            }
        )
        return Taken(records, [('{"counter":1}', {"next": numbers[-1] + 1})])


@dataclass(frozen=True)
class Readiness:
    """Says that there is something until so many batches were asked for."""

    topics: tuple[str, ...]
    folder: Path
    batches: int
    waiting: int = 1

    def wait(self, seconds: float) -> tuple[str, ...] | None:
        """Look how many batches were asked for."""
        del seconds
        asked = self.folder / "asked"
        done = set(asked.read_text().split("\n")) if asked.exists() else set()
        return self.topics if len(done - {""}) < self.batches else None


@dataclass(frozen=True)
class FileOutlet:
    """Writes a file per batch; a batch that comes again replaces what was there."""

    folder: Path
    letters: str = ""

    def put(self, epoch: int, batch: int, messages: pa.RecordBatch) -> None:
        """Keep messages until the batch is flushed."""
        del epoch
        with (self.folder / f"{batch}.part").open("a") as part:
            for row in messages.to_pylist():
                body, properties = row.pop("body"), row.pop("properties")
                row |= {"body": body.decode(), "properties": properties.decode()}
                part.write(json.dumps(row) + "\n")

    def flush(self, epoch: int, batch: int) -> None:
        """Publish the file."""
        del epoch
        part = self.folder / f"{batch}.part"
        part.rename(self.folder / f"{batch}.done")

    def refused(self, epoch: int, batch: int) -> pa.RecordBatch | None:
        """Give back, to a topic for them, the messages that say that they are bad."""
        del epoch
        done = (self.folder / f"{batch}.done").read_text().splitlines()
        bad = [row for row in map(json.loads, done) if row["body"].startswith("bad")]
        if not bad:
            return None
        return pa.RecordBatch.from_pydict(
            {
                "topic": [self.letters] * len(bad),
                "queue": pa.array([None] * len(bad), pa.int32()),
                "key": pa.array([None] * len(bad), pa.binary()),
                "value": pa.array([row["body"].encode() for row in bad], pa.binary()),
                "properties": pa.array([b"why\1bad\2"] * len(bad), pa.binary()),
                "timestamp": pa.array([row["timestamp"] for row in bad], pa.int64()),
            }
        )
