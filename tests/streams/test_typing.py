"""Generics survive the chain: what follows is held by mypy, not by pytest."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, assert_type

import pytest

from headrace import (
    Accumulator,
    Keyed,
    KeyedStream,
    Stream,
    StreamBuilder,
    Table,
    WindowedStream,
    WindowedTable,
    max_,
    serdes,
    sum_,
    top,
    tumbling,
)
from headrace.columns import col
from headrace.streams import JoinedStream


class Average(Accumulator[int, float]):
    def __init__(self) -> None:
        self.total, self.count = 0, 0

    def add(self, value: int) -> None:
        self.total += value
        self.count += 1

    def result(self) -> float:
        return self.total / self.count


def read_keyed(body: bytes) -> Keyed[int, str]:
    return Keyed(len(body), body.decode())


def read_number(body: bytes) -> float:
    return float(body)


def test_sources_know_their_types() -> None:
    builder = StreamBuilder("job")
    assert_type(builder.source("a", serdes.string), Stream[None, str])
    assert_type(builder.source("b", read_keyed), Stream[int, str])
    assert_type(builder.source("c", read_number), Stream[None, float])
    assert_type(builder.source("d", lambda body: body.decode()), Stream[None, str])
    assert_type(builder.source("e", lambda body: Keyed(1, body.decode())), Stream[int, str])
    assert_type(builder.source("f", serdes.with_key(serdes.int)), Stream[str, int])
    assert_type(builder.source("g", serdes.with_key(serdes.int, of=int)), Stream[int, int])
    assert_type(builder.source("h", serdes.json), Stream[None, Any])
    assert_type(builder.source("i", Order), Stream[None, Order])
    assert_type(builder.source("j", serdes.with_key(Order, of=int)), Stream[int, Order])
    assert_type(builder.table("k", Order), Table[str, Order])


def test_types_follow_the_chain_through_lambdas() -> None:
    lines = StreamBuilder("job").source("lines", serdes.string)
    words = lines.flat_map_values(lambda line: line.lower().split())
    assert_type(words, Stream[None, str])
    assert_type(words.map(lambda key, word: (word, len(word))), Stream[str, int])
    assert_type(words.map(lambda word: (word, len(word))), Stream[str, int])
    assert_type(words.flat_map(lambda word: [(word, 1.5)]), Stream[str, float])
    assert_type(words.flat_map(lambda key, word: [(word, 1.5)]), Stream[str, float])
    keyed = words.key_by(lambda word: word)
    assert_type(keyed, KeyedStream[str, str])
    assert_type(keyed.where(lambda word: len(word) > 1), KeyedStream[str, str])
    assert_type(keyed.where(lambda key, word: key != word), KeyedStream[str, str])
    assert_type(lines.where(col("value") != ""), Stream[None, str])
    assert_type(keyed.peek(print), KeyedStream[str, str])
    assert_type(keyed.map_values(len), KeyedStream[str, int])
    assert_type(keyed.flat_map_values(lambda word: [word.encode()]), KeyedStream[str, bytes])
    assert_type(keyed.map(lambda key, word: (1, word)), Stream[int, str])


def test_aggregates_know_their_results() -> None:
    words = StreamBuilder("job").source("words", serdes.string).key_by(lambda word: word[0])
    assert_type(words.count(), Table[str, int])
    assert_type(words.count().to_stream(), Stream[str, int])
    assert_type(words.map_values(len).sum(), Table[str, int])
    assert_type(words.sum(len), Table[str, int])
    assert_type(words.sum(Decimal), Table[str, Decimal])
    assert_type(words.count_distinct(), Table[str, int])
    assert_type(words.avg(len), Table[str, float])
    assert_type(words.avg(Decimal), Table[str, Decimal])
    assert_type(words.map_values(len).avg(), Table[str, float])
    assert_type(words.map_values(Decimal).avg(), Table[str, Decimal])
    assert_type(words.min(), Table[str, str])
    assert_type(words.max(len), Table[str, str])
    assert_type(words.top(3, len), Table[str, list[str]])
    row = words.agg(max_(), size=sum_(len), best=top(3, lambda word: word.lower()))
    assert_type(row, Table[str, dict[str, Any]])
    assert_type(words.collect(distinct=True, limit=2), Table[str, list[str]])
    assert_type(words.reduce(lambda left, right: left + right), Table[str, str])
    assert_type(words.map_values(len).aggregate(Average), Table[str, float])
    assert_type(words.map_values(len).aggregate(Average()), Table[str, float])
    assert_type(words.map_values(len).aggregate(lambda: Average()), Table[str, float])  # noqa: PLW0108


@dataclass
class Order:
    number: int
    item: str


@dataclass
class Item:
    name: str


def test_windows_know_their_results() -> None:
    orders = StreamBuilder("job").source("orders", serdes.with_key(serdes.json(Order)))
    windows = orders.group_by_key().window(tumbling(timedelta(days=1)))
    assert_type(windows, WindowedStream[str, Order])
    assert_type(windows.count(), WindowedTable[str, Order, int])
    assert_type(windows.count().to_stream(), Stream[str, int])
    assert_type(windows.count().late(), Stream[str, Order])
    assert_type(windows.sum(lambda order: order.number), WindowedTable[str, Order, int])
    assert_type(windows.avg(lambda order: order.number), WindowedTable[str, Order, float])
    assert_type(windows.max(lambda order: order.number), WindowedTable[str, Order, Order])
    assert_type(windows.collect().to_stream(), Stream[str, list[Order]])


def test_joins_of_streams_know_keys_and_sides() -> None:
    builder = StreamBuilder("job")
    orders = builder.source("orders", serdes.with_key(serdes.json(Order)))
    items = builder.source("items", serdes.with_key(serdes.json(Item)))
    inner = orders.join(items, lambda order, item: (order.number, item.name))
    assert_type(inner, JoinedStream[str, tuple[int, str]])
    by_item = orders.left_join(
        items,
        lambda order, item: (order, item),
        left_key=lambda order: order.number,
        right_key=lambda item: len(item.name),
        within=timedelta(hours=1),
    )
    assert_type(by_item, JoinedStream[int, tuple[Order, Item | None]])
    assert_type(
        by_item.where(lambda pair: pair[1] is None), JoinedStream[int, tuple[Order, Item | None]]
    )
    both = orders.outer_join(items, lambda order, item: (order, item))
    assert_type(both, JoinedStream[str, tuple[Order | None, Item | None]])
    chain = orders.join(items).within(timedelta(hours=1)).apply(lambda order, item: item.name)
    assert_type(chain, JoinedStream[str, str])
    with_key = orders.join(items, lambda key, order, item: (key, order.item, item.name))
    assert_type(with_key, KeyedStream[str, tuple[str, str, str]])


def test_joins_with_tables_know_keys_and_rows() -> None:
    builder = StreamBuilder("job")
    orders = builder.source("orders", serdes.with_key(serdes.json(Order)))
    items = builder.table("items", serdes.json(Item))
    everywhere = builder.global_table("all-items", serdes.json(Item))
    assert_type(orders.join(items, lambda order, item: item.name), KeyedStream[str, str])
    assert_type(orders.left_join(items, lambda order, item: item), KeyedStream[str, Item | None])
    looked_up = orders.join(
        everywhere, lambda order, item: item.name, left_key=lambda order: order.item
    )
    assert_type(looked_up, KeyedStream[str, str])
    rows = orders.to_table()
    assert_type(rows.join(items, lambda order, item: order.number), Table[str, int])
    assert_type(
        rows.outer_join(items, lambda order, item: (order, item)),
        Table[str, tuple[Order | None, Item | None]],
    )
    assert_type(
        rows.left_join(items, lambda order, item: item, foreign_key=lambda order: order.item),
        Table[str, Item | None],
    )
    assert_type(rows.map_values(lambda order: order.item).to_stream(), Stream[str, str])


def test_sinks_take_what_fits() -> None:
    words = StreamBuilder("job").source("words", serdes.string).key_by(str.lower)
    counts = words.count()
    counts.to_stream().sink("a", serdes.json)
    counts.to_stream().sink("b", serdes.int)
    counts.to_stream().sink("c", lambda count: str(count).encode())
    counts.to_stream().sink("d", lambda word, count: f"{word.upper()}{count}".encode())
    counts.sink("e", serdes.int)
    counts.sink("f", lambda count: str(count.bit_length()).encode())
    counts.sink("g", lambda word, count: f"{word.upper()}{count}".encode())
    counts.sink(lambda word, count: word.upper(), serdes.int, topics=["h", "i"])
    windows = words.window(tumbling(timedelta(days=1))).collect()
    windows.sink("j", lambda word, found: word.join(found).encode())


WRONG = """
from headrace import Accumulator, StreamBuilder, serdes

words = StreamBuilder("job").source("words", serdes.string).key_by(lambda word: word)

class Shortest(Accumulator[bytes, bytes]):
    def add(self, value: bytes) -> None: ...
    def result(self) -> bytes: return b""

words.count().sink("a", serdes.string)
words.aggregate(Shortest)
words.sum()
words.to_bytes()
words.sink("b", lambda word: word)
words.map_values(lambda word: word.nothing())
words.sink("c", serdes.string).map_values(len)
"""


@pytest.mark.filterwarnings("default")
def test_mypy_finds_what_does_not_fit(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    program = tmp_path / "wrong.py"
    program.write_text(WRONG)
    # What `make lint` has looked through already is not looked through again; a process of its own
    # leaves no million objects behind, which every look for garbage would go through.
    root = Path(__file__).parents[2]
    given = f"--config-file={root / 'pyproject.toml'}", f"--cache-dir={root / '.mypy_cache'}"
    command = [sys.executable, "-m", "mypy", str(program), *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    output = done.stdout
    assert done.returncode == 1, done.stderr
    lines = [line for line in output.splitlines() if "wrong.py" in line and ": error:" in line]
    found = {int(line.rsplit("wrong.py:", 1)[1].split(":")[0]) for line in lines}
    first = WRONG.splitlines().index('words.count().sink("a", serdes.string)') + 1
    assert found == set(range(first, first + 7)), output
