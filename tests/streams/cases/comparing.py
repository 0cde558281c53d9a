"""What a case expects, compared with what came out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Result", "compare_steps", "compare_totals"]

_OUTPUT = "out"

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """A result as it came out."""

    output: str
    key: Any
    value: Any
    #: ms since 1970.
    time: int
    #: First and last millisecond, or the first that is no longer in it; None without a window.
    window: tuple[int, int] | None

    def fits(self, row: Row, *, values: bool) -> bool:
        """Tell whether it is what a row asks for; what the row leaves out is not looked at."""
        return (
            self.output == row.get("output", _OUTPUT)
            and _same(self.key, row["key"])
            and (not values or _same(self.value, row["value"]))
            and self.time == row.get("time", self.time)
            and ("window" not in row or self.window == tuple(row["window"]))
        )

    def __str__(self) -> str:
        window = "" if self.window is None else f" in {list(self.window)}"
        return f"{self.output}: {_json(self.key)} = {_json(self.value)} at {self.time}{window}"


def compare_steps(case: Row, steps: Sequence[list[Result]], *, values: bool) -> None:
    """Check what each record brought about, or all of it where the case asks for no more."""
    if case["assert"] == "total":
        _check(case, case["expected"], [one for step in steps for one in step], values, "in all")
        return
    for number, step in enumerate(steps):
        rows = [row for row in case["expected"] if row["after"] == number]
        _check(case, rows, step, values, f"after input {number}")


def compare_totals(case: Row, results: list[Result], *, values: bool, updates: bool) -> None:
    """Check all results, in order for each key; of updates the last for each key and window."""
    rows = list(case["expected"])
    if updates:
        rows = list({_place(row): row for row in rows}.values())
        results = list({_place_of(result): result for result in results}.values())
    if case["order"] != "exact":
        _check(case, rows, results, values, "in all")
        return
    # Across keys no order is promised where several records make a batch.
    for key in dict.fromkeys([*map(_key, rows), *map(_key_of, results)]):
        own = [row for row in rows if _key(row) == key]
        found = [result for result in results if _key_of(result) == key]
        _check(case, own, found, values, f"of key {key}")


def _check(
    case: Row, rows: Sequence[Row], results: Sequence[Result], values: bool, when: str
) -> None:
    ordered = case["order"] == "exact"
    fits: Callable[[Result, Row], bool] = lambda one, row: one.fits(row, values=values)  # noqa: E731
    same = _in_order(rows, results, fits) if ordered else _in_any_order(rows, results, fits)
    wanted = "".join(f"\n  {_shown(row)}" for row in rows) or " nothing"
    found = "".join(f"\n  {result}" for result in results) or " nothing"
    assert same, f"{when} there must be{wanted}\nbut there is{found}"


def _in_order(
    rows: Sequence[Row], results: Sequence[Result], fits: Callable[[Result, Row], bool]
) -> bool:
    # Between two outputs there is no order.
    outputs = {row.get("output", _OUTPUT) for row in rows} | {one.output for one in results}
    for output in outputs:
        own = [row for row in rows if row.get("output", _OUTPUT) == output]
        found = [result for result in results if result.output == output]
        if len(own) != len(found) or not all(map(fits, found, own)):
            return False
    return True


def _in_any_order(
    rows: Sequence[Row], results: Sequence[Result], fits: Callable[[Result, Row], bool]
) -> bool:
    # Rows that say most choose first.
    left = list(results)
    for row in sorted(rows, key=len, reverse=True):
        match = next((result for result in left if fits(result, row)), None)
        if match is None:
            return False
        left.remove(match)
    return not left


def _same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, float) and isinstance(found, int | float):
        return abs(found - wanted) <= 1e-9 * max(1.0, abs(wanted))
    return bool(found == wanted)


def _key(row: Row) -> tuple[str, str]:
    return row.get("output", _OUTPUT), _json(row["key"])


def _key_of(result: Result) -> tuple[str, str]:
    return result.output, _json(result.key)


def _place(row: Row) -> tuple[tuple[str, str], tuple[int, ...] | None]:
    return _key(row), tuple(row["window"]) if "window" in row else None


def _place_of(result: Result) -> tuple[tuple[str, str], tuple[int, ...] | None]:
    return _key_of(result), result.window


def _shown(row: Row) -> str:
    time = f" at {row['time']}" if "time" in row else ""
    window = f" in {row['window']}" if "window" in row else ""
    return (
        f"{row.get('output', _OUTPUT)}: {_json(row['key'])} = {_json(row['value'])}{time}{window}"
    )


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
