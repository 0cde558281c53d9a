"""What a job's large commit costs others: how long an append waits while it is written."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.measures import Plan, benchmark
from headrace.protocol.records import encode_records
from headrace.protocol.transactions import StagedSection, encode_sections
from headrace.store import MessageStore, QueueAppend, StageKey, StoreSettings

__all__ = ["append_beside_unit", "append_times"]

_BODY = 1000
#: Bytes of a stage request, about, and tasks that stage.
_CHUNK = 1024 * 1024
_PARTS = 8
#: Seconds between two appends of the other producer.
_PAUSE = 0.001


@benchmark(
    {
        "append_beside_unit_p50": "s",
        "append_beside_unit_p99": "s",
        "append_beside_unit": "s",
        "unit_beside_appends": "MB/s",
    }
)
def append_beside_unit(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Append one message after the other while a large unit is committed."""
    for _ in range(plan.runs):
        times, seconds = append_times(plan.sizes.unit_bytes)
        yield {
            "append_beside_unit_p50": times[len(times) // 2],
            "append_beside_unit_p99": times[int(0.99 * len(times))],
            "append_beside_unit": times[-1],
            "unit_beside_appends": plan.sizes.unit_bytes / seconds / 1e6,
        }


def append_times(unit_bytes: int) -> tuple[list[float], float]:
    """Give the times of appends while a unit of so many bytes is committed, sorted, and its own."""
    times: list[float] = []
    begun, done = threading.Event(), threading.Event()
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        MessageStore.open(Path(folder), StoreSettings()) as store,
    ):

        def send() -> None:
            while not done.is_set():
                records = encode_records("others", 0, [b"x" * 100], None, 0)
                started = time.perf_counter()
                store.append([QueueAppend("others", 0, records)]).result()
                times.append(time.perf_counter() - started)
                begun.set()
                time.sleep(_PAUSE)

        keys = _staged(store, unit_bytes)
        sender = threading.Thread(target=send)
        sender.start()
        begun.wait()
        times.clear()
        started = time.perf_counter()
        store.commit_unit(keys).result()
        seconds = time.perf_counter() - started
        done.set()
        sender.join()
    return sorted(times), seconds


def _staged(store: MessageStore, unit_bytes: int) -> list[StageKey]:
    """Stage bytes that no file system can leave out, and have them on the disk before."""
    records = encode_records("results", 0, [os.urandom(_BODY)] * (_CHUNK // _BODY), None, 0)
    body = encode_sections([StagedSection("results", 0, len(records.starts), bytes(records.data))])
    keys = [StageKey("job", 1, 1, 0, part, 0) for part in range(_PARTS)]
    for number in range(max(unit_bytes // len(body), _PARTS)):
        store.stage(keys[number % _PARTS], number // _PARTS, body)
    os.sync()
    return keys
