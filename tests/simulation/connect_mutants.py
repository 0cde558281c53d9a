"""Builds of Connect that are broken on purpose, which the simulation must find."""

from __future__ import annotations

from headrace.connect.hosts.source_unit import Ahead, GivenBatch
from headrace.connect.log import UnitStory
from tests.simulation.mutants import Mutant

__all__ = ["CONNECT_MUTANTS"]


def _something_new(self: Ahead, batch: int, most_records: int, most_bytes: int) -> GivenBatch:
    """Give each attempt at a batch what nobody has had: what the others had counts as given."""
    with self._changed:
        self._given[batch] = self._take(most_records, most_bytes)
        return self._given[batch]


#: Broken builds of Connect.
CONNECT_MUTANTS = (
    Mutant(
        "positions of an attempt that was rolled back count",
        "comes, and",
        90,
        changes=((Ahead, "give", _something_new),),
    ),
    Mutant(
        "a state that was held up counts behind its successor",
        "not all is committed",
        226,
        changes=((UnitStory, "is_behind", lambda *_, **__: False),),
    ),
)
