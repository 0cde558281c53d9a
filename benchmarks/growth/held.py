"""What takes how long in a store that holds so much already: the same work at every size."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path

import psutil

from headrace.protocol.records import encode_records
from headrace.store import MessageStore, QueueAppend, StoreSettings
from headrace.store.keys.finding import KeyQuery

__all__ = ["append_and_die", "held", "memory_of"]

_MIB = 1024 * 1024
_BODY = 1024
_BATCH = 200
_QUEUES = 8
_TOPIC = "grown"
_SAMPLES = 300
_CRASH = 17
_TAIL = 50 * _MIB


def held(folder: Path, size: int) -> dict[str, float]:
    """Fill a store with so many bytes of bodies, and measure what is done with it then."""
    found: dict[str, float] = {}
    numbers = count()
    with _opened(folder) as store:
        tail = min(size, _TAIL)
        _append(store, size - tail, numbers)
        seconds = _seconds(lambda: _append(store, tail, numbers))
        found["append the last 50 MiB"] = tail / 1e6 / seconds
    found["memory after the start"] = float(_in_another_process("--memory", folder)) / _MIB
    with _opened(folder) as store:
        found["read 32 KiB anywhere"] = 1e3 * _median(lambda: _read_anywhere(store))
        found["find an offset by time"] = 1e3 * _median(lambda: _find_by_time(store))
        # The first search makes the index of what no search has asked for.
        store.keys.keep_up()
        most = next(numbers)
        found["find a message by key"] = 1e3 * _median(lambda: _find_by_key(store, most))
    _in_another_process("--die", folder, _CRASH)
    found["start after a kill, 50 MiB behind"] = _seconds(lambda: _opened(folder).close())
    return found


def _opened(folder: Path) -> MessageStore:
    """Open a store that nothing expires from."""
    settings = StoreSettings(flush="async", retention=timedelta(days=3650), disk_watermark=1.0)
    return MessageStore.open(folder, settings)


def memory_of(folder: Path) -> int:
    """Open a store; the bytes of memory that this takes."""
    _opened(folder.with_name("empty")).close()
    before = psutil.Process().memory_info().rss
    with _opened(folder):
        return psutil.Process().memory_info().rss - before


def append_and_die(folder: Path) -> None:
    """Append 50 MiB and end this process without a word."""
    _append(_opened(folder), _TAIL, count())
    os._exit(_CRASH)


def _append(store: MessageStore, size: int, numbers: Iterator[int]) -> None:
    bodies = [os.urandom(_BODY)] * _BATCH
    futures = []
    for batch in range(size // (_BODY * _BATCH)):
        queue = batch % _QUEUES
        keys = [b"KEYS\x01key-%d\x02" % next(numbers) for _ in bodies]
        records = encode_records(_TOPIC, queue, bodies, keys, 0)
        futures.append(store.append([QueueAppend(_TOPIC, queue, records)]))
        if len(futures) == 64:
            for future in futures:
                future.result()
            futures = []
    for future in futures:
        future.result()


def _read_anywhere(store: MessageStore) -> None:
    queue = random.randrange(_QUEUES)
    offset = random.randrange(store.bounds(_TOPIC, queue).max_offset - 64)
    assert store.read(_TOPIC, queue, offset, 32, 32 * 1024).count


def _find_by_time(store: MessageStore) -> None:
    queue = random.randrange(_QUEUES)
    bounds = store.bounds(_TOPIC, queue)
    first = store.store_time(_TOPIC, queue, bounds.min_offset)
    last = store.store_time(_TOPIC, queue, bounds.max_offset - 1)
    store.offset_at(_TOPIC, queue, random.randint(first, last))


def _find_by_key(store: MessageStore, most: int) -> None:
    word = f"key-{random.randrange(most)}"
    assert store.keys.find(KeyQuery(topic=_TOPIC, word=word)), word


def _in_another_process(option: str, folder: Path, ends_with: int = 0) -> str:
    command = [sys.executable, "-m", "benchmarks.growth", option, str(folder)]
    done = subprocess.run(command, timeout=600, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == ends_with, f"the process ended with {done.returncode}"
    return done.stdout


def _seconds(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _median(work: Callable[[], None]) -> float:
    return statistics.median(_seconds(work) for _ in range(_SAMPLES))
