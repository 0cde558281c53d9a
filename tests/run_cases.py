"""Run the cases of a file: a line for each, exit status 0 when all pass.

``python tests/run_cases.py compaction FILE``
``python tests/run_cases.py streams FILE [--on driver|spark]``
``python tests/run_cases.py transactions FILE [--on local|spark|cluster]``

``--only ID,ID`` runs some of them.  Where a file has builds that are wrong on purpose, each of them
must be caught by every case that it names.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

Case = dict[str, Any]

RunCase = Callable[[Case], None]
"""Runs one case; raises AssertionError with what was wrong."""

RunCases = Callable[[Sequence[Case]], Iterator[Exception | None]]
"""Runs many cases at once; gives for each what was wrong, None when nothing was."""

#: Kind of cases, and what they run on, the usual first: module and function.
RUNNERS = {
    "compaction": {"store": ("tests.store.compaction.cases", "run_case")},
    "streams": {
        "driver": ("tests.streams.cases.executions", "run_on_driver"),
        "spark": ("tests.streams.cases.spark", "run_on_spark"),
    },
    "transactions": {
        "local": ("tests.transactions.cases.executions", "run_on_local"),
        "spark": ("tests.transactions.cases.executions", "run_on_spark"),
        "cluster": ("tests.transactions.cases.executions", "run_on_cluster"),
    },
}
#: Tells whether a case catches a build that is wrong.
CONTROLS = {"transactions": ("tests.transactions.cases.executions", "catch")}
#: Those that run all cases of a file together: a job on Spark takes long to start.
AT_ONCE = {("tests.streams.cases.spark", "run_on_spark")}


def run_file(
    kind: str, path: Path, on: str = "", only: Collection[str] = ()
) -> Iterator[tuple[Case, str | None]]:
    """Run the cases of a file; gives each with what was wrong, None when nothing was."""
    runners = RUNNERS[kind]
    module, function = runners[on or next(iter(runners))]
    run: Any = getattr(importlib.import_module(module), function)
    content = json.loads(path.read_text())
    cases = [case for case in content["cases"] if not only or _name(case) in only]
    many: RunCases = run if (module, function) in AT_ONCE else partial(_each, run)
    for case, error in zip(cases, many(cases), strict=True):
        yield case, None if error is None else _told(error)
    if kind in CONTROLS:
        controls = [each for each in content["negative_controls"] if not only or each["id"] in only]
        yield from _controls(kind, controls, content["cases"], on)


def _controls(
    kind: str, controls: Sequence[Case], cases: Sequence[Case], on: str
) -> Iterator[tuple[Case, str | None]]:
    module, function = CONTROLS[kind]
    catches = getattr(importlib.import_module(module), function)
    for control in controls:
        passed = [
            case["id"]
            for case in cases
            if case["id"] in control["must_fail"] and not catches(case, control["id"], on)
        ]
        told = {"id": control["id"], "title": control["break"]}
        yield told, f"not caught by {', '.join(passed)}" if passed else None


def _name(case: Case) -> str:
    return str(case.get("id", case.get("name", "?")))


def _each(run_case: RunCase, cases: Sequence[Case]) -> Iterator[Exception | None]:
    for case in cases:
        try:
            run_case(case)
        except Exception as error:
            yield error
        else:
            yield None


def _told(error: Exception) -> str:
    text = str(error) or repr(error)
    return text if isinstance(error, AssertionError) else f"{type(error).__name__}: {text}"


def main(arguments: list[str]) -> int:
    """Run the file that is named, and tell."""
    parser = argparse.ArgumentParser(prog="run_cases.py")
    parser.add_argument("kind", choices=sorted(RUNNERS))
    parser.add_argument("file", type=Path)
    parser.add_argument("--on", default="", help="what to run them on")
    parser.add_argument("--only", default="", help="cases and controls, by their ids")
    options = parser.parse_args(arguments)
    if options.on and options.on not in RUNNERS[options.kind]:
        parser.error(f"{options.kind} run on {' or '.join(RUNNERS[options.kind])}")
    failed = 0
    only = [name for name in options.only.split(",") if name]
    for case, failure in run_file(options.kind, options.file, options.on, only):
        verdict = "ok  " if failure is None else "FAIL"
        print(f"{verdict} {_name(case)} {case.get('title', '')}".rstrip(), flush=True)
        if failure is not None:
            failed += 1
            print("     " + failure.replace("\n", "\n     "))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
