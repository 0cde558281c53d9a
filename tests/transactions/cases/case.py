"""One case of the file, as the scenarios ask for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tests.transactions.cases.workload import BATCH

__all__ = ["Case", "On", "controlled", "read_case"]

On = Literal["local", "spark", "one core", "cluster"]
"""What the drivers run on: no Spark, or Spark in one Java process or with executors of their own."""


@dataclass(frozen=True)
class Case:
    """What happens to which batch, and what must hold then."""

    id: str
    #: F1 to F12; "" where the fault needs none.
    failpoint: str
    #: "kill", "raise", ...: what is done, and to what.
    kind: str
    target: str
    fault: Mapping[str, Any]
    #: Number of the batch that it hits.
    batch: int
    #: How many batches of messages there are.
    batches: int
    variants: Sequence[str]
    workloads: Sequence[str]
    mode: str
    asserts: Sequence[str]
    levels: Sequence[str]
    setup: Mapping[str, Any]

    @property
    def middle(self) -> int:
        """The id of a message in the middle of the batch."""
        return (self.batch - 1) * BATCH + BATCH // 2


def read_case(raw: Mapping[str, Any]) -> Case:
    """Read a case as the file has it."""
    fault, setup = raw["fault"], raw["setup"]
    told = re.search(r"batch(?:es)? (\d+)", str(fault.get("when", "")))
    return Case(
        id=raw["id"],
        failpoint=raw["failpoint"] or "",
        kind=fault["kind"],
        target=fault["target"],
        fault=fault,
        batch=int(told[1]) if told else 1,
        batches=setup["batches"],
        variants=fault.get("variants") or [""],
        workloads=setup["workload"],
        mode=setup["mode"],
        asserts=raw["asserts"],
        levels=raw["levels"],
        setup=setup,
    )


def controlled(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Give each broken build of a file with each case that must notice it."""
    return [
        (control["id"], name)
        for control in content["negative_controls"]
        for name in control["must_fail"]
    ]
