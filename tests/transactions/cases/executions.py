"""Runs the cases of a file, each with all of its workloads and variants."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headrace.broker import spawn_broker
from headrace.client import Client
from tests.clusters import Cluster
from tests.transactions.cases.broken import Control
from tests.transactions.cases.case import Case, read_case
from tests.transactions.cases.checks import INVARIANTS
from tests.transactions.cases.restated import ASSERTS
from tests.transactions.cases.rig import On, Rig, rig
from tests.transactions.cases.scenarios import scenario_of

_SOUND = Control("nothing")
_numbers = itertools.count(1)

__all__ = ["problems_of", "problems_on_rocketmq", "run_on_local", "run_on_spark", "runs_of"]


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
        path = Path(folder)
        broker = spawn_broker(path / "broker", environment={"HEADRACE_UNSAFE": control.unsafe})
        try:
            flaws = {"broken": control.broken, "flaw": control.flaw}
            with rig(workload, broker.address, path, on=on, **flaws) as found:
                return problems_on(found, case, variant)
        finally:
            broker.kill()


def problems_on_rocketmq(
    case: Case, workload: str, variant: str, cluster: Cluster, folder: Path, on: On = "local"
) -> list[str]:
    """Do the same on a stock RocketMQ that others use, too."""
    with Client(cluster.namesrv) as client:
        (broker,) = client.brokers().values()
    suffix = f"-{next(_numbers)}"
    with rig(workload, cluster.namesrv, folder, on=on, suffix=suffix, broker=broker) as found:
        return problems_on(found, case, variant)


def problems_on(found: Rig, case: Case, variant: str) -> list[str]:
    """Run one variant of a case on a rig; give everything that is wrong."""
    if "random" in variant:
        found.flaw = "noise"
    return [*scenario_of(case)(case, variant, found), *_wrong_at_the_end(case, found)]


def _wrong_at_the_end(case: Case, rig: Rig) -> Iterator[str]:
    evidence = rig.evidence()
    asserts: Sequence[str] = case.asserts
    for name in asserts:
        if name in INVARIANTS:
            yield from INVARIANTS[name](evidence)
        elif name not in ASSERTS and name != "I8":
            yield f"nothing here checks {name!r}"
