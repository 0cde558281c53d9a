from __future__ import annotations

import logging

import pyarrow as pa
import pytest

from headrace.connect.records import Header, SourceBatch
from headrace.errors import RetriableError, SerializationError
from tests.connect.handling import functions
from tests.connect.handling.parts import Pauses, record, source

FUNCTION = "tests.connect.handling.functions"


def values(rows: pa.RecordBatch) -> list[bytes | None]:
    found: list[bytes | None] = rows.column("value").to_pylist()
    return found


def test_record_becomes_a_row_with_its_position() -> None:
    one = record(key=b"k", headers=(Header("user", "Ann"), Header("n", 5)), timestamp_ms=7, queue=2)
    encoded = source().encode([one])
    assert encoded.rows.to_pylist() == [
        {
            "topic": "lines",
            "queue": 2,
            "key": b"k",
            "value": b"hello",
            "properties": [("user", "Ann"), ("n", "5")],
            "timestamp": 7,
        }
    ]
    assert (list(encoded.ends), list(encoded.positions)) == ([1], [({"file": "a"}, {"n": 1})])


@pytest.mark.defect(7)
def test_record_that_a_transform_drops_leaves_its_position() -> None:
    chain = source(
        transforms="f", transforms_f_type="PatternFilter$Value", transforms_f_pattern="test.*",
        transforms_f_fields="name",
    )  # fmt: skip
    polled = [
        record({"name": name}, offset={"n": at})
        for at, name in enumerate(["test 1", "Ann", "test 2"])
    ]
    encoded = chain.encode(polled)
    assert values(encoded.rows) == [b'{"name":"Ann"}']
    assert list(encoded.ends) == [0, 1, 1]
    assert [offset for _, offset in encoded.positions] == [{"n": 0}, {"n": 1}, {"n": 2}]


@pytest.mark.defect(7)
def test_poll_whose_records_are_all_dropped_gives_no_rows() -> None:
    encoded = source(transforms="f", transforms_f_type="Filter").encode([record(), record()])
    assert (encoded.rows.num_rows, list(encoded.ends)) == (0, [0, 0])


def test_function_may_give_several_records() -> None:
    chain = source(
        transforms="f", transforms_f_type="PythonFunction",
        transforms_f_function=f"{FUNCTION}:twice",
    )  # fmt: skip
    encoded = chain.encode([record("a"), record("b")])
    assert values(encoded.rows) == [b"a", b"a again", b"b", b"b again"]
    assert list(encoded.ends) == [2, 4]


def test_transforms_run_in_the_order_of_the_config() -> None:
    chain = source(
        transforms="b,a",
        transforms_a_type="HoistField$Value", transforms_a_field="outer",
        transforms_b_type="HoistField$Value", transforms_b_field="inner",
    )  # fmt: skip
    assert values(chain.encode([record(1)]).rows) == [b'{"outer":{"inner":1}}']


@pytest.mark.parametrize(("negate", "expected"), [("false", [b"a"]), ("true", [b"b"])])
def test_predicate_says_which_records_a_transform_sees(negate: str, expected: list[bytes]) -> None:
    chain = source(
        transforms="f", transforms_f_type="Filter", transforms_f_predicate="p",
        transforms_f_negate=negate, predicates="p", predicates_p_type="HasHeaderKey",
        predicates_p_name="drop",
    )  # fmt: skip
    polled = [record("a"), record("b", headers=(Header("drop", "1"),))]
    assert values(chain.encode(polled).rows) == expected


def test_failure_ends_the_task_and_says_how_to_go_on() -> None:
    chain = source(
        transforms="f", transforms_f_type="PythonFunction",
        transforms_f_function=f"{FUNCTION}:refuse_bad",
    )  # fmt: skip
    with pytest.raises(ValueError, match="swordfish") as raised:
        chain.encode([record("good"), record("bad")])
    (note,) = raised.value.__notes__
    assert note.startswith(
        "Tolerance exceeded in stage TRANSFORMATION of headrace.connect.transforms.python_function"
    )
    assert note.endswith("errors.tolerance=all would go on")


def test_tolerated_failure_leaves_the_record_out_but_not_its_position() -> None:
    chain = source(
        errors_tolerance="all", transforms="f", transforms_f_type="PythonFunction",
        transforms_f_function=f"{FUNCTION}:refuse_bad",
    )  # fmt: skip
    encoded = chain.encode([record("a"), record("bad"), record("b")])
    assert values(encoded.rows) == [b"a", b"b"]
    assert list(encoded.ends) == [1, 1, 2]
    counted = chain.handling.counters.statistics()
    assert (counted.failures, counted.errors, counted.skipped) == (1, 1, 1)
    assert counted.last_error_ms > 0


def test_transform_that_gives_no_record_is_refused() -> None:
    chain = source(
        transforms="f", transforms_f_type="PythonFunction", transforms_f_function=f"{FUNCTION}:text"
    )  # fmt: skip
    with pytest.raises(Exception, match="gave a str"):
        chain.encode([record()])


def test_transform_is_tried_again_until_it_works() -> None:
    functions.calls.clear()
    pauses = Pauses()
    chain = source(
        pauses, errors_retry_timeout="-1", transforms="f", transforms_f_type="PythonFunction",
        transforms_f_function=f"{FUNCTION}:away",
    )  # fmt: skip
    assert values(chain.encode([record("x")]).rows) == [b"x"]
    assert functions.calls == ["x"] * 4
    assert len(pauses.taken) == 3
    assert chain.handling.counters.retries == 3


def test_poll_is_tried_again_too() -> None:
    class Polled:
        left = 2

        def poll(self) -> None:
            if self.left:
                self.left -= 1
                raise RetriableError("away")

    pauses = Pauses()
    assert source(pauses).poll(Polled()) is None  # type: ignore[arg-type]
    assert len(pauses.taken) == 2


def batch(column: pa.Array) -> SourceBatch:
    return SourceBatch(partition={"f": 1}, offset={"n": 9}, topic="lines", value=column)


def test_columns_pass_without_an_object_per_record() -> None:
    encoded = source().encode(batch(pa.array(["a", None, "c"])))
    assert values(encoded.rows) == [b"a", None, b"c"]
    assert (list(encoded.ends), list(encoded.positions)) == ([3], [({"f": 1}, {"n": 9})])


def test_columns_become_records_for_a_transform() -> None:
    chain = source(transforms="h", transforms_h_type="HoistField$Value", transforms_h_field="line")
    encoded = chain.encode(batch(pa.array(["a", "b"])))
    assert values(encoded.rows) == [b'{"line":"a"}', b'{"line":"b"}']
    assert list(encoded.ends) == [2]


def test_column_with_a_bad_value_is_sifted_one_by_one() -> None:
    texts = {"value_converter": "IntegerConverter", "errors_tolerance": "all"}
    encoded = source(**texts).encode(batch(pa.array([1, 2**40, 3])))
    assert values(encoded.rows) == [b"\0\0\0\1", b"\0\0\0\3"]
    with pytest.raises(SerializationError):
        source(value_converter="IntegerConverter").encode(batch(pa.array([1, 2**40, 3])))


def test_log_has_the_record_only_when_asked(caplog: pytest.LogCaptureFixture) -> None:
    texts = {
        "errors_tolerance": "all", "errors_log_enable": "true", "transforms": "f",
        "transforms_f_type": "PythonFunction", "transforms_f_function": f"{FUNCTION}:refuse_bad",
    }  # fmt: skip
    with caplog.at_level(logging.ERROR):
        source(**texts).encode([record("bad")])
        source(**texts, errors_log_include_messages="true").encode([record("bad", key="its key")])
    short, long = caplog.messages
    assert short.startswith("lines-1: a record of {'file': 'a'} at {'n': 1} failed in stage")
    assert "its key" not in short
    assert "its key" in long
