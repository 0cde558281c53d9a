"""Rows between stages: what is packed comes back, in an order that no block's speed changes."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pyarrow as pa

from headrace.runtime.blocks import Rows


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
        assert Rows.unpack(list(order)).values.to_pylist() == [b"v", b"z", b"y", b"x", b"w"]


def test_merged_rows_of_one_mark_keep_the_order_of_the_parts() -> None:
    parts = [rows(b"b", mark=2), rows(mark=1), rows(b"a", mark=2), rows(b"c", mark=1)]
    assert Rows.merge(parts).values.to_pylist() == [b"c", b"b", b"a"]
    assert len(Rows.merge([])) == 0
