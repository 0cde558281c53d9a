"""Bytes that a client may write are never run: each way in, with a pickle that would tell."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace import StreamBuilder, TopologyTestDriver, serdes
from headrace.errors import DeserializationError, HeadraceError, SerializationError
from headrace.runtime.state.views import reader
from headrace.serdes.base import PickleSerde, StateSerde, travelling_with
from headrace.topology import SpoutCollector
from headrace.topology.shapes import state_shape
from headrace.transactions import (
    FieldsDeclarer,
    JournalSpout,
    StatefulBolt,
    TopicSink,
    TopicSpout,
    TransactionTopologyBuilder,
)
from tests.transactions.components import Pass
from tests.transactions.test_journal import Clicks

SECRET, ANOTHER = b"s" * 32, b"a" * 32

_ran: list[str] = []


class Odd(Clicks):
    """Emits what is no plain data."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("value")

    def next_tuple(self, collector: SpoutCollector) -> None:
        collector.emit([1 + 2j])


class Keeps(Pass, StatefulBolt):
    """Has a state."""

    def finish_batch(self) -> Any:
        return None

    def init_state(self, state: Any) -> None:
        del state


class Trap:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _ran.append, ("a stranger's code",)


@pytest.fixture(autouse=True)
def nothing_runs() -> Any:
    _ran.clear()
    yield
    assert not _ran


TRAP = pickle.dumps(Trap())
FORGED = {
    "plain pickle": TRAP,
    "pickle of an older state": b"P" + TRAP,
    "zeros for a signature": b"P" + bytes(16) + TRAP,
    "signed by another job": PickleSerde(ANOTHER).serialize(Trap()),
    "a signature of something else": PickleSerde(SECRET).serialize(1)[:17] + TRAP,
    "cut off": PickleSerde(SECRET).serialize(Trap())[:-1],
    "more behind it": PickleSerde(SECRET).serialize(1) + TRAP,
    "the tag alone": b"P",
}
OPENING: dict[str, Callable[[bytes], Any]] = {
    "pickle": PickleSerde(SECRET).deserialize,
    "state that may be pickled": StateSerde(pickles=True, secret=SECRET).deserialize,
    "state": serdes.state.deserialize,
    "nullable": serdes.nullable(PickleSerde(SECRET)).deserialize,
    "many": lambda data: serdes.pickle.deserialize_many(_array([data])),
}


def _array(values: list[bytes]) -> Any:
    import pyarrow as pa

    return pa.array(values, pa.binary())


@pytest.mark.parametrize("forged", FORGED)
def test_what_the_job_has_not_signed_is_not_opened(forged: str) -> None:
    for name, opened in OPENING.items():
        with pytest.raises(DeserializationError) as raised:
            opened(FORGED[forged])
        assert raised.value.hint, name


def test_a_serde_takes_the_secret_of_its_job_along() -> None:
    own = serdes.nullable(serdes.pickle)
    with travelling_with(lambda: SECRET):
        sent = pickle.dumps((own, StateSerde(pickles=True)))
    there, state = pickle.loads(sent)
    written = there.serialize(1 + 2j)
    assert serdes.nullable(PickleSerde(SECRET)).deserialize(written) == 1 + 2j
    assert state.deserialize(state.serialize(1 + 2j)) == 1 + 2j
    assert StateSerde(pickles=True, secret=SECRET).deserialize(state.serialize({1j})) == {1j}
    with pytest.raises(DeserializationError):
        own.deserialize(written)


def test_a_job_of_plain_data_asks_for_no_secret() -> None:
    def refuse() -> bytes:
        raise AssertionError("nobody needs it")

    with travelling_with(refuse):
        pickle.dumps((serdes.state, serdes.json, serdes.plain))


def test_a_secret_that_could_be_guessed_is_refused() -> None:
    with pytest.raises(SerializationError, match="could be guessed"):
        PickleSerde(b"short")


def test_a_topic_with_a_forged_pickle_gives_a_bad_record() -> None:
    builder = StreamBuilder("reads")
    builder.source("in", serdes.pickle).sink("out", serdes.pickle)
    built = builder.build()
    for forged in FORGED.values():
        with TopologyTestDriver(built) as driver, pytest.raises(HeadraceError, match="not signed"):
            driver.input("in", serdes.bytes).pipe([forged])


def test_the_journal_of_a_spout_holds_plain_data() -> None:
    builder = TransactionTopologyBuilder("site", {"tuple.num.per.batch": 2})
    builder.set_spout("clicks", JournalSpout(Clicks()))
    builder.set_sink("out", TopicSink("out", serdes.json)).shuffle_grouping("clicks")
    reads, _ = builder.build().groups
    for forged in FORGED.values():
        with TopologyTestDriver(reads) as driver, pytest.raises(HeadraceError):
            driver.input("site-clicks-spoutTopic", serdes.bytes).pipe([forged])


def test_state_that_somebody_has_written_is_shown_as_it_lies_there() -> None:
    keeps = Keeps("word")
    for pickles in (False, True):
        builder = TransactionTopologyBuilder("site", {"topology.fall.back.on.pickle": pickles})
        builder.set_spout("lines", TopicSpout("lines", serdes.string, fields=["line"]))
        builder.set_bolt("keeps", keeps).shuffle_grouping("lines")
        (built,) = builder.build().groups
        operator = built.operator("keeps")
        for known in (operator, None):
            read = reader(known, state_shape(operator))
            assert [read(forged, "") for forged in FORGED.values()] == list(FORGED.values())
            assert read(serdes.state.serialize("plain"), "") == "plain"


def test_what_is_no_plain_data_is_refused_where_nobody_asked_for_pickles() -> None:
    for pickles in (False, True):
        config = {"topology.fall.back.on.pickle": pickles, "tuple.num.per.batch": 1}
        builder = TransactionTopologyBuilder("site", config)
        builder.set_spout("odd", JournalSpout(Odd()))
        builder.set_sink("out", TopicSink("out", serdes.json)).shuffle_grouping("odd")
        _, writes = builder.build().groups
        with TopologyTestDriver(writes) as driver:
            if pickles:
                driver.run_batches(1)
                (record,) = driver.output(
                    "site-odd-spoutTopic", StateSerde(pickles=True)
                ).read_all()
                assert record.value == 1 + 2j
            else:
                with pytest.raises(HeadraceError, match="complex is not plain data") as raised:
                    driver.run_batches(1)
                assert "topology.fall.back.on.pickle" in str(raised.value)


#: Who opens pickles, and why a client of a broker cannot have written them.
OPENERS = {
    "serdes/base.py": "it looks at the signature first",
    "runtime/bolts/bolts.py": "frames go from task to task inside of Spark",
    "runtime/user_code.py": "so do the failures of tasks",
    "spark/statistics.py": "the plan comes from the driver, with the job",
    "spark/ticks.py": "so do the offsets of a batch",
    "connect/data/engine.py": "from the standard input that the worker has made",
    "transactions/components.py": "from a folder that only this user can write to",
}


def test_nobody_else_opens_pickles() -> None:
    root = Path(headrace.__file__).parent
    found = {}
    for path in root.rglob("*.py"):
        text = path.read_text()
        if not any(word in text for word in ("pickle", "eval", "marshal", "shelve", "dill")):
            continue
        for node in ast.walk(ast.parse(text)):
            name = getattr(node, "attr", None) or getattr(node, "id", None)
            holder = getattr(getattr(node, "value", None), "id", "")
            opens = name in ("load", "loads", "Unpickler") and "pickle" in holder
            if opens or name in ("eval", "marshal", "shelve", "dill"):
                found[str(path.relative_to(root))] = name
    assert set(found) == set(OPENERS), found
