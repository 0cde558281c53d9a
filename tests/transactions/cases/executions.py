"""Runs the cases of a file, each with all of its workloads and variants."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headrace.broker import spawn_broker
from tests.transactions.cases.broken import Control
from tests.transactions.cases.case import Case, read_case
from tests.transactions.cases.checks import INVARIANTS
from tests.transactions.cases.restated import ASSERTS
from tests.transactions.cases.rig import On, Rig, rig
from tests.transactions.cases.scenarios import scenario_of

_SOUND = Control("nothing")

__all__ = ["problems_of", "run_on_local", "run_on_spark", "runs_of"]


def run_on_local(raw: dict[str, Any]) -> None:
    """Run a case without Spark, on an embedded broker of its own."""
    _run(read_case(raw), "local")


def run_on_spark(raw: dict[str, Any]) -> None:
    """Run a case by ``headrace run``, on an embedded broker of its own."""
    _run(read_case(raw), "spark")


def runs_of(case: Case) -> list[tuple[str, str]]:
    """Give every workload with every variant."""
    return [(workload, variant) for variant in case.variants for workload in case.workloads]


def _run(case: Case, on: On) -> None:
    problems: list[str] = []
    for workload, variant in runs_of(case):
        found = problems_of(case, workload, variant, on)
        problems += [f"{workload}, {variant or 'as it is'}: {problem}" for problem in found]
    assert not problems, "\n".join(problems)


def problems_of(
    case: Case, workload: str, variant: str, on: On = "local", control: Control = _SOUND
) -> list[str]:
    """Run one workload with one variant of a case; give everything that is wrong."""
    with tempfile.TemporaryDirectory(prefix="headrace-case-") as folder:
        broker = spawn_broker(
            Path(folder) / "broker", environment={"HEADRACE_UNSAFE": control.unsafe}
        )
        flaw = "noise" if "random" in variant else control.flaw
        try:
            with rig(
                workload,
                broker.address,
                Path(folder),
                on=on,
                broken=control.broken,
                flaw=flaw,
            ) as found:
                return [*scenario_of(case)(case, variant, found), *_wrong_at_the_end(case, found)]
        finally:
            broker.kill()


def _wrong_at_the_end(case: Case, rig: Rig) -> Iterator[str]:
    evidence = rig.evidence()
    asserts: Sequence[str] = case.asserts
    for name in asserts:
        if name in INVARIANTS:
            yield from INVARIANTS[name](evidence)
        elif name not in ASSERTS and name != "I8":
            yield f"nothing here checks {name!r}"
