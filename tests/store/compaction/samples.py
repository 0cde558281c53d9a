"""Compaction logs to test, and looks at what they hold."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.protocol.columns import decode_columns
from headrace.protocol.properties import encode_properties
from headrace.protocol.records import Records, encode_records
from headrace.store import FileOps
from headrace.store.compaction import CompactionSettings, QueueLog, StoreClock
from headrace.store.compaction.manifest import ReadStatus
from tests.store.samples import UnsyncedOps, split

SECRET = b"of the store"
TOPIC = "table"

Record = tuple[int, str | None, str | None]
"""Offset, key, value; a value of None is a delete."""


class TestClock(StoreClock):
    """A clock that the test moves."""

    __test__ = False

    def __init__(self) -> None:
        super().__init__()
        self.wall = 1_700_000_000_000
        self.age = 0

    def now(self) -> int:
        return self.wall

    def elapsed(self) -> int:
        return self.age


def settings(**changes: Any) -> CompactionSettings:
    return CompactionSettings(**changes)


def open_log(
    folder: Path,
    config: CompactionSettings | None = None,
    *,
    ops: FileOps | None = None,
    clock: StoreClock | None = None,
    secret: bytes = SECRET,
) -> QueueLog:
    return QueueLog.open(
        folder,
        config or settings(),
        ops or UnsyncedOps(),
        secret=secret,
        clock=clock or TestClock(),
    )


def records_of(
    records: Sequence[Record], *, stored: int = 1000, tags: Sequence[str | None] | None = None
) -> Records:
    """Make stored records with the given offsets, each stored a millisecond after the other."""
    properties = []
    for number, (_, key, _) in enumerate(records):
        words = {"KEYS": key} if key else {}
        tag = tags[number] if tags else None
        if tag is not None:
            words["TAGS"] = tag
        properties.append(encode_properties(words))
    bodies = [(value or "").encode() for _, _, value in records]
    made = encode_records(TOPIC, 0, bodies, properties, 0)
    for start, (offset, _, _) in zip(made.starts.tolist(), records, strict=True):
        struct.pack_into(
            ">qq", made.data, start + 20, offset, (100_000 + 1000 * offset) % (1 << 50)
        )
        struct.pack_into(">q", made.data, start + 56, stored + offset)
    return made


def append(log: QueueLog, *pairs: tuple[str | None, str | None], stored: int = 1000) -> None:
    """Append records at the next offsets."""
    base = log.next_offset
    log.append(
        records_of([(base + i, key, value) for i, (key, value) in enumerate(pairs)], stored=stored)
    )


def decode(slices: Iterable[memoryview]) -> list[Record]:
    block = b"".join(slices)
    if not block:
        return []
    columns = decode_columns(block)
    keys = columns.property("KEYS").to_pylist()
    return [
        (offset, None if key is None else key.decode(), body.decode() or None)
        for offset, key, body in zip(
            columns.queue_offset.tolist(), keys, columns.body.to_pylist(), strict=True
        )
    ]


def survivors(log: QueueLog, max_count: int = 5, max_bytes: int = 1 << 30) -> list[Record]:
    """Read everything from offset 0 on; offsets rise and every next leads on."""
    found: list[Record] = []
    offset = 0
    while (read := log.read(offset, max_count, max_bytes)).status is ReadStatus.FOUND:
        some = decode(read.slices)
        assert len(some) == read.count == len(split(read.slices))
        offsets = [one[0] for one in some]
        assert offsets == sorted(set(offsets))
        assert offsets[0] >= offset
        assert read.next_offset == offsets[-1] + 1
        offset = read.next_offset
        found += some
    assert read.status is ReadStatus.AT_END
    assert read.next_offset == log.next_offset
    rows = log.units(0, log.next_offset)
    assert rows["offset"].tolist() == [one[0] for one in found]
    assert (np.diff(rows["offset"]) > 0).all()
    return found


def latest(records: Iterable[Record]) -> dict[str | None, Record]:
    """The last record of each key."""
    return {record[1]: record for record in records}


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
