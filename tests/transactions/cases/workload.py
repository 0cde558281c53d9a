"""What a workload is, and what all of them have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.transactions import TransactionTopologyBuilder

__all__ = ["BATCH", "FIRST", "Row", "State", "Workload"]

BATCH = 40
"""Messages in a batch, over all queues."""

FIRST = 1_000_000
"""Ids of the second source begin here."""

Row = Mapping[str, Any]
State = Mapping[str, Sequence[Any]]
"""States of the tasks of each stateful component, None for those that have none."""


@dataclass(frozen=True)
class Workload:
    """One workload."""

    name: str
    #: Topics that it reads, and the one that it writes ("" for none), without the suffix of the run.
    sources: Sequence[str]
    sink: str
    #: Makes the topology, from its configuration and the suffix of its name and topics.
    build: Callable[[Mapping[str, Any], str], TransactionTopologyBuilder]
    #: Makes the messages, by their numbers.
    message: Callable[[int], Row]
    #: Tells what is wrong with the states of all tasks, after the messages that were read.
    wrong_state: Callable[[Sequence[Row], State], Iterable[str]]
