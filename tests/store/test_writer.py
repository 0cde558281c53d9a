"""Groups, syncs, checkpoints and what the writer tells others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from headrace.store import FileOps, MessageStore, QueueKey
from tests.store.samples import (
    FaultyOps,
    append_of,
    bodies,
    contents,
    copy_store,
    settings,
)


def eventually(holds: Callable[[], bool], *, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


class SlowSync(FaultyOps):
    """Syncs that wait for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.go_on.set()

    def fdatasync(self, fd: int) -> None:
        assert self.go_on.wait(30)
        super().fdatasync(fd)


def test_all_that_waits_is_written_with_one_sync(tmp_path: Path) -> None:
    ops = SlowSync()
    with MessageStore.open(tmp_path, settings(), ops=ops) as store:
        ops.go_on.clear()
        first = store.append([append_of("lines", 0, [b"first"])])
        assert eventually(lambda: ops.calls["write"] == 1)
        waiting = [store.append([append_of("lines", 0, [b"%d" % n])]) for n in range(50)]
        before = ops.calls.get("sync", 0)
        ops.go_on.set()
        assert [future.result()[0].first_offset for future in waiting] == list(range(1, 51))
        assert first.result()[0].first_offset == 0
        assert ops.calls["sync"] == before + 2
        assert store.statistics().groups == 2
        assert store.statistics().appended_records == 51


def test_nothing_is_seen_before_it_is_on_disk(tmp_path: Path) -> None:
    ops = SlowSync()
    with MessageStore.open(tmp_path, settings(), ops=ops) as store:
        ops.go_on.clear()
        future = store.append([append_of("lines", 0, [b"x"])])
        assert eventually(lambda: ops.calls["write"] == 1)
        assert store.queues() == []
        assert store.bounds("lines", 0).max_offset == 0
        assert not future.done()
        ops.go_on.set()
        future.result()
        assert store.bounds("lines", 0).max_offset == 1


def test_async_appends_are_synced_soon_and_units_at_once(tmp_path: Path) -> None:
    lazy = settings(flush="async", flush_interval=timedelta(milliseconds=50))
    with MessageStore.open(tmp_path, lazy) as store:
        for _ in range(5):
            store.append([append_of("lines", 0, [b"x"])]).result()
        assert eventually(lambda: store.statistics().synced == store.statistics().end)
        for _ in range(5):
            store.append([append_of("lines", 0, [b"x"])]).result()
            store.commit_unit([], [append_of("commits", 0, [b"1"])]).result()
            assert store.statistics().synced == store.statistics().end


def test_the_callback_names_queues_whose_messages_can_be_read(tmp_path: Path) -> None:
    seen: list[tuple[QueueKey, int]] = []
    done = threading.Event()

    def on_append(keys: object) -> None:
        assert isinstance(keys, list)
        seen.extend((key, store.bounds(*key).max_offset) for key in sorted(keys))
        done.set()

    with MessageStore.open(tmp_path, settings(), on_append) as store:
        two = [append_of("words", 1, [b"x"]), append_of("lines", 0, [b"x", b"y"])]
        store.append(two).result()
        assert done.wait(10)
    assert seen == [(("lines", 0), 2), (("words", 1), 1)]


def test_a_callback_that_raises_is_logged_and_harms_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def on_append(keys: object) -> None:
        raise RuntimeError("no")

    with MessageStore.open(tmp_path, settings(), on_append) as store:
        for _ in range(2):
            store.append([append_of("lines", 0, [b"x"])]).result()
    assert "the callback for new messages raised" in caplog.text


def test_a_cancelled_append_is_left_out_or_done(tmp_path: Path) -> None:
    ops = SlowSync()
    with MessageStore.open(tmp_path, settings(), ops=ops) as store:
        ops.go_on.clear()
        store.append([append_of("lines", 0, [b"first"])])
        assert eventually(lambda: ops.calls["write"] == 1)
        doomed = store.append([append_of("lines", 0, [b"doomed"])])
        last = store.append([append_of("lines", 0, [b"last"])])
        assert doomed.cancel()
        ops.go_on.set()
        last.result()
        assert bodies(store, "lines", 0) == [b"first", b"last"]


def test_checkpoints_follow_by_themselves_and_bound_recovery(tmp_path: Path) -> None:
    often = settings(checkpoint_interval=timedelta(milliseconds=20), index_file_units=4)
    with MessageStore.open(tmp_path / "a", often) as store:
        for number in range(30):
            store.append([append_of("lines", number % 3, [b"x"] * 5)]).result()
        assert eventually(lambda: store.statistics().checkpoint == store.statistics().end)
        path = copy_store(tmp_path / "a", tmp_path / "b")
        held = contents(store)
        # What is saved in full files is no longer held in memory after the next checkpoint.
        store.append([append_of("lines", 0, [b"x"])]).result()
        assert eventually(lambda: store.statistics().checkpoint == store.statistics().end)
        assert store._catalog.view(("lines", 0)).memory_offset >= 44
    with MessageStore.open(path, often) as store:
        assert store.statistics().recovery.checked_bytes == 0
        assert contents(store) == held


def test_many_bytes_bring_a_checkpoint_early(tmp_path: Path) -> None:
    eager = settings(checkpoint_interval=timedelta(hours=1), checkpoint_bytes=10_000)
    with MessageStore.open(tmp_path, eager) as store:
        for _ in range(20):
            store.append([append_of("lines", 0, [b"x" * 1000])]).result()
        assert eventually(lambda: store.statistics().checkpoint > 8_000)


def test_closing_finishes_what_waits(tmp_path: Path) -> None:
    store = MessageStore.open(tmp_path, settings())
    futures = [store.append([append_of("lines", 0, [b"x"])]) for _ in range(200)]
    store.close()
    assert all(future.result() for future in futures)
    with MessageStore.open(tmp_path, settings()) as store:
        assert store.bounds("lines", 0).max_offset == 200


def test_writers_and_readers_at_once_agree(tmp_path: Path) -> None:
    small = settings(
        segment_size=30_000,
        index_file_units=16,
        checkpoint_interval=timedelta(milliseconds=10),
        flush="async",
    )
    with MessageStore.open(tmp_path, small) as store:
        wrong: list[str] = []

        def write(writer: int) -> None:
            futures = [
                store.append([append_of("lines", writer % 2, [b"%d %d" % (writer, number)] * 2)])
                for number in range(150)
            ]
            for future in futures:
                future.result()

        def follow(queue_id: int) -> None:
            offset = 0
            while offset < 600:
                result = store.read("lines", queue_id, offset, 20, 1 << 20)
                if result.next_offset < offset or result.max_offset < offset:
                    wrong.append(f"back from {offset} to {result.next_offset}")
                offset = result.next_offset

        threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
        threads += [threading.Thread(target=follow, args=(n,)) for n in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert wrong == []
        for queue_id in range(2):
            found = bodies(store, "lines", queue_id)
            for writer in (queue_id, queue_id + 2):
                mine = [body for body in found if body.startswith(b"%d " % writer)]
                assert mine == [b"%d %d" % (writer, n // 2) for n in range(300)]
        held = contents(store)
    with MessageStore.open(tmp_path, small) as store:
        assert contents(store) == held


def test_new_folders_are_named_on_disk_before_they_are_used(tmp_path: Path) -> None:
    synced: list[Path] = []

    class Watching(FileOps):
        def sync_directory(self, path: Path) -> None:
            synced.append(path)
            super().sync_directory(path)

    MessageStore.open(tmp_path / "a" / "b", settings(), ops=Watching()).close()
    assert synced[:3] == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    assert tmp_path / "a" / "b" / "log" in synced
