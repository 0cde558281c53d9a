from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from headrace.connect.columns import PACKED
from headrace.connect.converters import JsonConverter
from headrace.connect.handling import SinkChain
from headrace.connect.records import Header, Queue
from headrace.errors import DeserializationError, ProtocolError, RetriableError
from tests.connect.handling.parts import ColumnStore, Pauses, Store, rows, sink

JSON = {"value_converter": "JsonConverter", "value_converter_schemas_enable": "false"}


def json_sink(**texts: str) -> SinkChain:
    return sink(**JSON, **texts)


def letters(chain: SinkChain) -> list[dict[str, Any]]:
    found = chain.take_letters()
    return [] if found is None else found.to_pylist()


def test_rows_become_records() -> None:
    class Seen(Store):
        def put(self, records: Any) -> None:
            self.kept += records

    task = Seen()
    sink().deliver(rows(b"a", None), task)
    first, second = task.kept
    assert (first.topic, first.queue, first.offset) == (
        "orders",
        Queue("orders", "broker-a", 3),
        100,
    )
    assert (first.key, first.value, first.timestamp_ms) == ("k0", "a", 1_700_000_000_000)
    assert first.headers == (Header("user", "Ann"),)
    assert (second.value, second.offset) == (None, 101)


@pytest.mark.defect(7)
def test_bad_value_is_left_out_and_the_others_arrive() -> None:
    task, chain = Store(), json_sink(errors_tolerance="all")
    chain.deliver(rows(b'{"n":1}', b"{bad", b'{"n":2}'), task)
    assert task.calls == [[{"n": 1}, {"n": 2}]]
    assert chain.handling.counters.skipped == 1


@pytest.mark.parametrize("converter", [json_sink, sink])
def test_value_that_cannot_be_unpacked_is_bad_whatever_the_converter(
    converter: Callable[..., SinkChain],
) -> None:
    found = rows(b'{"n":1}', b"no zlib", b'{"n":2}')
    found = found.append_column(PACKED, pa.array([None, 1, None], PACKED.type))
    task, chain = Store(), converter(errors_tolerance="all")
    chain.deliver(found, task)
    assert (len(task.kept), chain.handling.counters.skipped) == (2, 1)
    with pytest.raises(ProtocolError, match="zlib body cannot be unpacked"):
        converter().deliver(found, Store())


@pytest.mark.defect(7)
def test_put_is_not_called_when_nothing_is_left() -> None:
    task = Store()
    json_sink(errors_tolerance="all").deliver(rows(b"{bad"), task)
    sink(transforms="f", transforms_f_type="Filter").deliver(rows(b"a", b"b"), task)
    assert task.calls == []


def test_bad_value_ends_the_task_by_default() -> None:
    with pytest.raises(DeserializationError, match="orders"):
        json_sink().deliver(rows(b"{bad"), Store())


@pytest.mark.defect(6)
def test_dead_letter_is_a_copy_for_its_own_topic_that_says_what_happened() -> None:
    chain = json_sink(errors_tolerance="all", errors_deadletterqueue_topic_name="dead")
    chain.deliver(rows(b"{bad"), Store())
    (letter,) = letters(chain)
    assert (letter["topic"], letter["queue"]) == ("dead", None)
    assert (letter["key"], letter["value"]) == (b"k0", b"{bad")
    assert letter["timestamp"] == 1_700_000_000_000
    said = dict(letter["properties"])
    assert said.pop("user") == "Ann"
    trace = said.pop("__connect.errors.exception.stacktrace")
    message = said.pop("__connect.errors.exception.message")
    assert "JsonConverter cannot read the value" in message
    assert trace.startswith("Traceback") or "Error" in trace
    prefix = "__connect.errors."
    assert said == {
        f"{prefix}topic": "orders",
        f"{prefix}broker": "broker-a",
        f"{prefix}partition": "3",
        f"{prefix}offset": "100",
        f"{prefix}connector.name": "store",
        f"{prefix}task.id": "2",
        f"{prefix}stage": "VALUE_CONVERTER",
        f"{prefix}class.name": f"{JsonConverter.__module__}.JsonConverter",
        f"{prefix}exception.class.name": "headrace.errors.DeserializationError",
    }


@pytest.mark.defect(6)
def test_dead_letters_are_given_once_and_counted_by_their_own_name() -> None:
    chain = json_sink(errors_tolerance="all", errors_deadletterqueue_topic_name="dead")
    chain.deliver(rows(b"{bad", b"{worse"), Store())
    assert (len(letters(chain)), letters(chain)) == (2, [])
    metrics = chain.handling.counters.statistics().metrics()
    assert metrics["deadletterqueue-produce-requests"] == 2
    assert metrics["deadletterqueue-produce-failures"] == 0


def test_dead_letter_may_go_without_context() -> None:
    chain = json_sink(
        errors_tolerance="all", errors_deadletterqueue_topic_name="dead",
        errors_deadletterqueue_context_headers_enable="false",
    )  # fmt: skip
    chain.deliver(rows(b"{bad"), Store())
    assert letters(chain)[0]["properties"] == [("user", "Ann")]


def test_dead_letter_has_what_was_read_not_what_a_transform_made() -> None:
    chain = json_sink(
        errors_tolerance="all", errors_deadletterqueue_topic_name="dead", transforms="a,b",
        transforms_a_type="HoistField$Value", transforms_a_field="x",
        transforms_b_type="ValueToKey", transforms_b_fields="x",
        predicates="p", predicates_p_type="HasHeaderKey", predicates_p_name="other",
        transforms_a_predicate="p",
    )  # fmt: skip
    task = Store()
    chain.deliver(rows(b"5", b'{"x":1}'), task)
    (letter,) = letters(chain)
    assert letter["value"] == b"5"
    assert dict(letter["properties"])["__connect.errors.stage"] == "TRANSFORMATION"
    assert task.kept == [{"x": 1}]


def test_topic_that_a_transform_gives_leaves_the_queue_alone() -> None:
    class Seen(Store):
        def put(self, records: Any) -> None:
            self.kept += [(one.topic, one.queue.topic) for one in records]

    task = Seen()
    chain = sink(
        transforms="r", transforms_r_type="RegexRouter", transforms_r_regex="(.*)",
        transforms_r_replacement="new-$1",
    )  # fmt: skip
    chain.deliver(rows(b"a"), task)
    assert task.kept == [("new-orders", "orders")]


def test_columns_reach_a_task_that_takes_them() -> None:
    task = ColumnStore()
    sink().deliver(rows(b"a", b"b"), task)
    assert task.calls == [["a", "b"]]


def test_put_that_asks_for_more_time_gets_the_same_records_again() -> None:
    task, pauses = Store(retriable=3), Pauses()
    sink(pauses).deliver(rows(b"a", b"b"), task)
    assert task.calls == [["a", "b"]] * 4
    assert len(pauses.taken) == 3


def test_put_is_not_tried_again_beyond_its_budget() -> None:
    with pytest.raises(RetriableError):
        sink(errors_retry_timeout="0").deliver(rows(b"a"), Store(retriable=1))


def test_refused_record_ends_the_task_by_default() -> None:
    with pytest.raises(ValueError, match="no 'b' here") as raised:
        sink(errors_tolerance="all").deliver(rows(b"a", b"b"), Store("b"))
    assert "errors.put.tolerance=all" in raised.value.__notes__[0]


@pytest.mark.parametrize("kind", [Store, ColumnStore])
def test_refused_record_is_found_by_halving(kind: type[Store]) -> None:
    chain = sink(errors_put_tolerance="all", errors_deadletterqueue_topic_name="dead")
    task = kind("d")
    chain.deliver(rows(*(letter.encode() for letter in "abcdefgh")), task)
    assert sorted(task.kept) == list("abcefgh")
    (letter,) = letters(chain)
    assert letter["value"] == b"d"
    said = dict(letter["properties"])
    assert said["__connect.errors.stage"] == "TASK_PUT"
    assert said["__connect.errors.offset"] == "103"


@given(refused=st.sets(st.integers(0, 19)), size=st.integers(0, 20))
@settings(max_examples=60, deadline=None)
def test_every_refused_record_and_no_other_becomes_a_dead_letter(
    refused: set[int], size: int
) -> None:
    chain = sink(errors_put_tolerance="all", errors_deadletterqueue_topic_name="dead")
    task = Store(*(str(one) for one in refused))
    chain.deliver(rows(*(str(one).encode() for one in range(size))), task)
    assert {int(one) for one in task.kept} == set(range(size)) - refused
    assert [int(one["value"]) for one in letters(chain)] == sorted(
        one for one in refused if one < size
    )


def test_sink_that_is_away_makes_no_dead_letters() -> None:
    chain = sink(
        Pauses(most=2), errors_put_tolerance="all", errors_deadletterqueue_topic_name="dead"
    )
    with pytest.raises(RetriableError):
        chain.deliver(rows(b"a", b"b"), Store(retriable=100))
    assert letters(chain) == []


class Reporter(Store):
    """Reports what it does not like."""

    def __init__(self, chain: SinkChain) -> None:
        super().__init__()
        self.chain = chain
        self.late: list[Any] = []

    def put(self, records: Any) -> None:
        for one in records:
            if one.value == "bad":
                self.chain.report(self, one, ValueError("not nice"))
            self.late.append(one)


def test_task_may_report_a_bad_record_itself() -> None:
    chain = sink(errors_tolerance="all", errors_deadletterqueue_topic_name="dead")
    chain.deliver(rows(b"good", b"bad"), Reporter(chain))
    assert [one["value"] for one in letters(chain)] == [b"bad"]


def test_report_without_tolerance_is_raised() -> None:
    chain = sink()
    with pytest.raises(ValueError, match="not nice"):
        chain.deliver(rows(b"bad"), Reporter(chain))


def test_late_report_is_written_by_the_converters() -> None:
    chain = json_sink(errors_tolerance="all", errors_deadletterqueue_topic_name="dead")
    task = Reporter(chain)
    chain.deliver(rows(b'{"n":1}'), task)
    chain.deliver(rows(b'{"n":2}', offset=500), task)
    chain.report(task, task.late[0], ValueError("not nice after all"))
    (letter,) = letters(chain)
    assert (letter["key"], letter["value"]) == (b"k0", b'{"n":1}')
    assert dict(letter["properties"])["__connect.errors.offset"] == "100"
