"""The cases of streams in the test driver, and what the runner makes of other files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.run_cases import run_file
from tests.streams.cases.executions import run_on_driver

FILE = Path(__file__).parents[1] / "cases" / "streams.json"
CASES = json.loads(FILE.read_text())["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_case(case: dict[str, Any]) -> None:
    run_on_driver(case)


def row(value: Any, *, time: int = 0, key: Any = "k", stream: str = "in") -> dict[str, Any]:
    return {"stream": stream, "key": key, "value": value, "time": time}


def case(operation: str, rows: list[Any], expected: list[Any], **given: Any) -> dict[str, Any]:
    fixed = {"name": "one", "order": "exact", "assert": "per_step", "params": {}}
    return fixed | {"operation": operation, "input": rows, "expected": expected} | given


def out(after: int, value: Any, key: Any = "k", **more: Any) -> dict[str, Any]:
    return {"after": after, "key": key, "value": value} | more


@pytest.mark.parametrize(
    "other",
    [
        case("map(v -> v * 2)", [row(3)], [out(0, 6)]),
        case(
            "s.filter(v.score > 3)", [row({"score": 3}), row({"score": 4})], [out(1, {"score": 4})]
        ),
        case(
            "keyBy(v.user).sum(v.n)",
            [row({"user": "u", "n": 2})] * 2,
            [out(0, 2, "u"), out(1, 4, "u")],
        ),
        case("keyBy(k + '!').count()", [row(0, key="a")], [out(0, 1, "a!")]),
        case(
            "a.map(v -> v).keyBy(k).count() -> x ; b.filter(v is odd) -> y, one job",
            [row(1, stream="a"), row(2, stream="b"), row(3, stream="b")],
            [out(0, 1, output="x"), out(2, 3, output="y")],
        ),
        case("flatMap(split)", [row("a b")], [out(0, "a"), out(0, "b")], order="unordered"),
    ],
    ids=lambda case: case["operation"],
)
def test_other_operations_of_the_vocabulary(other: dict[str, Any], tmp_path: Path) -> None:
    assert failure(other, tmp_path) is None


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (case("explode()", [row(1)], []), "does not know the operation 'explode'"),
        (case("map(v -> open)", [row(1)], []), "'open'"),
        (case("map(v -> f(v))", [row(1)], []), "does not understand 'f(v)'"),
        (case("map(v ->)", [row(1)], []), "does not understand the function"),
        (case("a.map(id)", [row(1), row(1, stream="b")], []), "which of ['in', 'b'] is 'a'?"),
        (case("map(id)", [row(1)], [out(0, 2)]), 'there must be\n  out: "k" = 2'),
        (case("map(id)", [row(1)], []), "after input 0 there must be nothing\nbut there is\n  out"),
        (case("count()", [row(1)], []), "not yet: Stream.count"),
        (
            case("keyBy(k).count()", [row(1)], [out(0, 1)], params={"dropped_metric": 1}),
            "dropped are 0, not 1",
        ),
    ],
    ids=lambda part: part["operation"] if isinstance(part, dict) else "",
)
def test_what_is_wrong_or_unknown_fails(other: dict[str, Any], told: str, tmp_path: Path) -> None:
    found = failure(other, tmp_path)
    assert found is not None
    assert told in found


def failure(one: dict[str, Any], folder: Path) -> str | None:
    path = folder / "cases.json"
    path.write_text(json.dumps({"title": "other", "cases": [one]}))
    [(_, found)] = run_file("streams", path)
    return found
