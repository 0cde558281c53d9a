"""Seeds of jobs whose messages are late, lost and doubled, whose processes, disks and brokers fail.

``python -m tests.simulation --seed N`` runs one again and tells its story; ``make soak`` runs more.
"""

from __future__ import annotations

import asyncio
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

import headrace
from headrace.client.blocking import loop_thread
from headrace.settings import Executor
from tests.simulation.mutants import (
    JOURNAL_MUTANTS,
    MUTANTS,
    REPLICA_MUTANTS,
    RESIDENT_MUTANTS,
    Mutant,
    find,
)
from tests.simulation.simulation import simulate
from tests.simulation.swarm import EXTRAS, has

SOURCES = Path(headrace.__file__).parent
#: A parameter that is bound, when its function is defined, to what a world has of its own.
REAL_DEFAULT = re.compile(r"\] = (time\.(monotonic|time|sleep)|\w*\.random)\b(?!\()")

#: A busy machine needs minutes for what takes seconds.
pytestmark = [pytest.mark.timeout(300), pytest.mark.spread]

#: Seeds on the own broker and on stock ones: of `make test`, of all, and of a soak.
SEEDS = {True: 100, False: 60}
ALL_SEEDS = {True: 140, False: 80}
#: Of those, seeds whose tasks are resident.
RESIDENT_SEEDS = {True: 40, False: 20}
SOAK_SEEDS = {True: 16_000, False: 12_000}
SHARE = 20


def shares(first: dict[bool, int], last: dict[bool, int]) -> list[tuple[bool, int]]:
    return [(own, seed) for own in (True, False) for seed in range(first[own], last[own], SHARE)]


def run_seeds(
    first: int, last: int, folder: Path, *, embedded: bool, executor: Executor = "micro-batch"
) -> None:
    struck = batches = 0
    for seed in range(first, last):
        story = simulate(seed, folder, embedded=embedded, executor=executor)
        assert story.wrong is None, str(story)
        struck += story.strikes
        batches += story.batches
    # A simulation in which nothing happens proves nothing.
    assert struck > (last - first) / 2
    assert batches > 2 * (last - first)


def test_no_default_is_bound_to_the_real_clock() -> None:
    """Such a one would be the same in every world, and make a seed's story depend on the load."""
    found = [
        f"{path.relative_to(SOURCES)}: {match.group()}"
        for path in sorted(SOURCES.rglob("*.py"))
        for match in REAL_DEFAULT.finditer(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(("own", "first"), shares({True: 0, False: 0}, SEEDS))
def test_every_record_counts_once(first: int, tmp_path: Path, *, own: bool) -> None:
    run_seeds(first, first + SHARE, tmp_path / "job", embedded=own)


@pytest.mark.slow
@pytest.mark.parametrize(("own", "first"), shares(SEEDS, ALL_SEEDS))
def test_every_record_counts_once_again(first: int, tmp_path: Path, *, own: bool) -> None:
    run_seeds(first, first + SHARE, tmp_path / "job", embedded=own)


@pytest.mark.parametrize(("own", "first"), shares({True: 0, False: 0}, RESIDENT_SEEDS))
def test_every_record_counts_once_by_resident_tasks(
    first: int, tmp_path: Path, *, own: bool
) -> None:
    run_seeds(first, first + SHARE, tmp_path / "job", embedded=own, executor="resident")


@pytest.mark.parametrize("mutant", RESIDENT_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_build_of_resident_tasks_is_found(mutant: Mutant, tmp_path: Path) -> None:
    run = partial(simulate, folder=tmp_path / "job", mutant=mutant, executor="resident")
    find(mutant, run)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_build_is_found(mutant: Mutant, tmp_path: Path) -> None:
    find(mutant, partial(simulate, folder=tmp_path / "job", mutant=mutant))


@pytest.mark.parametrize("mutant", REPLICA_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_build_is_found_by_a_fail_over(mutant: Mutant, tmp_path: Path) -> None:
    find(mutant, partial(simulate, folder=tmp_path / "job", mutant=mutant))


@pytest.mark.parametrize("mutant", JOURNAL_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_build_is_found_on_rocketmq(mutant: Mutant, tmp_path: Path) -> None:
    run = partial(simulate, folder=tmp_path / "job", mutant=mutant, embedded=False)
    find(mutant, run)


def test_a_seed_has_one_story(tmp_path: Path) -> None:
    stories = [simulate(seed, tmp_path / "job").log for seed in (5, 6, 28, 5, 6, 28)]
    assert stories[:3] == stories[3:]
    again = [simulate(5, tmp_path / "job", embedded=False).log for _ in range(2)]
    assert again[0] == again[1]


@pytest.mark.slow
def test_a_seed_has_one_story_in_every_process() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--rocketmq", "--seed", "41"]
    stories = {
        subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2", "2")
    }
    assert len(stories) == 1


def test_other_threads_of_the_process_live_in_their_own_time(tmp_path: Path) -> None:
    alone = [simulate(5, tmp_path / "job", embedded=kind).log for kind in (True, False)]
    over, began = threading.Event(), time.monotonic()
    turns: list[float] = []
    loops: list[object] = []

    def ask() -> None:
        while not over.wait(0.0001):
            if (loop := loop_thread()) not in loops:
                loops.append(loop)

    def live() -> None:
        lock, letters = threading.Condition(), queue.Queue[int]()
        while not over.wait(0.001):
            time.sleep(0.001)
            with lock:
                lock.wait(0.001)
            letters.put(1)
            assert letters.get(timeout=1) == 1
            asyncio.run(asyncio.sleep(0.001))
            turns.append(time.monotonic())

    threads = [threading.Thread(target=live), threading.Thread(target=ask)]
    for thread in threads:
        thread.start()
    try:
        beside = [simulate(5, tmp_path / "job", embedded=kind).log for kind in (True, False)]
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert beside == alone
    assert len(loops) == 1
    assert turns == sorted(turns)
    assert began < turns[0]


def test_make_test_has_enough_seeds_of_each_extra() -> None:
    counts = {
        extra: sum(has(seed, extra) for last in SEEDS.values() for seed in range(last))
        for extra in EXTRAS
    }
    assert min(counts.values()) >= 10, counts


def test_a_story_names_its_seed(tmp_path: Path) -> None:
    command = "python -m tests.simulation --seed 7"
    assert str(simulate(7, tmp_path / "job")).endswith(command)
    assert str(simulate(7, tmp_path / "job", embedded=False)).endswith(f"{command} --rocketmq")


@pytest.mark.soak
@pytest.mark.parametrize("own", [True, False])
def test_every_record_counts_once_over_more_seeds(own: bool, tmp_path: Path) -> None:
    strikes: Counter[int] = Counter()
    for seed in range(ALL_SEEDS[own], SOAK_SEEDS[own]):
        story = simulate(seed, tmp_path / "job", embedded=own)
        assert story.wrong is None, str(story)
        strikes[story.strikes] += 1
    print(f"{sum(strikes.values())} seeds by strikes: {dict(sorted(strikes.items()))}")
