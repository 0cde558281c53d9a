from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, strategies as st

from headrace.encoding import (
    decode,
    decode_many,
    encode_canonical,
    encode_exact,
    encode_exact_many,
)
from headrace.errors import DeserializationError, SerializationError

MIN, MAX = datetime(2, 1, 1), datetime(9998, 1, 1)  # noqa: DTZ001 - hypothesis adds the zone
# Whole seconds: Python reads an offset of less than one as none.
OFFSETS = st.integers(-14 * 3600, 14 * 3600).map(lambda s: timezone(timedelta(seconds=s)))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters()),
    st.binary(),
    st.decimals(allow_nan=False),
    st.dates(),
    st.datetimes().map(lambda moment: moment.replace(fold=0)),
    # Not so near the ends of time that moving to UTC would leave it.
    st.datetimes(MIN, MAX, timezones=OFFSETS).map(lambda moment: moment.replace(fold=0)),
    st.times().map(lambda moment: moment.replace(fold=0)),
    st.timedeltas(),
    st.uuids(),
)


def hashable(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.tuples(inner, inner), st.frozensets(inner, max_size=3))


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(SCALARS, inner, max_size=4),
        st.sets(SCALARS, max_size=4),
        st.frozensets(SCALARS, max_size=4),
    )


PLAIN = st.recursive(SCALARS, containers, max_leaves=12)


@given(PLAIN)
def test_exact_form_reads_back_as_it_was(value: Any) -> None:
    back = decode(encode_exact(value))
    assert back == value
    assert type(back) is type(value)
    assert repr(back) == repr(value) or isinstance(value, set | frozenset | dict | list | tuple)


@given(st.lists(PLAIN, max_size=4))
def test_many_values_have_the_bytes_that_each_has_alone(values: list[Any]) -> None:
    data = encode_exact_many(values)
    assert data == list(map(encode_exact, values))
    assert decode_many(data) == values
    # Together they are packed only if each of them is.
    dicts = [{"value": value} for value in values]
    assert encode_exact_many(dicts) == list(map(encode_exact, dicts))


class _Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1 << 64},
        {"a": "\ud800"},
        {1: "a"},
        {"a": (1, [2])},
        [{"a": {1, 2}}],
        [datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=1)))],
        [Decimal("1.0"), UUID(int=1)],
        [[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]],
    ],
)
def test_what_messagepack_would_change_keeps_its_types(value: Any) -> None:
    for read in (decode(encode_exact(value)), *decode_many(encode_exact_many([value, {}]))[:1]):
        assert read == value
        assert repr(read) == repr(value)


@pytest.mark.parametrize("value", [{"a": _Text("b")}, [{_Text("a"): 1}], [bytearray(b"a")]])
def test_classes_of_ones_own_in_containers_are_no_plain_data(value: Any) -> None:
    with pytest.raises(SerializationError, match="is not plain data"):
        encode_exact_many([value])


def test_a_list_within_itself_ends() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(RecursionError):
        encode_exact_many([endless])


@pytest.mark.parametrize("data", [b"\x81", b"\x91\xc1", b"\x90\x90", b"\xc0", b"\xff"])
def test_broken_messagepack_is_told(data: bytes) -> None:
    with pytest.raises(DeserializationError, match="not encoded plain data"):
        decode(data)
    with pytest.raises(DeserializationError, match="not encoded plain data"):
        decode_many([data, b"\x90"])


@given(PLAIN)
def test_canonical_form_is_stable_and_reads_back_equal(value: Any) -> None:
    data = encode_canonical(value)
    assert decode(data) == value
    assert encode_canonical(decode(data)) == data


@given(PLAIN, PLAIN)
def test_equal_bytes_mean_equal_values(left: Any, right: Any) -> None:
    if encode_canonical(left) == encode_canonical(right):
        assert left == right


@given(st.dictionaries(SCALARS, SCALARS, max_size=6), st.randoms())
def test_order_of_a_dict_plays_no_part_in_its_canonical_form(
    value: dict[Any, Any], chance: Any
) -> None:
    items = list(value.items())
    chance.shuffle(items)
    assert encode_canonical(dict(items)) == encode_canonical(value)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (None, b"N"),
        (True, b"T"),
        (False, b"F"),
        (0, b"i\0"),
        (-1, b"i\xff"),
        (127, b"i\x7f"),
        (128, b"i\0\x80"),
        (2**64, b"i\x01" + bytes(8)),
        (1.0, b"f\x3f\xf0" + bytes(6)),
        ("word", b"sword"),
        ("", b"s"),
        (b"\0", b"b\0"),
        (Decimal("1.50"), b"d1.50"),
        (date(2024, 2, 29), b"D2024-02-29"),
        (datetime(2024, 1, 2, 3, 4, 5, 6, UTC), b"t2024-01-02T03:04:05.000006+00:00"),
        (time(1, 2), b"h01:02:00"),
        (timedelta(seconds=-1), b"e\xf0\xbd\xc0"),
        (UUID(int=1), b"u" + bytes(15) + b"\x01"),
        ((1, "a"), b"(\x02i\x01\x02sa"),
        (((),), b"(\x01("),
        ({1: None}, b"{\x02i\x01\x01N"),
        ([()], b"[\x01("),
        (("x" * 200,), b"(\xc9\x01s" + b"x" * 200),
        # What MessagePack gives back as it was.
        ([], b"\x90"),
        ({"a": None}, b"\x81\xa1a\xc0"),
        (["x" * 200, b"", 1.0], b"\x93\xd9\xc8" + b"x" * 200 + b"\xc4\0\xcb\x3f\xf0" + bytes(6)),
        (({"a": [True]},), b"(\x05\x81\xa1a\x91\xc3"),
    ],
)
def test_bytes_follow_the_documented_format(value: Any, data: bytes) -> None:
    assert encode_exact(value) == data
    assert decode(data) == value


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (0.0, -0.0),
        (math.nan, -math.nan),
        (Decimal(1), Decimal("1.00")),
        (Decimal("0E+3"), Decimal("-0.0")),
        (Decimal("1E+2"), Decimal(100)),
        (
            datetime(2024, 1, 1, 12, tzinfo=UTC),
            datetime(2024, 1, 1, 14, tzinfo=timezone(timedelta(hours=2))),
        ),
        ({"a": 1, "b": {"c": 1, "d": 2}}, {"b": {"d": 2, "c": 1}, "a": 1}),
        ({1, 2, 3}, {3, 2, 1}),
    ],
)
def test_equal_values_share_the_canonical_form(left: Any, right: Any) -> None:
    assert encode_canonical(left) == encode_canonical(right)


def test_values_of_different_types_never_share_a_form() -> None:
    ones = [1, 1.0, True, "1", b"1", Decimal(1), (1,), [1], {1}, frozenset({1}), {1: 1}, None]
    assert len({encode_canonical(one) for one in ones}) == len(ones)


class Colour(StrEnum):
    RED = "red"


class Point:
    pass


@pytest.mark.parametrize("encode", [encode_exact, encode_canonical])
@pytest.mark.parametrize(
    "value", [Colour.RED, Point(), np.int64(1), [Point()], {"a": {1, Colour.RED}}]
)
def test_other_objects_are_refused(encode: Callable[[object], bytes], value: object) -> None:
    with pytest.raises(SerializationError, match=r"is not plain data.*\n.*(serde|convert)"):
        encode(value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"?",
        b"Nx",
        b"i",
        b"f123",
        b"s\xff",
        b"dx",
        b"D2024",
        b"u1",
        b"(\x05i\x01",
        b"(\x80",
        b"(\x00",
        b"{\x01N",
        b"{\x01[\x01N",
    ],
)
def test_broken_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(DeserializationError, match="not encoded plain data"):
        decode(data)


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(DeserializationError):
        decode(data)


def test_deep_nesting_is_refused_when_read() -> None:
    data = b"N"
    for _ in range(5000):
        size = len(data)
        length = bytearray()
        while size > 127:
            length.append(size & 127 | 128)
            size >>= 7
        data = b"[" + bytes([*length, size]) + data
    # Other tests' tools may have raised the limit, and not put it back yet.
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000)
    try:
        with pytest.raises(DeserializationError):
            decode(data)
    finally:
        sys.setrecursionlimit(before)
