"""Connectors that are put, patched and deleted all the time, and what must have become of them."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from tests.connect.chaos import marked
from tests.connect.chaos.workers import Workers

__all__ = ["Storm"]

#: Names in use at the same time.
_NAMES = 5


class Storm:
    """Somebody who changes connectors at random workers, and remembers what was acknowledged.

    A request whose answer is lost may have been carried out or not: both are right, and its name is
    left alone from then on, as it may even be carried out later.

    Parameters
    ----------
    workers
        Who is asked.
    marks
        Folder of the marks of its connectors.
    chance
        Decides what is done.
    """

    def __init__(self, workers: Workers, marks: Path, chance: random.Random) -> None:
        self._workers, self._marks, self._chance = workers, marks, chance
        self._names = [f"c{number}" for number in range(_NAMES)]
        self._made = _NAMES
        #: Numbers of the configs that each name may have at the end; None: there is none.
        self.expected: dict[str, set[str | None]] = {name: {None} for name in self._names}
        self._number = 0
        #: Requests by what became of them.
        self.answers: Counter[str] = Counter()

    def step(self) -> None:
        """Do one thing to one connector."""
        place = self._chance.randrange(_NAMES)
        name = self._names[place]
        (now,) = self.expected[name]
        self._number += 1
        number = str(self._number)
        kind = "put" if now is None else self._chance.choice(["put", "patch", "delete"])
        wanted = None if kind == "delete" else number
        if not self._ask(kind, name, number):
            self.expected[name] = {now, wanted}
            self._names[place] = f"c{self._made}"
            self.expected[self._names[place]] = {None}
            self._made += 1
        else:
            self.expected[name] = {wanted}

    def _ask(self, kind: str, name: str, number: str) -> bool:
        """Send a request; tell whether it was acknowledged."""
        ready = self._workers.ready()
        path = f"/connectors/{name}"
        if not ready:
            return False
        worker = self._chance.choice(ready)
        try:
            if kind == "delete":
                answer = self._workers.ask(worker, "DELETE", path)
            elif kind == "patch":
                answer = self._workers.ask(worker, "PATCH", f"{path}/config", json={"seed": number})
            else:
                config = self._config(name, number)
                answer = self._workers.ask(worker, "PUT", f"{path}/config", json=config)
        except httpx.HTTPError:
            self.answers["lost"] += 1
            return False
        if answer.status_code >= 500:
            self.answers["refused"] += 1
            return False
        assert answer.is_success, f"{kind} {name}: {answer.status_code} {answer.text}"
        self.answers[kind] += 1
        return True

    def _config(self, name: str, number: str) -> dict[str, str]:
        return {
            "connector.class": f"{marked.__name__}.MarkedDatagen",
            "topic": f"storm-{name}",
            "fields": '{"id": "sequence"}',
            "partitions": "2",
            "tasks.max": "2",
            "rate": "20",
            "seed": number,
            "marks": str(self._marks),
            "restart.max.attempts": "-1",
            "restart.pause.ms": "200",
            "restart.pause.max.ms": "1000",
        }

    def problems(self) -> list[str]:
        """Name what is not as it was acknowledged, on any worker."""
        found: list[str] = []
        for worker in self._workers.ready():
            with contextlib.suppress(KeyError):
                answer = self._workers.ask(worker, "GET", "/connectors?expand=info")
                told: dict[str, Any] = answer.json()
                found += [
                    f"{worker.name}: connector {name} has config {_number_in(told, name)}, and"
                    f" {sorted(map(str, may))} was acknowledged"
                    for name, may in self.expected.items()
                    if _number_in(told, name) not in may
                ]
        return found


def _number_in(told: dict[str, Any], name: str) -> str | None:
    number: str | None = told[name]["info"]["config"]["seed"] if name in told else None
    return number
