"""A primary and its followers in one process, without sockets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headrace.errors import StoreError
from headrace.store import MessageStore, StageKey, StoreSettings
from headrace.store.fileops import FileOps
from headrace.store.replication.copyist import PositionVerdict, cut_log, empty_store, judge
from headrace.store.replication.following import (
    Copied,
    CopyBytes,
    CutDone,
    Event,
    Fetch,
    Follower,
    Greet,
    Halt,
    Instruction,
    LogHead,
    Received,
    Refused,
    Restart,
    TruncateLog,
    Welcomed,
)
from tests.store.samples import UnsyncedOps, append_of, chunk_of, log_files, section_of, settings

LOG = "log-1"
SMALL = settings(segment_size=1500, index_file_units=4)
READ_ONLY = StoreError("this store is the copy of another")


def open_store(path: Path, how: StoreSettings = SMALL) -> MessageStore:
    return MessageStore.open(path, how, ops=UnsyncedOps())


class Copyist:
    """Carries out a follower's instructions on its own store, as the broker's does."""

    def __init__(
        self,
        path: Path,
        store: MessageStore,
        open_store: Callable[[], MessageStore],
        ops: FileOps | None = None,
    ) -> None:
        self._path = path
        self.store = store
        self._open_store = open_store
        self._ops = ops

    def head(self, log: str) -> LogHead:
        """Say where the own log begins and ends."""
        return self.store.replication.head(log)

    def copy(self, instruction: CopyBytes, *, sync: bool) -> Copied:
        """Append bytes; raises what the store raises."""
        port = self.store.replication
        return port.copy(
            instruction.base, instruction.position, instruction.content, sync=sync
        ).result()

    def cut(self, instruction: TruncateLog, log: str) -> CutDone:
        """Remove what the primary does not have."""
        self.store.close()
        cut_log(self._path, instruction.position, self._ops)
        return self._reopened(log)

    def restart(self, instruction: Restart, log: str) -> CutDone:
        """Empty the store, and begin at a position."""
        self.store.close()
        empty_store(self._path, instruction.position, self._ops)
        return self._reopened(log)

    def _reopened(self, log: str) -> CutDone:
        self.store = self._open_store()
        return CutDone(self.head(log))


def open_copy(path: Path, how: StoreSettings = SMALL) -> MessageStore:
    store = open_store(path, how)
    store.replication.refuse(READ_ONLY)
    return store


def write_some(store: MessageStore, number: int) -> None:
    """Write messages to two queues, a unit over four, or delete a topic."""
    if number % 7 == 6:
        store.delete_topic("lines").result()
    elif number % 3 == 2:
        key = StageKey("job", 1, number, 0, 0, 0)
        sections = [section_of("counts", q, [b"u%d" % number] * (q + 1)) for q in range(3)]
        store.stage(key, 0, chunk_of(*sections))
        store.commit_unit([key], [append_of("commits", 0, [b"%d" % number])]).result()
        store.drop_staged("job", lambda _: False)
    else:
        for queue_id in range(2):
            store.append([append_of("lines", queue_id, [b"m%d" % number] * 2)]).result()


def promote(store: MessageStore) -> None:
    """Make a copy a primary."""
    port = store.replication
    port.open_epoch(port.epochs.latest + 1).result()
    port.refuse(None)


def demote(store: MessageStore) -> None:
    store.replication.refuse(READ_ONLY)


class InProcess:
    """A follower of a store in the same process, driven one instruction at a time."""

    def __init__(
        self,
        path: Path,
        primary: Callable[[], MessageStore],
        how: StoreSettings = SMALL,
        *,
        log: str = "",
        from_newest: bool = False,
        max_bytes: int = 1 << 22,
    ) -> None:
        self.path = path
        self.how = how
        self.primary = primary
        self.copyist = Copyist(
            path, open_copy(path, how), lambda: open_copy(path, how), UnsyncedOps()
        )
        self.max_bytes = max_bytes
        self.machine = Follower(self.copyist.head(log), from_newest)
        self.instruction: Instruction = Greet()
        #: Every instruction that was carried out.
        self.story: list[Instruction] = []

    @property
    def store(self) -> MessageStore:
        return self.copyist.store

    def step(self) -> Instruction:
        """Carry out one instruction; the next one."""
        self.story.append(self.instruction)
        self.instruction = self.machine.handle(self._perform(self.instruction))
        return self.instruction

    def catch_up(self, most: int = 10_000) -> None:
        """Follow until there is nothing more, or until it halts."""
        for _ in range(most):
            before = self.step()
            if isinstance(before, Halt):
                return
            if isinstance(before, Fetch) and before.position == self.primary().replication.end:
                return
        raise AssertionError(f"not caught up after {most} steps: {self.instruction}")

    def _perform(self, instruction: Instruction) -> Event:
        primary = self.primary().replication
        log = self.machine.head.log
        if isinstance(instruction, Greet):
            return Welcomed(primary.head(LOG))
        if isinstance(instruction, Fetch):
            newest = self.machine.head.epochs.newest
            if (
                judge(primary.head(LOG), log, newest, instruction.position)
                is not PositionVerdict.FITS
            ):
                return Refused()
            most = instruction.max_bytes
            stretch = primary.read(instruction.position, min(most, self.max_bytes * most >> 22))
            # Bytes that were sent stay what they are, also when their sender cuts its log now.
            return Received(stretch.base, stretch.position, memoryview(bytes(stretch.content)))
        if isinstance(instruction, CopyBytes):
            return self.copyist.copy(instruction, sync=True)
        if isinstance(instruction, TruncateLog):
            return self.copyist.cut(instruction, log)
        if isinstance(instruction, Restart):
            return self.copyist.restart(instruction, log)
        raise AssertionError(instruction)

    def crash(self) -> None:
        """Lose what is in memory and the checkpoint, and begin again."""
        self.store.close()
        (self.path / "checkpoint").unlink(missing_ok=True)
        self.reopen()

    def reopen_as_follower(self) -> None:
        """Begin again on the same folder, as a process that was started anew."""
        self.store.close()
        self.reopen()

    def reopen(self) -> None:
        self.copyist.store = open_copy(self.path, self.how)
        head = self.copyist.head(self.machine.head.log)
        self.instruction = self.machine.handle(CutDone(head))


def segments(path: Path) -> dict[str, bytes]:
    """The segments of a store by name."""
    return {each.name: each.read_bytes() for each in log_files(path)}
