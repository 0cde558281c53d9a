"""The life of a store: its start, its recovery after a crash, and very many queues."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.measures import Plan, benchmark
from headrace.protocol.records import Records, encode_records
from headrace.store import AppendResult, MessageStore, QueueAppend, StoreSettings

__all__ = ["queues_10k", "recovery_bytes", "start_10gb"]

_BODY = 1024
_BATCH = 200
_QUEUES = 8
#: Appends that wait to be answered.
_AHEAD = 64
_SETTINGS = StoreSettings(flush="async", retention=None, disk_watermark=1.0)


@benchmark({"start_10gb": "s"})
def start_10gb(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Start a store that holds 10 GB, after a clean stop."""
    with _filled(plan.sizes.store_bytes) as path:
        for _ in range(plan.runs):
            started = time.perf_counter()
            store = MessageStore.open(path, _SETTINGS)
            seconds = time.perf_counter() - started
            with store:
                assert store.statistics().end >= plan.sizes.store_bytes
            yield {"start_10gb": seconds}


@benchmark({"recovery_bytes": "MB/s"})
def recovery_bytes(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Check and index a log that no checkpoint vouches for, as after a crash."""
    with _filled(plan.sizes.recovered_bytes) as path:
        for run in range(plan.runs):
            crashed = path.with_name(f"crashed-{run}")
            (crashed / "log").mkdir(parents=True)
            for file in (path / "log").iterdir():
                os.link(file, crashed / "log" / file.name)
            with MessageStore.open(crashed, _SETTINGS) as store:
                report = store.statistics().recovery
            assert report.rebuilt
            yield {"recovery_bytes": report.checked_bytes / report.seconds / 1e6}


@benchmark(
    {
        "queues_10k_sends": "queues/s",
        "queues_10k_pulls": "queues/s",
        "queues_10k_start": "s",
        "queues_10k_stop": "s",
        "queues_10k_files": "open files",
    }
)
def queues_10k(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Send to very many queues, read them all, and start again."""
    count = plan.sizes.many_queues
    appends = [_append("many", queue, 2) for queue in range(count)]
    for _ in range(plan.runs):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            before = _open_files()
            with MessageStore.open(path, _SETTINGS) as store:
                sent = _timed(partial(_send, store, appends))
                read = _timed(partial(_read, store, count))
                files = _open_files() - before
                closing = time.perf_counter()
            saved = time.perf_counter() - closing
            started = time.perf_counter()
            store = MessageStore.open(path, _SETTINGS)
            start = time.perf_counter() - started
            store.close()
        yield {
            "queues_10k_sends": count / sent,
            "queues_10k_pulls": count / read,
            "queues_10k_start": start,
            "queues_10k_stop": saved,
            "queues_10k_files": files,
        }


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _send(store: MessageStore, appends: list[QueueAppend]) -> None:
    waiting = [store.append([append]) for append in appends]
    for future in waiting:
        future.result()


def _read(store: MessageStore, count: int) -> None:
    for queue in range(count):
        assert store.read("many", queue, 0).count == 2


def _append(topic: str, queue: int, count: int) -> QueueAppend:
    return QueueAppend(topic, queue, encode_records(topic, queue, [b"x" * _BODY] * count, None, 0))


@contextmanager
def _filled(size: int) -> Iterator[Path]:
    """Make a store whose log has so many bytes."""
    batches = [_append("lines", queue, _BATCH).records for queue in range(_QUEUES)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        with MessageStore.open(path, _SETTINGS) as store:
            waiting: list[Future[list[AppendResult]]] = []
            for number in range(size // len(batches[0].data) + 1):
                queue = number % _QUEUES
                # The store stamps records in place, so each append gets its own.
                records = Records(bytearray(batches[queue].data), batches[queue].starts)
                waiting.append(store.append([QueueAppend("lines", queue, records)]))
                if len(waiting) > _AHEAD:
                    waiting.pop(0).result()
            for future in waiting:
                future.result()
        yield path
