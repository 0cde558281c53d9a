"""Results as the table of docs/explanation/performance.md."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.targets import TARGETS, Target

__all__ = ["results_table"]


def results_table(files: Iterable[Path]) -> str:
    """Write results as a Markdown table; of a measure in several files the last one counts."""
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        for text in file.read_text().splitlines():
            line = json.loads(text)
            found[line["measure"]] = line
    rows = [
        "| measure | asked | measured | runs | load |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, target in TARGETS.items():
        if name in found:
            rows.append(_row(found[name], target))
    return "\n".join(rows) + "\n"


def _row(line: dict[str, Any], target: Target | None) -> str:
    unit = line["unit"]
    asked = "" if target is None else f"{target.kind} {_value(target.bound, unit)}"
    verdict = "" if target is None or target.reached(line["value"]) else " (missed)"
    runs = ", ".join(_number(value) for value in line["runs"])
    measured = f"{_value(line['value'], unit)}{verdict}"
    return f"| `{line['measure']}` | {asked} | {measured} | {runs} | {line['load_average']} |"


def _value(value: float, unit: str) -> str:
    return _number(value) if unit == "ratio" else f"{_number(value)} {unit}"


def _number(value: float) -> str:
    """Write a number with as many digits as mean something.

    >>> [_number(value) for value in (512345.6789, 41.27, 0.31249)]
    ['512,346', '41.3', '0.312']
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
