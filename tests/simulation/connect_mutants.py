"""Builds of Connect that are broken on purpose, which the simulation must find."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.connect.data import positions
from headrace.connect.data.positions import task_job
from headrace.connect.hosts.ahead import Ahead, Given
from headrace.connect.log import UnitStory
from headrace.topology.names import commit_topic
from tests.simulation.mutants import Mutant

__all__ = ["CONNECT_MUTANTS"]


def _something_new(self: Ahead, batch: int, most_records: int, most_bytes: int) -> Given:
    """Give each attempt at a batch what nobody has had: what the others had counts as given."""
    with self._changed:
        self._given[batch] = self._take(most_records, most_bytes)
        return self._given[batch]


def _up_to_a_gap(connector: str, topics: Iterable[str]) -> list[str]:
    """Name the jobs of tasks up to the first one that has no commit topic yet."""
    known, found = set(topics), list[str]()
    while commit_topic(job := task_job(connector, len(found))) in known:
        found.append(job)
    return found


#: Broken builds of Connect.
CONNECT_MUTANTS = (
    Mutant(
        "positions of an attempt that was rolled back count",
        "comes, and",
        29,
        changes=((Ahead, "give", _something_new),),
    ),
    Mutant(
        "positions of a task are looked for only where all tasks before it have some",
        "is committed to",
        200,
        changes=((positions, "_jobs", _up_to_a_gap),),
    ),
    Mutant(
        "a state that was held up counts behind its successor",
        "not all is committed",
        26,
        changes=((UnitStory, "is_behind", lambda *_, **__: False),),
    ),
)
