"""Objects out of rows: what a batch of a queue is cut into, and how each is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from headrace.connect.connectors.formats.writing import joined, write_rows

if TYPE_CHECKING:
    from headrace.connect import Config

__all__ = ["Gathered", "Shape"]

#: What compresses lines, and how the names of compressed objects end.
_ENDINGS = {"gzip": ".gz", "zstd": ".zst"}
_KINDS = {
    "parquet": "application/vnd.apache.parquet",
    "csv": "text/csv",
    "jsonl": "application/x-ndjson",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What objects are like.

    Examples
    --------
    >>> Shape("csv", "gzip").ending, Shape("parquet", "gzip").ending
    ('csv.gz', 'parquet')
    """

    format: str
    compression: str
    #: Most rows of an object.
    rows: int = 1_000_000
    #: Most bytes of an object, as its rows take up memory.
    bytes: int = 128 << 20

    @classmethod
    def of(cls, config: Config) -> Shape:
        """Read a sink's config."""
        return cls(
            config["format"],
            config["compression"],
            config["object.max.rows"],
            config["object.max.bytes"],
        )

    @property
    def kind(self) -> str:
        """What HTTP calls it."""
        return _KINDS[self.format] if self._outer is None else f"application/{self._outer}"

    @property
    def ending(self) -> str:
        """How names of objects end."""
        return self.format + ("" if self._outer is None else _ENDINGS[self._outer])

    @property
    def _outer(self) -> str | None:
        # Parquet compresses within.
        return None if self.format == "parquet" or self.compression == "none" else self.compression

    def content(self, column: pa.Array, name: str) -> pa.Buffer:
        """Make an object of rows.

        Raises
        ------
        SerializationError
            Where the format cannot hold them.
        """
        held = pa.BufferOutputStream()
        if self._outer is None:
            write_rows(cast("Any", held), column, self.format, self.compression, name)
        else:
            with pa.CompressedOutputStream(held, self._outer) as stream:
                write_rows(stream, column, self.format, "none", name)
        return held.getvalue()


@dataclass(slots=True)
class Gathered:
    """Rows of a queue that go to one folder, in the order of their offsets.

    Examples
    --------
    >>> gathered = Gathered()
    >>> gathered.add([7, 8, 9], pa.array(["a", "b", "c"]))
    >>> [(first, part.to_pylist()) for first, part in gathered.parts(Shape("csv", "none", rows=2))]
    [(7, ['a', 'b']), (9, ['c'])]
    """

    offsets: list[int] = field(default_factory=list)
    columns: list[pa.Array] = field(default_factory=list)

    def add(self, offsets: list[int], column: pa.Array) -> None:
        """Gather rows."""
        self.offsets += offsets
        self.columns.append(column)

    def parts(self, shape: Shape) -> Iterator[tuple[int, pa.Array]]:
        """Cut the rows into objects; give each with the offset of its first row."""
        column = joined(self.columns, shape.format)
        each = max(1, shape.bytes // max(1, column.nbytes // len(column)))
        most = min(shape.rows, each)
        for start in range(0, len(column), most):
            yield self.offsets[start], column.slice(start, most)
