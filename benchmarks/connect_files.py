"""Lines of a file to a topic and back to a file, exactly once, by a worker of Connect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.clusters import embedded
from benchmarks.connect_worker import ConnectRest, ConnectWorker, rate_of, running_connect, stored
from benchmarks.lines import random_lines
from benchmarks.measures import Plan, benchmark
from benchmarks.sizes import QUEUES, Sizes
from headrace.client import Admin, Client, PullConsumer

__all__ = [
    "assert_all_once",
    "assert_numbers",
    "bodies",
    "connect_files",
    "numbered_lines",
    "write_lines",
    "written",
]

#: Digits of the number that each line begins with.
_DIGITS = 9


@benchmark({"connect_file_source": "rows/s", "connect_file_sink": "rows/s"}, turns="files")
def connect_files(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Move lines by ``file-source``, then by ``file-sink``; one task each."""
    sizes = plan.sizes
    with embedded() as (address, folder), Client(address) as client:
        lines = folder / "lines.txt"
        write_lines(lines, sizes)
        with running_connect(address, folder / "worker", sizes.patience) as worker:
            for run in range(plan.runs):
                topic = f"lines-{run}"
                Admin(client).create_topic(topic, queues=QUEUES)
                yield {
                    "connect_file_source": _source_rate(worker, client, lines, topic, sizes),
                    "connect_file_sink": _sink_rate(worker, topic, folder / topic, lines, sizes),
                }


def numbered_lines(sizes: Sizes) -> Iterator[pa.BinaryArray]:
    """Make numbered lines of some 95 bytes."""
    rows, words = sizes.connect_lines, sizes.few_words
    first = 0
    halves = (random_lines(rows, words, seed=seed) for seed in (42, 43))
    for left, right in zip(*halves, strict=True):
        numbers = pa.array(np.arange(first, first + len(left))).cast(pa.string())
        padded = pc.utf8_lpad(numbers, _DIGITS, "0").cast(pa.binary())
        yield pc.binary_join_element_wise(padded, left, right, b" ")
        first += len(left)


def write_lines(path: Path, sizes: Sizes) -> None:
    """Write numbered lines to a file."""
    with path.open("wb") as file:
        for column in numbered_lines(sizes):
            file.write(b"\n".join(column.to_pylist()) + b"\n")


def assert_all_once(lines: Iterable[bytes], count: int) -> None:
    """Make sure that each of so many lines is there, and none of them twice."""
    assert_numbers((int(line[:_DIGITS]) for line in lines), count, "lines")


def assert_numbers(numbers: Iterable[int], count: int, what: str) -> None:
    """Make sure that each number below a count is there, and none of them twice."""
    times = np.bincount(np.fromiter(numbers, np.int64), minlength=count)
    assert len(times) == count, f"there are {what} up to number {len(times) - 1}"
    lost, doubled = int((times == 0).sum()), int((times > 1).sum())
    assert not lost, f"{lost} of {count} {what} are lost"
    assert not doubled, f"{doubled} of {count} {what} came more than once"


def _source_rate(
    worker: ConnectWorker, client: Client, lines: Path, topic: str, sizes: Sizes
) -> float:
    config = {"connector.class": "file-source", "file": str(lines), "topic": topic}
    with worker.connector(f"from-file-{topic}", config):
        rate = rate_of(lambda: stored(client, topic), sizes.connect_lines, worker)
    assert_all_once(bodies(client, topic), sizes.connect_lines)
    return rate


def _sink_rate(worker: ConnectWorker, topic: str, copy: Path, lines: Path, sizes: Sizes) -> float:
    config = {"connector.class": "file-sink", "file": str(copy), "topics": topic}
    with worker.connector(f"to-file-{topic}", config):
        return written(copy, lines, worker, sizes)


def written(copy: Path, lines: Path, worker: ConnectRest, sizes: Sizes) -> float:
    """Watch a sink write lines to a file, which goes then; lines per second."""
    size = lines.stat().st_size
    rate = rate_of(lambda: copy.stat().st_size if copy.exists() else 0, size, worker)
    with copy.open("rb") as file:
        assert_all_once(file, sizes.connect_lines)
    copy.unlink()
    return rate * sizes.connect_lines / size


def bodies(client: Client, topic: str) -> Iterator[bytes]:
    """Read all messages of a topic."""
    consumer = PullConsumer(client)
    for queue, end in consumer.end_offsets(client.queues(topic)).items():
        for block in consumer.blocks(queue, 0, end):
            yield from block.columns().body.to_pylist()
