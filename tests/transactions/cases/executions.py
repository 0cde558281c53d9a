"""Runs the cases of a file, each with all of its workloads and variants."""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from headrace.broker import spawn_broker
from headrace.client import Client
from tests.clusters import Cluster
from tests.run.servers import LEASE
from tests.transactions.cases.broken import CONTROLS, Control
from tests.transactions.cases.case import Case, On, read_case
from tests.transactions.cases.checks import INVARIANTS
from tests.transactions.cases.restated import ASSERTS
from tests.transactions.cases.rig import Rig, rig
from tests.transactions.cases.scenarios import scenario_of
from tests.transactions.cases.workloads import TWO_KINDS
from tests.without import going_without

_SOUND = Control("nothing")
_numbers = itertools.count(1)

__all__ = [
    "ON_SPARK_ONLY",
    "catch",
    "finding",
    "problems_of",
    "problems_on_rocketmq",
    "run_on_cluster",
    "run_on_local",
    "run_on_spark",
    "runs_of",
]


ON_SPARK_ONLY = {"TX04", "TX10", "TX11", "TX23"}
"""Cases whose fault is to a process that only Spark has, or to one of several groups."""


def run_on_local(raw: dict[str, Any]) -> None:
    """Run a case without Spark, where it can be, on an embedded broker of its own."""
    _run(read_case(raw), "spark" if raw["id"] in ON_SPARK_ONLY else "local")


def run_on_spark(raw: dict[str, Any]) -> None:
    """Run a case on Spark, on an embedded broker of its own."""
    _run(read_case(raw), "spark")


def run_on_cluster(raw: dict[str, Any]) -> None:
    """Run a case on Spark with executors of their own, on an embedded broker of its own."""
    _run(read_case(raw), "cluster")


def runs_of(case: Case) -> list[tuple[str, str]]:
    """Give every workload with every variant."""
    return [
        (TWO_KINDS.get(variant, workload), variant)
        for variant in case.variants
        for workload in case.workloads
    ]


def _run(case: Case, on: On) -> None:
    problems: list[str] = []
    for workload, variant in runs_of(case):
        began = time.monotonic()
        try:
            found = problems_of(case, workload, variant, on)
        except AssertionError as error:
            found = [str(error)]
        run = f"{workload}, {variant or 'as it is'}"
        problems += [f"{run}: {problem}" for problem in found]
        seconds = time.monotonic() - began
        print(f"     {case.id} {run}: {len(found)} problems, {seconds:.0f} s", flush=True)
    assert not problems, "\n".join(problems)


def problems_of(
    case: Case, workload: str, variant: str, on: On = "local", control: Control = _SOUND
) -> list[str]:
    """Run one workload with one variant of a case; give everything that is wrong."""
    with tempfile.TemporaryDirectory(prefix="headrace-case-") as folder:
        path = Path(folder)
        broker = spawn_broker(path / "broker", environment=going_without(control.without))
        try:
            flaws = {"broken": control.broken, "flaw": control.flaw}
            with rig(workload, broker.address, path, on=on, **flaws) as found:
                return problems_on(found, case, variant)
        finally:
            broker.kill()


def finding(case: Case, control: Control, on: On = "local") -> str | None:
    """Give what a case finds wrong with a build, in some workload and variant."""
    place = control.on_spark if on == "spark" else on
    for workload, variant in runs_of(case):
        try:
            problems = problems_of(case, workload, variant, place, control)
        except AssertionError as error:
            problems = [str(error)]
        if problems:
            return problems[0]
    return None


def catch(raw: dict[str, Any], control: str, on: On | Literal[""]) -> bool:
    """Tell whether a case of the file finds a build wrong, and say what it finds."""
    found = finding(read_case(raw), CONTROLS[control], on or "local")
    print(f"     {control} by {raw['id']}: {found}", flush=True)
    return found is not None


def problems_on_rocketmq(
    case: Case, workload: str, variant: str, cluster: Cluster, folder: Path, on: On = "local"
) -> list[str]:
    """Do the same on a stock RocketMQ that others use, too, and whose locks expire soon."""
    with Client(cluster.namesrv) as client:
        (broker,) = client.brokers().values()
    suffix = f"-{os.getpid()}-{next(_numbers)}"
    more = {
        "on": on,
        "suffix": suffix,
        "broker": broker,
        "settings": {"lease_expiry": f"{LEASE} s"},
    }
    with rig(workload, cluster.namesrv, folder, **more) as found:
        return problems_on(found, case, variant)


def problems_on(found: Rig, case: Case, variant: str) -> list[str]:
    """Run one variant of a case on a rig; give everything that is wrong."""
    if "random" in variant:
        found.flaw = "noise"
    return [*scenario_of(case)(case, variant, found), *_wrong_at_the_end(case, found)]


def _wrong_at_the_end(case: Case, rig: Rig) -> Iterator[str]:
    evidences = rig.evidences()
    asserts: Sequence[str] = case.asserts
    for name in asserts:
        if name in INVARIANTS:
            for evidence in evidences:
                yield from INVARIANTS[name](evidence)
        elif name not in ASSERTS and name != "I8":
            yield f"nothing here checks {name!r}"
