"""The two front doors of the proof job, and the checkers that belong to each."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from headrace.client import Client
from headrace.topology import Topology
from tests.faults import proof_bolts, proof_pipeline
from tests.faults.proof_bolts import group_of_bolts
from tests.faults.proof_checks import BankChecker, Checker, SequenceChecker, SetChecker
from tests.faults.proof_feeder import Sent
from tests.faults.proof_pipeline import Names, proof
from tests.faults.proof_tally import TallyChecker

Front = Literal["streams", "bolts"]

_PROGRAMS = {"streams": proof_pipeline, "bolts": proof_bolts}


def job_of(names: Names, front: Front = "streams") -> Topology:
    """Make the job of a front door."""
    return proof(names) if front == "streams" else group_of_bolts(names)


def program_of(front: Front) -> Path:
    """Give the file that ``headrace run`` takes."""
    return Path(str(_PROGRAMS[front].__file__))


@dataclass
class Checkers:
    """All of a job, with a connection of their own."""

    client: Client
    set: SetChecker
    sequence: SequenceChecker
    bank: BankChecker
    #: Those of spouts and bolts.
    more: Mapping[str, Checker] = field(default_factory=dict)

    @classmethod
    def of(
        cls, client: Client, names: Names, front: Front = "streams", *, journal: bool = False
    ) -> Self:
        """Make the checkers of a job."""
        job = job_of(names, front)
        bank = BankChecker(client, names, job, journal=journal)
        more = {"tally": TallyChecker(client, names, job, bank)} if front == "bolts" else {}
        return cls(client, SetChecker(client, names), SequenceChecker(client, names), bank, more)

    def by_name(self) -> dict[str, Checker]:
        """Give each under its name."""
        return {"set": self.set, "sequence": self.sequence, "bank": self.bank, **self.more}

    def repeats(self) -> int:
        """Count results that are in their topic again: a sender that slept may leave some there."""
        return self.set.results.repeats + self.sequence.results.repeats

    def look(self) -> list[str]:
        """List what is wrong with what is new."""
        return _named({name: each.look() for name, each in self.by_name().items()})

    def finish(self, sent: Sent) -> list[str]:
        """List what is wrong when the job has caught up."""
        return _named({name: each.finish(sent) for name, each in self.by_name().items()})


def _named(found: Mapping[str, list[str]]) -> list[str]:
    return [f"{name}: {problem}" for name, problems in found.items() for problem in problems]


class Watch:
    """Looks again and again from a thread of its own, until something is wrong."""

    def __init__(self, checkers: Checkers) -> None:
        self._checkers = checkers
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proof-watch", daemon=True)
        self._failure: Any = None
        self.looks = 0
        #: What was found; nothing is looked at after that.
        self.problems: list[str] = []

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Stop looking, if it ever began; raises what a look met or found."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._failure is not None:
            raise self._failure
        assert self.problems == []

    def _run(self) -> None:
        try:
            while not self.problems and not self._over.wait(0.5):
                self.problems = self._checkers.look()
                self.looks += 1
        except Exception as error:
            self._failure = error
