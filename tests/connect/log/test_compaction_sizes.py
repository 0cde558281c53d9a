"""Sums of a compaction go out in as few requests as their sizes allow."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from headrace.connect.log import topic

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("sizes", "count"),
    [([1], 1), ([MIB // 2, MIB // 2, 1], 2), ([3 * MIB, 1], 1), ([1, 3 * MIB], 1)],
)
def test_a_request_takes_what_fits_and_at_least_one(sizes: list[int], count: int) -> None:
    assert topic._fitting(sizes) == count


@given(st.lists(st.integers(1, 2 * MIB), min_size=1, max_size=20))
def test_requests_are_full_and_hold_everything(sizes: list[int]) -> None:
    while sizes:
        count = topic._fitting(sizes)
        assert 1 <= count <= len(sizes)
        assert count == 1 or sum(sizes[:count]) <= MIB
        sizes = sizes[count:]
