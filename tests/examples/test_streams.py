"""The examples of streams: each gives what its text says, and runs in one command."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from examples.streams.running import Row, run_here

ROOT = Path(__file__).parents[2]
EXPECTED = {
    "word_count": {
        Row("counts", "hello", 2),
        Row("counts", "world", 1),
        Row("counts", "world", 2),
    },
    "order_count": {
        Row("order-counts", "ann", 1),
        Row("order-counts", "bob", 1),
        Row("order-counts", "ann", 2),
        Row("spent", "ann", 30),
        Row("spent", "bob", 5),
        Row("spent", "ann", 42),
    },
    "sliding_count": {
        Row("counts", "home", 1, (10, 15)),
        Row("counts", "home", 2, (12, 17)),
        Row("counts", "home", 2, (14, 19)),
        Row("counts", "home", 1, (16, 21)),
    },
    "window_aggregates": {
        Row("weather", "roof", (3, 15, 5.0, 3, 8), (0, 10)),
        Row("weather", "cellar", (1, 11, 11.0, 11, 11), (0, 10)),
        Row("weather", "roof", (2, 11, 5.5, 5, 6), (10, 20)),
        Row("late", "cellar", 12),
    },
    "sessions": {Row("visits", "ann", 4, (0, 100)), Row("visits", "bob", 1, (12, 42))},
    "joins": {
        Row("paid", 2, "jam paid by card"),
        Row("orders-seen", 1, "tea not paid"),
        Row("orders-seen", 2, "jam paid by card"),
    },
    "join_within": {
        Row("first-hour", 1, "tea: van"),
        Row("first-hour", 1, "tea: bike"),
        Row("first-hour", 2, "jam: late"),
    },
}


@pytest.mark.parametrize("name", EXPECTED)
def test_example_gives_what_it_says(name: str) -> None:
    module = importlib.import_module(f"examples.streams.{name}")
    rows = [shown(row) for row in run_here(module.topology, module.RECORDS)]
    assert set(rows) == EXPECTED[name]
    assert len(rows) == len(EXPECTED[name])


def shown(row: Row) -> Row:
    """Show of a reading its temperature, of a row what stands in it."""
    return replace(row, value=plain(row.value))


def plain(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return value["degrees"] if "degrees" in value else tuple(map(plain, value.values()))


def test_an_example_runs_in_one_command() -> None:
    command = [sys.executable, "-m", "examples.streams.word_count"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stdout.startswith("topology example-word-count\n")
    assert "counts: hello = 2\n" in ran.stdout


def test_the_page_names_every_example() -> None:
    page = (ROOT / "examples" / "README.md").read_text()
    programs = [path.stem for path in (ROOT / "examples" / "streams").glob("[!_]*.py")]
    assert [n for n in programs if n != "running" and f"(streams/{n}.py)" not in page] == []
