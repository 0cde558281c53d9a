"""Copies of state stores on local disk: RocksDB, brought up to the last commit at every open.

The state topic is the truth; a copy only makes reads fast, and may be deleted at any time.  An
attempt never writes its changes into the copy: it leaves them in a file of its own, and whoever
opens the copy for the next batch applies the file that the commit names (design, section 4).
"""

from __future__ import annotations

import itertools
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self
from zlib import crc32

import msgspec
import pyarrow as pa
from rocksdict import BlockBasedOptions, Options, Rdict, ReadOptions, WriteBatch

from headrace.errors import StateError, StateLockedError, StateMismatchError
from headrace.failpoints import failpoint
from headrace.private import owners_folder
from headrace.runtime.state.store import EmptyBase, StoreCopy, encode_entries

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.protocol.transactions import StateSummary
    from headrace.runtime.state.interface import Attempted, ChangeSet


# RocksDB databases of state stores: their options, and how one process after another opens them.

_LOCK_WAIT = 30.0
_LOCK_POLL = 0.005


def _options() -> Options:
    options = Options(raw_mode=True)
    table = BlockBasedOptions()
    table.set_bloom_filter(10, block_based=False)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(32 << 20)
    # Each batch leaves one small file: with filters, a few more to look into cost less than to
    # merge them sooner.
    options.set_level_zero_file_num_compaction_trigger(12)
    options.set_keep_log_file_num(1)
    options.set_max_open_files(64)
    return options


def open_database(path: Path) -> Rdict:
    """Open a database for writing, and make it where there is none; wait while another task has it.

    Where the process that has it is stopped, it may keep it for ever: then a database beside it is
    taken, ``db-1`` for ``db``, which goes once its place is free again.

    Raises
    ------
    StateLockedError
        Another task did not close it in time.
    StateError
        The disk or its permissions are at fault.
    """
    owners_folder(path.parent)
    deadline = time.monotonic() + _LOCK_WAIT
    while True:
        for place in _places(path):
            try:
                database = _open(place)
            except StateLockedError:
                if not _is_stopped(_owner(place / "LOCK")):
                    break
            else:
                if place == path:
                    for beside in path.parent.glob(f"{path.name}-*"):
                        _is_removed(beside)
                return database
        if time.monotonic() > deadline:
            raise StateLockedError(
                f"another task has held the state store in {path} for {_LOCK_WAIT:.0f} s",
                hint="a task of an earlier start may hang: the job tries again",
            )
        time.sleep(_LOCK_POLL)


def _places(path: Path) -> Iterator[Path]:
    yield path
    for number in itertools.count(1):
        yield path.with_name(f"{path.name}-{number}")


def _open(path: Path) -> Rdict:
    try:
        # Without its column family by name, a database that exists is opened with the options of
        # RocksDB: no filters, so that a look-up reads a block of every file.
        return Rdict(str(path), _options(), column_families={"default": _options()})
    except Exception as error:
        if "lock" in str(error).lower():
            raise StateLockedError(f"another task has the state store in {path}") from error
        if "corrupt" in str(error).lower() and _is_removed(path):
            return _open(path)
        raise StateError(
            f"cannot open the local copy of a state store in {path}: {error}",
            hint="check the disk and its permissions; the folder may be deleted, the state topic is"
            " the truth",
        ) from error


def _is_removed(path: Path) -> bool:
    """Delete a database under its own lock, so that one which some task has stays whole."""
    try:
        Rdict.destroy(str(path), _options())
    except Exception as error:  # noqa: BLE001 - RocksDB has one class for all of them
        return "lock" in str(error).lower()
    return True


def _owner(lock: Path) -> int | None:
    """Return the process that has locked a file, or None if the system does not tell.

    The lock itself is not tried: to close the file again would end a lock of this process.
    """
    try:
        inode = lock.stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        match line.split():
            case [_, "POSIX", _, _, pid, place, *_] if place.endswith(f":{inode}"):
                return int(pid)
    return None


def _is_stopped(process: int | None) -> bool:
    if process is None:
        return False
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in {"T", "t"}


logger = logging.getLogger(__name__)

_MARK_KEY = b"\x00mark"
_MODULUS = 1 << 64
_SCAN_ROWS = 20_000
#: A change file begins with the checksum of the rest: no sync keeps its bytes, as what a machine
#: loses when it goes down is in the state topic, but none that differ are applied.  As many bytes
#: as Arrow aligns columns to.
_CHECKSUM_BYTES = 8


class _CopyMark(msgspec.Struct, frozen=True):
    """Which commit a copy reflects."""

    epoch: int
    batch: int
    end_offset: int
    count: int
    checksum: int


_FRESH = _CopyMark(0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class StateTopicBlock:
    """A run of state messages: last write wins, None deletes."""

    keys: list[bytes]
    values: list[bytes | None]
    #: Offset behind the last message.
    next_offset: int


class StateTopic(Protocol):
    """Reads one queue of a state topic."""

    def read(
        self, store: str, partition: int, start: int, end: int, batch: int | None = None
    ) -> Iterator[StateTopicBlock]:
        """Return the messages of [start, end) in order, none of a batch after ``batch``."""


class _RocksBase:
    def __init__(self, database: Rdict) -> None:
        self._database = database

    def get_many(self, keys: list[bytes]) -> Sequence[bytes | None]:
        found: list[bytes | None] = self._database.get(keys) if keys else []  # type: ignore[arg-type, assignment]
        return found

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._database.items():
            if isinstance(key, bytes) and key != _MARK_KEY:
                yield key, value

    def range(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        options = ReadOptions()
        options.set_iterate_upper_bound(stop)
        for key, value in self._database.items(from_key=start, read_opt=options):
            if isinstance(key, bytes) and isinstance(value, bytes):
                yield key, value


class LocalCopies:
    """All copies below one folder of this machine.

    Parameters
    ----------
    root
        Folder of the job's state; made when it is missing.
    topic
        Where a copy that cannot be brought up to date locally is read from.
    """

    def __init__(self, root: Path, topic: StateTopic) -> None:
        self._root = root
        self._topic = topic

    def open(
        self, store: str, partition: int, summary: StateSummary | None, lineage: list[list[int]]
    ) -> StoreCopy:
        """Open a copy that reflects exactly the last commit.

        Raises
        ------
        StateMismatchError
            The state topic does not hold what the commit record says.
        """
        if summary is None or summary.end_offset == 0:
            return StoreCopy(EmptyBase())
        folder = self._folder(store, partition)
        database = open_database(folder / "db")
        try:
            restored = self._bring_up(database, folder, summary, lineage)
            _sweep(folder, summary)
        except BaseException:
            database.close()
            raise
        return StoreCopy(_RocksBase(database), database, restored)

    def save(
        self,
        store: str,
        partition: int,
        attempt: tuple[int, int, int],
        base: StateSummary | None,
        changes: ChangeSet,
    ) -> None:
        """Leave the changes of an attempt (epoch, batch, number) where the next open finds them."""
        folder = self._folder(store, partition) / "changes"
        owners_folder(folder)
        batch = pa.record_batch(
            {
                "key": pa.array(changes.keys, pa.binary()),
                "value": pa.array(changes.values, pa.binary()),
            },
            metadata={b"base": _base_name(base), b"content": _content_name(changes)},
        )
        content = pa.BufferOutputStream()
        with pa.ipc.new_file(content, batch.schema) as writer:
            writer.write_batch(batch)
        changed = content.getvalue()
        with (folder / _change_name(*attempt)).open("wb") as file:
            file.write(crc32(changed).to_bytes(_CHECKSUM_BYTES, "big"))
            failpoint("state.changes.begun")
            file.write(changed)
        failpoint("state.changes.kept")

    def _folder(self, store: str, partition: int) -> Path:
        return self._root / store / str(partition)

    def _usable_mark(
        self, database: Rdict, summary: StateSummary, lineage: list[list[int]]
    ) -> _CopyMark | None:
        raw = database.get(_MARK_KEY)
        if raw is None:
            return _FRESH
        mark = msgspec.msgpack.decode(raw, type=_CopyMark)
        if not _on_lineage(mark, lineage) or mark.end_offset > summary.end_offset:
            return None
        if mark.end_offset == summary.end_offset and not _agrees(mark, summary):
            return None
        return mark

    def _bring_up(
        self, database: Rdict, folder: Path, summary: StateSummary, lineage: list[list[int]]
    ) -> int:
        """Bring a copy to the commit, and return the number of state messages that this took."""
        mark = self._usable_mark(database, summary, lineage)
        if mark is None:
            # Emptied while it is ours: its folder may be another task's once it is closed.
            _delete_all(database)
            mark = _FRESH
        if mark.end_offset == summary.end_offset:
            return 0
        if self._apply_changes(database, folder, mark, summary):
            return 0
        if mark is not _FRESH and self._catch_up(database, mark, summary):
            return summary.end_offset - mark.end_offset
        self._replay(database, folder, summary)
        return summary.end_offset

    def _apply_changes(
        self, database: Rdict, folder: Path, mark: _CopyMark, summary: StateSummary
    ) -> bool:
        found = self._changes_of(folder, mark, summary)
        if found is None:
            return False
        keys, values = found
        failpoint("state.apply.read")
        _write(database, keys, values, _mark_of(summary))
        failpoint("state.apply.written")
        return True

    def _changes_of(
        self, folder: Path, mark: _CopyMark, summary: StateSummary
    ) -> tuple[Sequence[bytes], Sequence[bytes | None]] | None:
        """Return what the attempt that was committed has changed, if it is kept here."""
        path = folder / "changes" / _change_name(summary.epoch, summary.batch, summary.attempt)
        return read_changes(path, _base_name(mark), _content_name(summary))

    def _catch_up(self, database: Rdict, mark: _CopyMark, summary: StateSummary) -> bool:
        count, checksum = mark.count, mark.checksum
        base = _RocksBase(database)
        for block in self._read(summary, mark.end_offset):
            latest = dict(zip(block.keys, block.values, strict=True))
            keys, news = list(latest), list(latest.values())
            olds = list(base.get_many(keys))
            count += olds.count(None) - news.count(None)
            checksum = (checksum + _checksum(keys, news) - _checksum(keys, olds)) % _MODULUS
            mark = _CopyMark(summary.epoch, summary.batch, block.next_offset, count, checksum)
            _write(database, keys, news, None)
            failpoint("state.catch_up.block")
        if not _agrees(mark, summary):
            return False
        database.put(_MARK_KEY, msgspec.msgpack.encode(_mark_of(summary)))
        return True

    def _read(self, summary: StateSummary, start: int) -> Iterator[StateTopicBlock]:
        place = summary.store, summary.partition
        return self._topic.read(*place, start, summary.end_offset, summary.batch)

    def _replay(self, database: Rdict, folder: Path, summary: StateSummary) -> None:
        logger.info(
            "restoring store %s, partition %d: %d state messages",
            summary.store,
            summary.partition,
            summary.end_offset,
        )
        # What is there did not lead to the committed content: start from nothing.
        _delete_all(database)
        failpoint("state.replay.emptied")
        with _Progress(folder, summary) as progress:
            for block in self._read(summary, 0):
                _write(database, block.keys, block.values, None)
                progress.reached(block.next_offset)
                failpoint("state.replay.block")
        found = _content(database)
        if found != (summary.count, summary.checksum):
            raise StateMismatchError(
                f"the state topic of store '{summary.store}', partition {summary.partition}, holds"
                f" {found[0]} keys with checksum {found[1]:016x}, but the commit of batch"
                f" {summary.batch} recorded {summary.count} keys with checksum"
                f" {summary.checksum:016x}",
                hint="messages of the state topic were lost or changed; restore the topic from a"
                " replica, or start the job under a new name",
            )
        database.put(_MARK_KEY, msgspec.msgpack.encode(_mark_of(summary)))


class OpenCopies(LocalCopies):
    """Copies that one process keeps open from batch to batch.

    The changes of an attempt stay in memory until a commit names it; then they are written with the
    mark of that commit, in one write.
    """

    def __init__(self, root: Path, topic: StateTopic) -> None:
        super().__init__(root, topic)
        self._databases: dict[Path, Rdict] = {}
        #: The newest attempt of each copy: its name, what it was based on, and its changes.
        self._waiting: dict[Path, tuple[Attempted, bytes, ChangeSet]] = {}

    def read_by(self, topic: StateTopic) -> None:
        """Read what is to be restored from a topic as another batch sees it."""
        self._topic = topic

    def open(
        self, store: str, partition: int, summary: StateSummary | None, lineage: list[list[int]]
    ) -> StoreCopy:
        """Return a copy that reflects exactly the last commit; it stays open.

        Raises
        ------
        StateMismatchError
            The state topic does not hold what the commit record says.
        """
        if summary is None or summary.end_offset == 0:
            return StoreCopy(EmptyBase())
        folder = self._folder(store, partition)
        if folder not in self._databases:
            self._databases[folder] = open_database(folder / "db")
        database = self._databases[folder]
        restored = self._bring_up(database, folder, summary, lineage)
        self._waiting.pop(folder, None)
        return StoreCopy(_RocksBase(database), restored=restored)

    def save(
        self,
        store: str,
        partition: int,
        attempt: Attempted,
        base: StateSummary | None,
        changes: ChangeSet,
    ) -> None:
        """Keep the changes of an attempt (epoch, batch, number) until the next batch."""
        self._waiting[self._folder(store, partition)] = attempt, _base_name(base), changes

    def _changes_of(
        self, folder: Path, mark: _CopyMark, summary: StateSummary
    ) -> tuple[Sequence[bytes], Sequence[bytes | None]] | None:
        attempt, base, changes = self._waiting.get(folder, (None, b"", None))
        if changes is None or attempt != (summary.epoch, summary.batch, summary.attempt):
            # An executor of another kind may have left a file.
            return super()._changes_of(folder, mark, summary)
        if (base, _content_name(changes)) != (_base_name(mark), _content_name(summary)):
            return None
        return changes.keys, changes.values

    def close(self) -> None:
        """Let other processes open the copies."""
        while self._databases:
            self._databases.popitem()[1].close()


class _Progress:
    """A file that says how far a restore has come, for whoever shows progress."""

    def __init__(self, folder: Path, summary: StateSummary) -> None:
        self._path = folder / "restoring"
        self._end = summary.end_offset

    def __enter__(self) -> Self:
        self.reached(0)
        return self

    def reached(self, offset: int) -> None:
        self._path.write_text(f"{offset} {self._end}")

    def __exit__(self, *_: object) -> None:
        self._path.unlink(missing_ok=True)


def restoring(root: Path) -> tuple[int, int]:
    """Sum up the restores that run below a state folder: messages read, messages in all.

    >>> from pathlib import Path
    >>> restoring(Path("no such folder"))
    (0, 0)
    """
    done = total = 0
    for path in root.glob("*/*/restoring"):
        try:
            read, end = map(int, path.read_text().split())
        except (OSError, ValueError):
            continue
        done, total = done + read, total + end
    return done, total


def _write(
    database: Rdict, keys: Sequence[bytes], values: Sequence[bytes | None], mark: _CopyMark | None
) -> None:
    batch = WriteBatch(raw_mode=True)
    put = batch.put
    for key, value in zip(keys, values, strict=True):
        if value is None:
            batch.delete(key)
        else:
            put(key, value)
    if mark is not None:
        put(_MARK_KEY, msgspec.msgpack.encode(mark))
    database.write(batch)


def _delete_all(database: Rdict) -> None:
    database.delete_range(b"\x00", b"\xff" * 64)


def _content(database: Rdict) -> tuple[int, int]:
    count = checksum = 0
    keys: list[bytes] = []
    values: list[bytes | None] = []
    for key, value in _RocksBase(database).scan():
        keys.append(key)
        values.append(value)
        if len(keys) == _SCAN_ROWS:
            count, checksum = count + len(keys), checksum + _checksum(keys, values)
            keys, values = [], []
    return count + len(keys), (checksum + _checksum(keys, values)) % _MODULUS


def _checksum(keys: list[bytes], values: Sequence[bytes | None]) -> int:
    bodies = encode_entries(keys, list(values)).to_pylist()
    return sum(crc32(body) for body in bodies if body)


def _mark_of(summary: StateSummary) -> _CopyMark:
    return _CopyMark(
        summary.epoch, summary.batch, summary.end_offset, summary.count, summary.checksum
    )


def _agrees(mark: _CopyMark, summary: StateSummary) -> bool:
    return (mark.end_offset, mark.count, mark.checksum) == (
        summary.end_offset,
        summary.count,
        summary.checksum,
    )


def _base_name(base: _CopyMark | StateSummary | None) -> bytes:
    """Return a name for the content that changes were made on: a file fits no other."""
    base = base or _FRESH
    return f"{base.end_offset} {base.count} {base.checksum}".encode()


def _content_name(after: ChangeSet | StateSummary) -> bytes:
    """Return a name for the content that changes lead to.

    An attempt may have had the name of another one: where topics were deleted, epochs begin anew.
    """
    return f"{after.count} {after.checksum}".encode()


def _on_lineage(mark: _CopyMark, lineage: list[list[int]]) -> bool:
    """Return whether a copy's commit is one that the job still stands on."""
    if mark == _FRESH:
        return True
    owner = max(
        (entry for entry in lineage if entry[1] <= mark.batch), key=lambda e: e[1], default=None
    )
    return owner is not None and owner[0] == mark.epoch


def read_changes(
    path: Path, base: bytes, content: bytes
) -> tuple[list[bytes], list[bytes | None]] | None:
    """Read a change file: keys, and values or None for what is deleted.

    None: it is not there, is not whole, or is not of this base and content.
    """
    try:
        with pa.memory_map(str(path)) as file:
            told, changed = file.read_buffer(_CHECKSUM_BYTES), file.read_buffer()
            if crc32(changed) != int.from_bytes(told, "big"):
                return None
            table = pa.ipc.open_file(changed).read_all()
            told_of = table.schema.metadata or {}
            if told_of.get(b"base") != base or told_of.get(b"content") != content:
                return None
            return table.column("key").to_pylist(), table.column("value").to_pylist()
    except (OSError, pa.ArrowInvalid, KeyError):
        return None


def _change_name(epoch: int, batch: int, attempt: int) -> str:
    return f"{epoch}-{batch}-{attempt}.arrow"


def _sweep(folder: Path, summary: StateSummary) -> None:
    """Drop change files that no open can need any more: those up to the commit, and void ones."""
    for path in (folder / "changes").glob("*.arrow"):
        epoch, batch, _ = map(int, path.stem.split("-"))
        if batch <= summary.batch or epoch < summary.epoch:
            path.unlink(missing_ok=True)
