"""Seeds of Connect: hosts, engines and workers that are killed and stopped, connectors changed.

``python -m tests.simulation --connect --seed N`` runs one again and tells its story.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.simulation.connect import simulate_connect
from tests.simulation.connect_mutants import CONNECT_MUTANTS
from tests.simulation.mutants import Mutant, find

#: A busy machine needs minutes for what takes seconds.
pytestmark = [pytest.mark.timeout(300), pytest.mark.spread]

#: Seeds of `make test`, of all, and of a soak.
SEEDS, ALL_SEEDS, SOAK_SEEDS = 20, 40, 4000
SHARE = 10


def run_seeds(first: int, last: int, folder: Path) -> None:
    struck = commits = 0
    for seed in range(first, last):
        story = simulate_connect(seed, folder)
        assert story.wrong is None, str(story)
        struck += story.strikes
        commits += story.batches
    # A simulation in which nothing happens proves nothing.
    assert struck > (last - first) / 2
    assert commits > 2 * (last - first)


@pytest.mark.parametrize("first", range(0, SEEDS, SHARE))
def test_every_line_counts_once(first: int, tmp_path: Path) -> None:
    run_seeds(first, first + SHARE, tmp_path / "job")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(SEEDS, ALL_SEEDS, SHARE))
def test_every_line_counts_once_again(first: int, tmp_path: Path) -> None:
    run_seeds(first, first + SHARE, tmp_path / "job")


@pytest.mark.parametrize("mutant", CONNECT_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_build_of_connect_is_found(mutant: Mutant, tmp_path: Path) -> None:
    run = partial(simulate_connect, folder=tmp_path / "job", mutant=mutant)
    find(mutant, run)


@pytest.mark.parametrize("seed", [13, pytest.param(1, marks=pytest.mark.slow)])
def test_a_seed_of_connect_has_one_story(seed: int, tmp_path: Path) -> None:
    first, second = (simulate_connect(seed, tmp_path / "job").log for _ in range(2))
    assert first == second


def test_a_story_of_connect_names_its_seed(tmp_path: Path) -> None:
    again = "python -m tests.simulation --seed 3 --connect"
    assert str(simulate_connect(3, tmp_path / "job")).endswith(again)


@pytest.mark.soak
def test_every_line_counts_once_over_more_seeds(tmp_path: Path) -> None:
    run_seeds(ALL_SEEDS, SOAK_SEEDS, tmp_path / "job")
