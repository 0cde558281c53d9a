from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from headrace.protocol.groups import java_hash, java_order


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("Aa", 2112),
        ("BB", 2112),
        ("TagA", 2_598_919),
        ("polygenelubricants", -(2**31)),
        ("\U0001f30a", 31 * 0xD83C + 0xDF0A),
    ],
)
def test_known_hashes(text: str, value: int) -> None:
    assert java_hash(text) == value


@given(st.text(), st.text(max_size=1))
def test_hash_grows_as_java_defines_it(text: str, last: str) -> None:
    units = last.encode("utf-16-be", "surrogatepass")
    wanted = java_hash(text)
    for at in range(0, len(units), 2):
        wanted = 31 * wanted + int.from_bytes(units[at : at + 2])
    assert java_hash(text + last) == (wanted + 2**31) % 2**32 - 2**31


def test_order_is_by_utf16_units() -> None:
    assert sorted(["\ue000", "\U0001f30a", "z"], key=java_order) == ["z", "\U0001f30a", "\ue000"]
