"""What the fault tests of compaction logs share: a history, and the looks of the oracles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headrace.errors import StoreError
from headrace.store import FileOps
from headrace.store.compaction import QueueLog
from headrace.store.compaction.manifest import ReadStatus
from tests.store.compaction.samples import open_log, records_of, settings
from tests.store.oracles import Found, History, Key, Step
from tests.store.samples import split

__all__ = ["KEY", "QueueHistory", "found_of", "raw_records", "read_folder", "tree"]

KEY: Key = ("table", 0)


class QueueHistory(History):
    """Appends to one compaction log, in order."""

    def put(self, log: QueueLog, *pairs: tuple[str | None, str | None], sync: bool = True) -> bool:
        """Append records at the next offsets, and sync; whether both went well."""
        base = log.next_offset
        made = records_of([(base + i, key, value) for i, (key, value) in enumerate(pairs)])
        # Each record stands alone: a roll may come between two of them.
        steps = [Step([(KEY, record)]) for record in split([memoryview(made.data)])]
        self.steps += steps
        try:
            log.append(made)
            if sync:
                log.sync()
        except StoreError:
            for step in steps[log.next_offset - base :]:
                step.outcome = "refused"
            return False
        for step in steps if sync else ():
            step.outcome = "durable"
        return True


def raw_records(log: QueueLog) -> list[bytes]:
    """Every record that can be read from offset 0 on, as bytes."""
    found: list[bytes] = []
    offset = 0
    while (read := log.read(offset, 1000, 1 << 30)).status is ReadStatus.FOUND:
        found += split(read.slices)
        offset = read.next_offset
    return found


def found_of(log: QueueLog) -> Found:
    return Found({KEY: raw_records(log)}, {KEY: log.next_offset})


def read_folder(folder: Path, ops: FileOps | None = None, **changes: object) -> Found:
    """Open a log, read all of it, and close it."""
    log = open_log(folder, settings(**changes), ops=ops)
    try:
        return found_of(log)
    finally:
        log.close()


def tree(folder: Path) -> dict[str, bytes]:
    """The names and bytes of a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def changed(file: Path, change: Callable[[bytearray], None]) -> None:
    content = bytearray(file.read_bytes())
    change(content)
    file.write_bytes(bytes(content))


def key_of(record: bytes) -> bytes:
    """The key of a stored record, as it is in its properties."""
    at = record.rindex(b"KEYS\x01") + 5
    end = record.find(b"\x02", at)
    return record[at:] if end < 0 else record[at:end]
