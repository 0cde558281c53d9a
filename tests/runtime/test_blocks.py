"""Rows between stages: what is packed comes back, in an order that no block's speed changes."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pyarrow as pa

from headrace.runtime.control import Rows


def rows(*values: bytes, mark: int) -> Rows:
    marks = np.full(len(values), mark, np.int64)
    column = pa.array(values, pa.binary())
    return Rows(column, column, np.zeros(len(values), np.int64), marks)


def test_rows_of_one_mark_come_in_the_order_of_their_senders() -> None:
    payloads = [
        rows(b"z", b"y", mark=7).pack(0),
        rows(b"x", mark=7).pack(1),
        rows(b"w", mark=7).pack(300),
        rows(b"v", mark=6).pack(2),
    ]
    for order in permutations(payloads):
        found = Rows.unpack(list(order))
        assert found.values.to_pylist() == [b"z", b"y", b"x", b"v", b"w"]
        assert found.by_mark().values.to_pylist() == [b"v", b"z", b"y", b"x", b"w"]


def test_joined_rows_stand_end_to_end_and_know_the_last_of_each_key() -> None:
    parts = [rows(b"b", mark=2), rows(mark=1), rows(b"a", b"b", mark=3), rows(b"b", mark=1)]
    joined = Rows.join(parts)
    assert joined.values.to_pylist() == [b"b", b"a", b"b", b"b"]
    keys, groups, last = joined.by_key()
    assert (keys, groups.tolist(), last.tolist()) == ([b"a", b"b"], [1, 0, 1, 1], [1, 2])
    assert len(Rows.join([])) == 0
