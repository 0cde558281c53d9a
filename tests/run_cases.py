"""Run the cases of a file: a line for each, exit status 0 when all pass.

``python tests/run_cases.py compaction FILE``
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

Case = dict[str, Any]

RunCase = Callable[[Case], None]
"""Runs one case; raises AssertionError with what was wrong."""

#: Kind of cases: the module that has ``run_case``.
RUNNERS = {"compaction": "tests.store.compaction.cases"}


def run_file(kind: str, path: Path) -> list[tuple[Case, str | None]]:
    """Run every case of a file; gives each with what was wrong, None when nothing was."""
    run_case: RunCase = importlib.import_module(RUNNERS[kind]).run_case
    return [(case, _failure(run_case, case)) for case in json.loads(path.read_text())["cases"]]


def _failure(run_case: RunCase, case: Case) -> str | None:
    try:
        run_case(case)
    except Exception as error:
        text = str(error) or repr(error)
        return text if isinstance(error, AssertionError) else f"{type(error).__name__}: {text}"
    return None


def main(arguments: list[str]) -> int:
    """Run the file that is named, and tell."""
    if len(arguments) != 2 or arguments[0] not in RUNNERS:
        print(f"usage: run_cases.py {{{','.join(sorted(RUNNERS))}}} FILE", file=sys.stderr)
        return 2
    failed = 0
    for case, failure in run_file(arguments[0], Path(arguments[1])):
        verdict = "ok  " if failure is None else "FAIL"
        print(f"{verdict} {case.get('id', '?')} {case.get('title', '')}")
        if failure is not None:
            failed += 1
            print("     " + failure.replace("\n", "\n     "))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
