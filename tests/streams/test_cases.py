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


def sides(*rows: tuple[str, Any, int]) -> list[dict[str, Any]]:
    return [row(value, time=at, stream=side, key=0) for side, value, at in rows]


#: The input of Kafka Streams' tests of table joins; None deletes.
TABLES = sides(
    *[("left", None, 1), ("right", None, 2), ("left", "A", 3), ("right", "a", 4), ("left", "B", 5)],
    *[("right", "b", 6), ("left", None, 7), ("right", None, 8), ("left", "C", 9)],
    *[("right", "c", 10), ("right", None, 11), ("left", None, 12), ("right", None, 13)],
    *[("right", "d", 14), ("left", "D", 15)],
)
JOINED = {"joiner": "l + '-' + r", "null_value": "dropped"}
LAST = {"size": 10, "delay": 0}


def changes(*rows: tuple[int, Any]) -> list[dict[str, Any]]:
    return [out(after, value, 0, time=after + 1) for after, value in rows]


OTHERS = [
    case("map(v -> v * 2)", [row(3)], [out(0, 6)]),
    case("s.filter(v.score > 3)", [row({"score": 3}), row({"score": 4})], [out(1, {"score": 4})]),
    case(
        "keyBy(v.user).sum(v.n)",
        [row({"user": "u", "n": 2})] * 2,
        [out(0, 2, "u"), out(1, 4, "u")],
    ),
    case("keyBy(k + '!').count()", [row(0, key="a")], [out(0, 1, "a!")]),
    case("selectKey((k, v) -> k + v).count()", [row("b", key="a")], [out(0, 1, "ab")]),
    case(
        "a.map(v -> v).keyBy(k).count() -> x ; b.filter(v is odd) -> y, one job",
        [row(1, stream="a"), row(2, stream="b"), row(3, stream="b")],
        [out(0, 1, output="x"), out(2, 3, output="y")],
    ),
    case("flatMap(split)", [row("a b")], [out(0, "a"), out(0, "b")], order="unordered"),
    case("map(v -> v > 1 && v != 3 ? v : null)", [row(2)], [out(0, 2)]),
    case("map((k, v) -> (v, k)).map(v -> v.upper())", [row("a")], [out(0, "K", "a")]),
    case("map(v -> null)", [row(1)], [], params={"null_result": "dropped"}, order="unordered"),
    case("keyBy(k).count(v.x)", [row({"x": 1}), row({"y": 1})], [out(0, 1)]),
    case("keyBy(k).count(distinct v.x)", [row({"x": 1})] * 2, [out(0, 1), out(1, 1)]),
    case("keyBy(k).avg()", [row(1), row(2)], [out(0, 1.0), out(1, 1.5)]),
    case("keyBy(k).sum()", [row(2_147_483_647), row(1)], [out(0, 2_147_483_647), out(1, 2**31)]),
    case(
        "keyBy(k).top(2)", [row(1), row(3), row(2)], [out(0, [1]), out(1, [3, 1]), out(2, [3, 2])]
    ),
    case("groupByKey.reduce((a, b) -> a + b)", [row(1), row(2)], [out(0, 1), out(1, 3)]),
    case(
        "groupByKey.windowedBy(hopping).aggregate('0', (a, v) -> a + '+' + v)",
        [row("1"), row("2", time=5)],
        [
            out(0, "0+1", window=[0, 10]),
            out(0, "0+1", window=[-5, 5]),
            out(1, "0+1+2", window=[0, 10]),
            out(1, "0+2", window=[5, 15]),
        ],
        params={"size": 10, "advance": 5, "emit": "update"},
        order="per_step_unordered",
    ),
    case(
        "keyBy(k).window(tumbling).count().keyBy(_ -> 'all').window(tumbling).sum()",
        [row(1, time=time, key=key) for time, key in [(1, "a"), (2, "b"), (12, "a"), (40, "a")]],
        [out(3, 3, "all", window=[0, 20])],
        params=LAST | {"size2": 20},
    ),
    case(
        "keyBy(_ -> 'a&&b').window(session, 10).filter(v > 0).max(v)",
        [row(1), row(7, time=10), row(0, time=15), row(1, time=40)],
        [out(3, 7, "a&&b", window=[0, 10])],
        params={"delay": 5},
    ),
    case("keyBy(k).window(count 2).sum()", [row(1), row(2), row(3)], [out(1, 3)]),
    case(
        "keyBy(k).window(tumbling).count() -> out ; late.map(v -> 'late') -> late",
        [row(1), row(1, time=30), row(1, time=1)],
        [out(1, 1, window=[0, 10]), out(2, "late", output="late")],
        params=LAST,
    ),
    case(
        "watermark",
        [row(1, time=10) | {"partition": 0}, row(1, time=5) | {"partition": 1}],
        [
            out(0, {"watermark": 8, "late": False}, None),
            out(1, {"watermark": 3, "late": False}, None),
        ],
        params={"width": 2},
    ),
    case(
        "assign_windows",
        [row(0, time=3)],
        [out(0, None, window=[-5, 5]), out(0, None, window=[0, 10])],
        params={"size": 10, "slide": 5},
        order="per_step_unordered",
    ),
    case(
        "a.merge(b).map(v -> v+1)", [row(1, stream="a"), row(2, stream="b")], [out(0, 2), out(1, 3)]
    ),
    case(
        "a.join(b).join(c) on key, no window",
        [row(1, time=1, stream="a"), row(2, time=2, stream="b"), row(3, time=3, stream="c")],
        [out(2, [[1, 2], 3], time=3)],
    ),
    case("s.join(s) on key", [row(1)], [out(0, [1, 1])]),
    case("left.outerJoin(right)", sides(("right", 1, 0)), [out(0, [None, 1], 0)]),
    case(
        "left.join(right).where(v.a).equalTo(v.b).window(tumbling).apply((l, r) -> l.a)",
        sides(
            *[("left", {"a": 1}, 1), ("right", {"b": 1}, 2), ("left", {"a": 7}, 50)],
            ("right", {"b": 9}, 50),
        ),
        [out(3, 1, 1, window=[0, 10])],
        params=LAST,
        **{"assert": "total"},
    ),
    case(
        "left.leftJoin(right) within [-2, 5]",
        sides(
            ("left", 1, 10), ("right", 1, 7), ("right", 2, 8), ("right", 3, 15), ("right", 4, 16)
        ),
        [out(2, [1, 2], 0), out(3, [1, 3], 0)],
        params={"delay": 50},
    ),
    case(
        "left.join(right) table-table",
        TABLES,
        changes(
            *[(3, "A-a"), (4, "B-a"), (5, "B-b"), (6, None), (9, "C-c"), (10, None), (14, "D-d")]
        ),
        params=JOINED,
    ),
    case(
        "table left.leftJoin(table right)",
        TABLES,
        changes(
            *[(2, "A-null"), (3, "A-a"), (4, "B-a"), (5, "B-b"), (6, None), (8, "C-null")],
            *[(9, "C-c"), (10, "C-null"), (11, None), (14, "D-d")],
        ),
        params=JOINED,
    ),
    case(
        "table(left).outerJoin(table(right))",
        TABLES,
        changes(
            *[(2, "A-null"), (3, "A-a"), (4, "B-a"), (5, "B-b"), (6, "null-b"), (7, None)],
            *[(8, "C-null"), (9, "C-c"), (10, "C-null"), (11, None), (13, "null-d"), (14, "D-d")],
        ),
        params=JOINED,
    ),
    case(
        "left.leftJoin(right) stream-table",
        TABLES,
        changes((2, "A-null"), (4, "B-a"), (8, "C-null"), (14, "D-d")),
        params=JOINED,
    ),
    case(
        "left.join(globalTable(right))",
        sides(("right", "r", 1), ("left", "l", 2)),
        [out(1, ["l", "r"], 0)],
    ),
    case(
        "left.join(right) foreign key v.ref",
        [row({"ref": "p"}, stream="left", key="o"), row("P", stream="right", key="p")],
        [out(1, [{"ref": "p"}, "P"], "o")],
    ),
]


@pytest.mark.parametrize("other", OTHERS, ids=lambda case: case["operation"])
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
        (case("a.join(a), sometimes", [row(1, stream="a")], []), "does not know 'sometimes'"),
        (case("apply(v)", [row(1)], []), "needs a join before it"),
        (case("keyBy(k).window(session).count()", [row(1)], []), "no gap of window 1 is given"),
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
