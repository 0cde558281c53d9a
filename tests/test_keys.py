from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from headrace import keys
from headrace.errors import DeserializationError, SerializationError

TEXTS = st.lists(st.text(st.characters()), max_size=8)
MIXED = st.lists(
    st.one_of(
        st.none(), st.text(), st.integers(), st.booleans(), st.binary(), st.tuples(st.text())
    ),
    max_size=8,
)
ODD_TEXTS = ["", "a", "\0", "\0s", "s\0", "a\x01", "\x02", "\ud800", "é", "x" * 8192, "x" * 8193]


@given(st.one_of(TEXTS, MIXED))
def test_many_keys_are_encoded_as_one_by_one(items: list[Any]) -> None:
    encoded = keys.encode_keys(items)
    assert encoded == [keys.encode_key(item) for item in items]
    decoded = keys.decode_keys(encoded)
    assert decoded == items
    assert list(map(type, decoded)) == list(map(type, items))


@pytest.mark.parametrize("first", ODD_TEXTS)
@pytest.mark.parametrize("second", ODD_TEXTS)
def test_odd_texts_survive_the_fast_paths(first: str, second: str) -> None:
    pair = [first, second]
    encoded = keys.encode_keys(pair)
    assert encoded == [keys.encode_key(first), keys.encode_key(second)]
    assert keys.decode_keys(encoded) == pair
    assert keys.key_properties(pair, encoded) == [
        "".join(f"{k}\1{v}\2" for k, v in keys.properties_of_key(key).items()).encode()
        for key in pair
    ]


# The first call imports what Arrow needs.
@settings(deadline=None)
@given(st.one_of(TEXTS, MIXED))
def test_keys_come_back_from_the_properties_of_messages(items: list[Any]) -> None:
    properties = [keys.properties_of_key(item) for item in items]
    assert [keys.key_from_properties(p) for p in properties] == items
    columns = [
        pa.array([p[name].encode() if name in p else None for p in properties], pa.binary())
        for name in (keys.KEYS, keys.EXACT_KEY)
    ]
    assert keys.keys_from_columns(columns[0], columns[1]) == items
    raw = keys.key_properties(items, keys.encode_keys(items))
    assert [dict(_split(one)) for one in raw] == properties


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_hex_of_many_keys_is_that_of_each(items: list[bytes]) -> None:
    found = keys.hex_keys(items)
    assert found is not None
    assert found.to_pylist() == [keys.hex_key(item).encode() for item in items]
    assert keys.hex_keys([*items, b"x" * 4097]) is None


def _split(raw: bytes) -> list[tuple[str, str]]:
    pairs = [pair.split("\1") for pair in raw.decode().split("\2")[:-1]]
    return [(name, value) for name, value in pairs]


def test_text_travels_as_it_is_and_everything_else_as_hex() -> None:
    assert keys.properties_of_key("two words") == {"KEYS": "two words"}
    assert keys.properties_of_key(7) == {"KEYS": "6907", "HEADRACE_KEY": "6907"}
    assert keys.properties_of_key("") == {"KEYS": "73", "HEADRACE_KEY": "73"}
    assert keys.properties_of_key("a\x01") == {"KEYS": "736101", "HEADRACE_KEY": "736101"}
    assert keys.properties_of_key(None) == {}


def test_a_long_key_is_indexed_by_its_digest() -> None:
    key = b"x" * 10_000
    properties = keys.properties_of_key(key)
    assert len(properties["KEYS"]) == 64
    assert keys.key_from_properties(properties) == key
    assert sum(len(name) + len(value) + 2 for name, value in properties.items()) < 32_767


def test_a_key_that_fits_no_message_is_refused() -> None:
    with pytest.raises(SerializationError, match=r"13,001 bytes does not fit"):
        keys.properties_of_key(b"x" * 13_000)


def test_a_broken_exact_key_is_refused() -> None:
    with pytest.raises(DeserializationError, match="not hex"):
        keys.key_from_properties({"HEADRACE_KEY": "zz"})
    with pytest.raises(DeserializationError, match="not encoded plain data"):
        keys.keys_from_columns(pa.array([b"a"]), pa.array([b"00"]))


def test_keys_of_foreign_producers_stay_apart_when_they_are_not_utf8() -> None:
    column = pa.array([b"\xff", b"\xfe", None])
    first, second, none = keys.keys_from_columns(column, pa.nulls(3, pa.binary()))
    assert first != second
    assert none is None


def test_hash_is_the_crc_of_the_canonical_bytes() -> None:
    encoded = keys.encode_keys(["a", "b", 1])
    hashes = keys.key_hashes(encoded)
    assert hashes.dtype == np.uint32
    assert hashes.tolist() == [zlib.crc32(one) for one in encoded]
    assert keys.partitions_of(encoded, 8).tolist() == [keys.partition_of(one, 8) for one in encoded]


def test_placement_never_changes_between_releases() -> None:
    placed = {
        key: keys.partition_of(keys.encode_key(key), 8) for key in ("word", 1, (1, "a"), None)
    }
    assert placed == {"word": 7, 1: 7, (1, "a"): 2, None: 2}


def test_one_one_float_and_true_are_three_keys() -> None:
    assert len({keys.encode_key(key) for key in (1, 1.0, True)}) == 3
    assert keys.encode_keys([1, 1.0, True]) == [keys.encode_key(k) for k in (1, 1.0, True)]
