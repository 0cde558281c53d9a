"""Compacted topics for tests: keyed records, and looks at what is left of them."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

from headrace.protocol.messages import decode_messages
from headrace.protocol.properties import KEYS, encode_properties
from headrace.protocol.records import encode_records
from headrace.store import FileOps, MessageStore, QueueAppend, ReadStatus, StoreSettings
from headrace.store.compaction import CompactionSettings
from tests.store.samples import UnsyncedOps, settings

TOPIC = "prices"
HOUR = 3_600_000


class Clock:
    """The time, moved by the test."""

    def __init__(self) -> None:
        self.now = 1_000_000_000_000

    def __call__(self) -> int:
        return self.now


def compacting(**changes: Any) -> StoreSettings:
    """Settings with small files; ``compaction`` changes are given as a dict."""
    how = {
        "file_size": 600,
        "tombstone_retention": timedelta(0),
        "dirty_ratio": 1.0,
        **changes.pop("compaction", {}),
    }
    given = {"segment_size": 1500, "index_file_units": 4, "retention": timedelta(hours=1)}
    return settings(**(given | changes), compaction=CompactionSettings(**how))


SMALL = compacting()


def opened(
    path: Path,
    clock: Clock | None = None,
    how: StoreSettings = SMALL,
    ops: FileOps | None = None,
    topic: str = TOPIC,
) -> MessageStore:
    store = MessageStore.open(path, how, ops=ops or UnsyncedOps(), clock=clock or Clock())
    store.compact_topic(topic).result()
    return store


def keyed(
    topic: str, queue_id: int, pairs: Iterable[tuple[str, bytes]], tags: str | None = None
) -> QueueAppend:
    """Make an append of records with keys; an empty body is a delete."""
    pairs = list(pairs)
    extra = {} if tags is None else {"TAGS": tags}
    properties = [encode_properties({KEYS: key} | extra) for key, _ in pairs]
    bodies = [body for _, body in pairs]
    return QueueAppend(topic, queue_id, encode_records(topic, queue_id, bodies, properties, 0))


def put(store: MessageStore, key: str, body: bytes, queue_id: int = 0, topic: str = TOPIC) -> int:
    """Append one record; its offset."""
    [result] = store.append([keyed(topic, queue_id, [(key, body)])]).result()
    return result.first_offset


def follow(
    store: MessageStore, queue_id: int = 0, topic: str = TOPIC, start: int = 0, count: int = 7
) -> list[tuple[int, str, bytes]]:
    """Read from an offset to the end as a client does: offset, key and body of each record."""
    found: list[tuple[int, str, bytes]] = []
    offset = start
    while True:
        result = store.read(topic, queue_id, offset, count, 1 << 30)
        if result.status in (ReadStatus.AT_END, ReadStatus.EMPTY):
            return found
        assert result.status in (ReadStatus.FOUND, ReadStatus.NO_MATCH)
        assert result.next_offset > offset
        messages = decode_messages(b"".join(result.slices))
        assert len(messages) == result.count
        found += [(each.queue_offset, each.properties[KEYS], each.body) for each in messages]
        offset = result.next_offset


def table(records: Iterable[tuple[int, str, bytes]]) -> dict[str, bytes]:
    """Let the last record of each key win; an empty body deletes."""
    found: dict[str, bytes] = {}
    for _, key, body in records:
        if body:
            found[key] = body
        else:
            found.pop(key, None)
    return found


def queue_folder_of(path: Path, queue_id: int = 0, topic: str = TOPIC) -> Path:
    """Find the folder of a queue's compaction log."""
    [folder] = (path / "compaction" / topic).glob(f"{queue_id}-*")
    return folder


def offset_of(record: bytes) -> int:
    """Read the queue offset of a stored record."""
    return int(struct.unpack_from(">q", record, 20)[0])
