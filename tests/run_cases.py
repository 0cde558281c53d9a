"""Run the cases of a file: a line for each, exit status 0 when all pass.

``python tests/run_cases.py compaction FILE``
``python tests/run_cases.py streams FILE [--on driver|spark]``
``python tests/run_cases.py transactions FILE [--on local|spark]``
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
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
    },
}
#: Those that run all cases of a file together: a job on Spark takes long to start.
AT_ONCE = {("tests.streams.cases.spark", "run_on_spark")}


def run_file(kind: str, path: Path, on: str = "") -> Iterator[tuple[Case, str | None]]:
    """Run every case of a file; gives each with what was wrong, None when nothing was."""
    runners = RUNNERS[kind]
    module, function = runners[on or next(iter(runners))]
    run: Any = getattr(importlib.import_module(module), function)
    cases = json.loads(path.read_text())["cases"]
    many: RunCases = run if (module, function) in AT_ONCE else partial(_each, run)
    for case, error in zip(cases, many(cases), strict=True):
        yield case, None if error is None else _told(error)


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
    options = parser.parse_args(arguments)
    if options.on and options.on not in RUNNERS[options.kind]:
        parser.error(f"{options.kind} run on {' or '.join(RUNNERS[options.kind])}")
    failed = 0
    for case, failure in run_file(options.kind, options.file, options.on):
        verdict = "ok  " if failure is None else "FAIL"
        name = case.get("id", case.get("name", "?"))
        print(f"{verdict} {name} {case.get('title', '')}".rstrip(), flush=True)
        if failure is not None:
            failed += 1
            print("     " + failure.replace("\n", "\n     "))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
