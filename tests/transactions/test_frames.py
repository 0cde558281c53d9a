"""Tuples on their way to another partition come back as they were, whatever they hold."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from headrace.errors import SerializationError
from headrace.runtime.bolts.bolts import TupleFrame, unpack_frames
from headrace.topology.tuples import COMMIT_FAIL

ROWS: dict[str, list[tuple[Any, ...]]] = {
    "plain": [("to", 1, 2.5, None, True, b"\0"), ("be", -1, -0.0, "", False, b"")],
    "big numbers": [(2**64,), (-(2**63) - 1,)],
    "containers": [([1, (2, 3)],), ({"a": (1,)},)],
    "other types": [(datetime(2025, 1, 1, tzinfo=UTC), Decimal("1.0"))],
    "lone surrogates": [("\ud800",)],
    "an object of ours": [(COMMIT_FAIL,)],
    "no values": [(), ()],
}


def frame(rows: list[tuple[Any, ...]], first: int = 0) -> TupleFrame:
    marks = np.arange(first, first + len(rows))
    same = np.full(len(rows), 7)
    return TupleFrame(rows, (marks, same, same, marks % 3))


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_values_come_back_with_their_types(rows: list[tuple[Any, ...]]) -> None:
    found = unpack_frames([frame(rows).pack()])
    assert repr(found.values) == repr(rows)
    assert found.emitters is not None
    assert found.emitters.tolist() == [7] * len(rows)
    assert found.marks.tolist() == list(range(len(rows)))


def test_frames_are_joined_in_the_order_of_marks_and_senders() -> None:
    parts = [frame([("c",), ("d",)], 4).pack(1), frame([("a",), ("b",)], 4).pack(0)]
    parts.append(frame([("first",)], 0).pack(2))
    assert [row[0] for row in unpack_frames(parts).values] == ["first", "a", "c", "b", "d"]


def test_a_value_that_cannot_be_pickled_is_named() -> None:
    with pytest.raises(SerializationError, match=r"value 1 of the tuple .* cannot be sent"):
        frame([("fine", 1), ("wrong", lambda: None)]).pack()
