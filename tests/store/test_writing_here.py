"""With ``flush="async"`` the caller's own thread writes when nobody else does."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path

from headrace.protocol.records import encode_records
from headrace.store import AppendResult, MessageStore, QueueAppend, StoreSettings

ASYNC = StoreSettings(flush="async", flush_interval=timedelta(milliseconds=50))


def append(store: MessageStore, *bodies: bytes, topic: str = "t") -> Future[list[AppendResult]]:
    records = encode_records(topic, 0, list(bodies))
    return store.append([QueueAppend(topic, 0, records)])


def eventually_synced(store: MessageStore) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        found = store.statistics()
        if found.synced == found.end:
            return True
        time.sleep(0.005)
    return False


def test_append_is_done_when_the_call_returns(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, ASYNC) as store:
        assert append(store, b"first").done() or eventually_synced(store)
        assert eventually_synced(store)
        done = [append(store, b"x").done() for _ in range(20)]
        assert any(done)
        assert store.bounds("t", 0).max_offset <= 21


def test_what_was_written_here_is_synced_in_time(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, ASYNC) as store:
        for _ in range(3):
            append(store, b"x").result()
            assert eventually_synced(store)


def test_with_sync_flush_done_means_on_disk(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        append(store, b"x").result()
        found = store.statistics()
        assert found.synced == found.end


def test_appends_of_many_threads_keep_each_threads_order(tmp_path: Path) -> None:
    offsets: dict[int, list[int]] = {}

    def send(number: int) -> None:
        futures = [append(store, b"%d" % number) for _ in range(200)]
        offsets[number] = [future.result()[0].first_offset for future in futures]

    with MessageStore.open(tmp_path, ASYNC) as store:
        threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(offset for each in offsets.values() for offset in each) == list(range(800))
        assert all(each == sorted(each) for each in offsets.values())


def test_what_was_written_here_is_there_after_a_close(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, ASYNC) as store:
        for _ in range(10):
            append(store, b"x")
    with MessageStore.open(tmp_path, ASYNC) as store:
        assert store.bounds("t", 0).max_offset == 10
