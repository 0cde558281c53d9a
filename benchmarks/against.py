"""Measures another commit beside this one, in turns: what a busy machine does, it does to both."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measures import Benchmark
from benchmarks.targets import TARGETS

__all__ = ["Comparison", "compare"]

_ROOT = Path(__file__).parents[1]
#: Which of the two has its turn: whatever drifts meanwhile comes to both alike.
_TURNS = ("before", "now", "now", "before")
#: A median that is worse by more than this is one that somebody has to look at.
_WORSE = 0.05


@dataclass(slots=True)
class Comparison:
    """What both commits gave, by measure.

    Examples
    --------
    >>> found = Comparison()
    >>> found.add("before", {"measure": "send_async", "unit": "messages/s", "runs": [100, 90, 95]})
    >>> found.add("now", {"measure": "send_async", "unit": "messages/s", "runs": [80, 85, 90]})
    >>> found.worse()
    ['send_async']
    """

    _units: dict[str, str] = field(default_factory=dict)
    _runs: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    def add(self, side: str, line: Mapping[str, object]) -> None:
        """Take one line of results."""
        name, runs = str(line["measure"]), line["runs"]
        assert isinstance(runs, list)
        self._units[name] = str(line["unit"])
        self._runs[name][side] += runs

    def table(self) -> str:
        """Write a Markdown table: medians of both, and by how much they differ."""
        rows = ["| measure | before | now | change |", "| --- | ---: | ---: | ---: |"]
        for name in self._of_both():
            before, now = self._medians(name)
            mark = " (worse)" if self._loss(name) > _WORSE else ""
            unit = self._units[name]
            change = f"{now / before - 1:+.1%}{mark}"
            rows.append(f"| `{name}` | {before:,.4g} {unit} | {now:,.4g} {unit} | {change} |")
        return "\n".join(rows) + "\n"

    def worse(self) -> list[str]:
        """Name the measures whose median is worse by more than a twentieth."""
        return [name for name in self._of_both() if self._loss(name) > _WORSE]

    def _of_both(self) -> list[str]:
        return [name for name, runs in self._runs.items() if runs["before"] and runs["now"]]

    def _medians(self, name: str) -> tuple[float, float]:
        runs = self._runs[name]
        return statistics.median(runs["before"]), statistics.median(runs["now"])

    def _loss(self, name: str) -> float:
        before, now = self._medians(name)
        target = TARGETS.get(name)
        is_speed = self._units[name].endswith("/s") if target is None else target.kind == "at least"
        return (before - now if is_speed else now - before) / before


def compare(commit: str, benchmarks: Sequence[Benchmark], *, more: Sequence[str]) -> Comparison:
    """Run benchmarks in a checkout of another commit and in this one, in turns.

    Parameters
    ----------
    commit
        As git names it.
    more
        Options of each run.

    Raises
    ------
    subprocess.CalledProcessError
        There is no such commit, or a benchmark fails in this checkout.
    """
    found = Comparison()
    with _checkout(commit) as other, tempfile.TemporaryDirectory() as results:
        places = {"before": other, "now": _ROOT}
        for one in benchmarks:
            for number, side in enumerate(_TURNS):
                folder = Path(results, f"{min(one.units)}-{number}".replace("/", "-"))
                options = [min(one.units), *more, "--results", str(folder)]
                _run(places[side], options, check=side == "now")
                for file in folder.glob("*.jsonl"):
                    for text in file.read_text().splitlines():
                        found.add(side, json.loads(text))
            sys.stderr.write(found.table())
    return found


@contextmanager
def _checkout(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "before")
        git = ["git", "-C", str(_ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=False)


def _run(tree: Path, arguments: Sequence[str], *, check: bool) -> None:
    """Run benchmarks of a checkout; unless checked, one that it does not have gives nothing."""
    path = os.pathsep.join((str(tree / "src"), str(tree)))
    command = [sys.executable, "-m", "benchmarks", *arguments]
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, check=check)
