"""Run the cases of a file: a line for each, exit status 0 when all pass.

``python tests/run_cases.py compaction FILE``
``python tests/run_cases.py streams FILE [--on driver|spark]``
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

Case = dict[str, Any]

RunCase = Callable[[Case], None]
"""Runs one case; raises AssertionError with what was wrong."""

#: Kind of cases, and what they run on, the usual first: module and function.
RUNNERS = {
    "compaction": {"store": ("tests.store.compaction.cases", "run_case")},
    "streams": {
        "driver": ("tests.streams.cases.executions", "run_on_driver"),
        "spark": ("tests.streams.cases.spark", "run_on_spark"),
    },
}


def run_file(kind: str, path: Path, on: str = "") -> Iterator[tuple[Case, str | None]]:
    """Run every case of a file; gives each with what was wrong, None when nothing was."""
    runners = RUNNERS[kind]
    module, function = runners[on or next(iter(runners))]
    run_case: RunCase = getattr(importlib.import_module(module), function)
    for case in json.loads(path.read_text())["cases"]:
        yield case, _failure(run_case, case)


def _failure(run_case: RunCase, case: Case) -> str | None:
    try:
        run_case(case)
    except Exception as error:
        text = str(error) or repr(error)
        return text if isinstance(error, AssertionError) else f"{type(error).__name__}: {text}"
    return None


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
