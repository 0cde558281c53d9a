"""RocketMQ Connect's own transforms, which do here what their names say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from headrace.connect.records import SourceRecord
from headrace.connect.schema import INT32, STRING, Schema, struct
from headrace.connect.transforms import Transform
from headrace.connect.transforms.field_names import (
    ChangeCaseKey,
    ChangeCaseValue,
    PatternRenameValue,
)
from headrace.connect.transforms.pattern_filter import PatternFilterKey, PatternFilterValue
from headrace.connect.transforms.set_null import SetNullKey, SetNullValue
from headrace.errors import ConnectorConfigError, TransformError


def of(kind: type[Transform], **texts: str) -> Transform:
    made = kind()
    made.configure(kind.config.parse({name.replace("_", "."): one for name, one in texts.items()}))
    return made


def record(value: Any, schema: Schema | None = None, key: Any = None) -> SourceRecord:
    return SourceRecord(
        partition={}, offset={}, topic="t", value=value, value_schema=schema, key=key
    )


def changed(transform: Transform, given: SourceRecord) -> SourceRecord:
    made = transform.apply(given)
    assert isinstance(made, SourceRecord)
    return made


CASES = {
    "LOWER_CAMEL": "firstName",
    "UPPER_CAMEL": "FirstName",
    "LOWER_UNDERSCORE": "first_name",
    "UPPER_UNDERSCORE": "FIRST_NAME",
    "LOWER_HYPHEN": "first-name",
}


@pytest.mark.parametrize("before", CASES)
@pytest.mark.parametrize("after", CASES)
def test_change_case_knows_every_pair_of_cases(before: str, after: str) -> None:
    transform = ChangeCaseValue()
    transform.configure(ChangeCaseValue.config.parse({"from": before, "to": after}))
    made = changed(transform, record({CASES[before]: 1}))
    assert made.value == {CASES[after]: 1}


def test_change_case_renames_the_schema_too() -> None:
    transform = ChangeCaseValue()
    texts = {"from": "UPPER_UNDERSCORE", "to": "LOWER_CAMEL"}
    transform.configure(ChangeCaseValue.config.parse(texts))
    schema = struct({"FIRST_NAME": STRING, "AGE": INT32}, name="user", version=3, doc="A user.")
    made = changed(transform, record({"FIRST_NAME": "Ann", "AGE": 5}, schema))
    assert made.value == {"firstName": "Ann", "age": 5}
    expected = struct({"firstName": STRING, "age": INT32}, name="user", version=3, doc="A user.")
    assert made.value_schema == expected


def test_change_case_leaves_alone_what_has_no_fields() -> None:
    transform = ChangeCaseKey()
    transform.configure(ChangeCaseKey.config.parse({"from": "LOWER_CAMEL", "to": "UPPER_CAMEL"}))
    assert changed(transform, record({"aB": 1}, key="aB")).key == "aB"


def test_change_case_of_an_unknown_case_is_refused() -> None:
    with pytest.raises(ConnectorConfigError, match="to"):
        ChangeCaseValue.config.parse({"from": "LOWER_CAMEL", "to": "SPONGE"})


@pytest.mark.defect(7)
@pytest.mark.parametrize(
    ("value", "passes"),
    [
        ({"name": "test 1"}, False),
        ({"name": "a test"}, True),
        ({"other": "test 1"}, True),
        ({"name": 5}, True),
        ({"name": None}, True),
        ("test 1", True),
        (None, True),
    ],
)
def test_pattern_filter_looks_at_whole_texts_of_its_fields(value: Any, passes: bool) -> None:
    transform = of(PatternFilterValue, pattern="test.*", fields="name,title")
    assert (transform.apply(record(value)) is not None) is passes


def test_pattern_filter_looks_at_the_key() -> None:
    transform = of(PatternFilterKey, pattern="x", fields="id")
    assert transform.apply(record({"id": "x"}, key={"id": "y"})) is not None
    assert transform.apply(record({"id": "y"}, key={"id": "x"})) is None


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        ({"field.pattern": r"\.", "field.replacement": "_"}, ["a_b_c", "D"]),
        ({"field.pattern": "d", "field.replacement": "x"}, ["a.b.c", "x"]),
        (
            {"field.pattern": "d", "field.replacement": "x", "field.pattern.flags": "DOTALL"},
            ["a.b.c", "D"],
        ),
        ({"field.pattern": r"^(\w)\.(\w)", "field.replacement": "$2-$1"}, ["b-a.c", "D"]),
    ],
)
def test_pattern_rename_replaces_each_match(texts: Mapping[str, str], names: list[str]) -> None:
    transform = PatternRenameValue()
    transform.configure(PatternRenameValue.config.parse(texts))
    value = {"a.b.c": 1, "D": 2}
    assert list(changed(transform, record(value)).value) == names
    schema = struct({"a.b.c": INT32, "D": INT32}, name="n")
    made = changed(transform, record(value, schema))
    assert made.value == dict(zip(names, (1, 2), strict=True))
    assert made.value_schema == struct(dict.fromkeys(names, INT32), name="n")


def test_pattern_rename_names_a_group_that_is_missing() -> None:
    texts = {"field.pattern": "a", "field.replacement": "$2"}
    transform = PatternRenameValue()
    transform.configure(PatternRenameValue.config.parse(texts))
    with pytest.raises(TransformError, match="the group 2"):
        transform.apply(record({"a": 1}))


@pytest.mark.defect(9)
def test_set_null_takes_the_value_away() -> None:
    made = changed(SetNullValue(), record("x", STRING, key=1))
    assert (made.value, made.value_schema, made.key) == (None, None, 1)


@pytest.mark.defect(9)
def test_set_null_takes_the_key_away() -> None:
    made = changed(SetNullKey(), record("x", STRING, key=1))
    assert (made.key, made.value, made.value_schema) == (None, "x", STRING)
