"""The table in memory: last write wins, deletes, merges, against a plain dict."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings, strategies as st

from headrace.client import MessageQueue
from headrace.client._table import KeyedRows, RowIndex, digests_of
from headrace.keys import properties_of_key
from headrace.protocol.columns import MessageColumns, decode_columns
from headrace.protocol.properties import encode_properties
from headrace.protocol.records import encode_records

ONE, OTHER = (MessageQueue("t", "b", number) for number in range(2))


def columns(*pairs: tuple[object, bytes]) -> MessageColumns:
    properties = [encode_properties(properties_of_key(key)) for key, _ in pairs]
    records = encode_records("t", 0, [body for _, body in pairs], pa.array(properties, pa.binary()))
    return decode_columns(records.data)


def text(key: str) -> bytes:
    return key.encode()


keys = st.sampled_from([f"k{number}" for number in range(40)])
blocks = st.lists(st.tuples(keys, st.binary(max_size=3)), max_size=30)


@settings(deadline=None)
@given(st.lists(blocks, max_size=60))
def test_a_table_is_what_a_dict_would_be(given_blocks: list[list[tuple[str, bytes]]]) -> None:
    table, model = KeyedRows(), dict[str, bytes]()
    for block in given_blocks:
        table.apply(ONE, columns(*block))
        for key, value in block:
            if value:
                model[key] = value
            else:
                model.pop(key, None)
        assert len(table) == len(model)
    assert dict(table.items()) == model
    assert {key: table.get(text(key)) for key in model} == model
    assert table.get(b"absent") is None


def test_keys_that_are_no_text_and_prefixes() -> None:
    table = KeyedRows()
    table.apply(ONE, columns(("user.1", b"a"), (("b", 2), b"b"), ("user.2", b"c"), (7, b"d")))
    assert dict(table.items()) == {"user.1": b"a", ("b", 2): b"b", "user.2": b"c", 7: b"d"}
    assert dict(table.items(b"user.")) == {"user.1": b"a", "user.2": b"c"}
    table.apply(ONE, columns(((("b", 2)), b"")))
    assert (("b", 2) in dict(table.items()), len(table)) == (False, 3)


def test_rip_58s_marker_deletes_and_messages_without_a_key_are_left_out() -> None:
    table = KeyedRows()
    table.apply(ONE, columns(("k", b"v")))
    raws = [b"KEYS\x01k\x02empty_body\x01true\x02", b""]
    records = encode_records("t", 0, [b"marker", b"stray"], pa.array(raws, pa.binary()))
    table.apply(ONE, decode_columns(records.data))
    assert (len(table), table.without_key) == (0, 1)


def test_many_small_blocks_are_put_together_and_dead_rows_are_let_go() -> None:
    table = KeyedRows()
    for number in range(1_500):
        table.apply(ONE, columns((f"k{number % 10}", b"%d" % number)))
    assert dict(table.items()) == {f"k{n % 10}": b"%d" % n for n in range(1_490, 1_500)}
    assert len(table._blocks) <= 33
    table, model = KeyedRows(), dict[str, bytes]()
    for version in range(5):
        block = [(f"k{number}", b"v%d" % version) for number in range(0, 50_000, 1 + version % 2)]
        table.apply(OTHER, columns(*block))
        model.update(block)
    # 200,000 rows came; what is out of date is less than the larger of these.
    assert table._dead <= max(65_536, len(table))
    assert dict(table.items()) == model


def test_a_queue_that_was_made_anew_takes_its_keys_along() -> None:
    table = KeyedRows()
    table.apply(ONE, columns(("a", b"1"), ("b", b"1")))
    table.apply(OTHER, columns(("c", b"1")))
    table.apply(ONE, columns(("a", b"2")))
    table.reset(ONE)
    assert dict(table.items()) == {"c": b"1"}
    table.apply(ONE, columns(("b", b"3")))
    assert dict(table.items()) == {"c": b"1", "b": b"3"}


def test_the_index_finds_what_it_holds_at_any_size() -> None:
    index = RowIndex()
    names = [b"%d" % number for number in range(50_000)]
    for begin in range(0, len(names), 7_001):
        part = names[begin : begin + 7_001]
        assert len(index.put(digests_of(part), np.arange(begin, begin + len(part)))) == 0
    assert index.find(digests_of(names)).tolist() == list(range(len(names)))
    removed = index.remove(digests_of(names[::2]))
    assert sorted(removed.tolist()) == list(range(0, len(names), 2))
    assert index.find(digests_of(names[:4])).tolist() == [-1, 1, -1, 3]
    assert len(index) == len(names) // 2
    # A removed key may come again, in its old slot or in another.
    index.put(digests_of(names[:1]), np.array([7]))
    assert index.find(digests_of(names[:1])).tolist() == [7]
    # 24 bytes a slot, of which 35 to 80 of 100 are used unless keys were deleted.
    for count in (4_000, 23_000, 45_000, 50_000):
        full = RowIndex()
        full.put(digests_of(names[:count]), np.arange(count))
        assert 30 <= full.size / count <= 70
