"""What a worker takes that runs a hundred connectors for long: no more than at first."""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median

import pytest

from benchmarks.clusters import embedded
from benchmarks.connect_many import await_rows, made_up_rows
from benchmarks.connect_worker import running_connect
from benchmarks.sizes import FULL
from benchmarks.workers import memory_by_program
from headrace.client import Client

MINUTES = float(os.environ.get("MINUTES", "10"))
#: Looks at the memory in all, of which the first third is a warm-up.
LOOKS = 30
#: What is allowed to be added: chance has its part of it.
GROWTH = 1.03


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize("options", [(), ("--share-hosts",)], ids=["own-hosts", "shared-hosts"])
def test_memory_of_a_hundred_connectors_does_not_grow(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    topics = [f"made-{number}" for number in range(FULL.connectors)]
    looks: list[dict[str, float]] = []
    with (
        embedded() as (address, _),
        Client(address) as client,
        running_connect(address, tmp_path / "worker", FULL.patience, *options) as worker,
    ):
        for topic in topics:
            worker.put(topic, made_up_rows(topic, 0.1))
        worker.await_running(len(topics))
        await_rows(client, topics, 2, worker.patience)
        for look in range(LOOKS):
            time.sleep(60 * MINUTES / LOOKS)
            looks.append(memory_by_program(worker.pid))
            taken = {name: round(size) for name, size in sorted(looks[-1].items())}
            print(f"{look + 1}: {sum(looks[-1].values()):,.0f} MB, {taken}")
        worker.fail_if_failed()
        await_rows(client, topics, 3, worker.patience)
    third = LOOKS // 3
    before, after = (
        median(sum(look.values()) for look in part)
        for part in (looks[third : 2 * third], looks[2 * third :])
    )
    assert after < before * GROWTH, (looks[third], looks[-1])
