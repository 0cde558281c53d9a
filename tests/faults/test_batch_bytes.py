"""How much a batch reads where brokers do not tell how large messages are."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, strategies as st

from headrace import StreamBuilder, serdes
from headrace.runtime.commit.journal.transactions import SizeEstimate, cut_to_bytes
from tests.faults.local_driver import LocalDriver
from tests.spark.pipelines import Rig

KIB = 1024


def driver(rig: Rig, lines: str, sizes: str, most: int) -> LocalDriver:
    builder = StreamBuilder(f"sizes-{lines}")
    builder.source(lines, serdes.string).map_values(len).sink(sizes, serdes.json)
    settings: dict[str, Any] = {"max_bytes_per_batch": most, "partitions": 2}
    return LocalDriver(
        rig.namesrv, rig.folder, 100_000, job=builder.build(), journal=True, **settings
    )


def batches(rig: Rig, lines: str, sizes: str, most: int) -> list[int]:
    """Run a job to its end; give the messages of each batch."""
    counts, before = [], 0
    with driver(rig, lines, sizes, most) as running:
        while running.catch_up(1):
            read = sum(running.record.offsets.values())
            counts.append(read - before)
            before = read
    return counts


def test_batch_reads_about_as_many_bytes_as_it_may(rig: Rig) -> None:
    lines, sizes = rig.topic(queues=2), rig.topic(queues=1)
    rig.send(lines, ["x" * 10 * KIB] * 400)
    found = batches(rig, lines, sizes, 1000 * KIB)
    assert sum(found) == 400
    # A message has some bytes besides its body.
    assert all(90 <= count <= 100 for count in found[:-1]), found
    assert len(rig.read(sizes)) == 400


def test_large_messages_come_one_by_one(rig: Rig) -> None:
    lines, sizes = rig.topic(queues=1), rig.topic(queues=1)
    rig.send(lines, ["x" * KIB] * 10 + ["x" * 500 * KIB] * 3 + ["x" * KIB] * 10)
    found = batches(rig, lines, sizes, 300 * KIB)
    assert sum(found) == 23
    assert max(found) <= 11
    assert len(found) >= 4
    assert len(rig.read(sizes)) == 23


estimates = st.builds(
    lambda head, rest, mean: SizeEstimate(len(head) + rest, np.array(head, np.int64), mean),
    st.lists(st.integers(1, 1000), min_size=1, max_size=5),
    st.integers(0, 5000),
    st.floats(1, 1000),
)


@given(st.lists(estimates, min_size=1, max_size=3), st.integers(1, 1_000_000))
def test_cut_keeps_to_the_limit_and_takes_something_of_each_queue(
    found: list[SizeEstimate], limit: int
) -> None:
    sizes = {f"t@b@{number}": each for number, each in enumerate(found)}
    cut, total = cut_to_bytes(sizes, limit), sum(each.total for each in found)
    for name, each in sizes.items():
        assert 1 <= cut[name] <= each.count
        part = SizeEstimate(cut[name], each.head[: cut[name]], each.mean).total
        # One message is taken however large it is.
        assert cut[name] == 1 or part <= limit * each.total / total * 1.001 or total <= limit


def test_nothing_is_cut_below_the_limit() -> None:
    sizes = {"t@b@0": SizeEstimate(70, np.array([5, 5]), 3.0)}
    assert cut_to_bytes(sizes, 10**9) == {"t@b@0": 70}
