"""Schemas."""

from __future__ import annotations

import copy
import pickle

import pytest

from headrace.connect.schema import (
    INT32,
    INT64,
    NO_DEFAULT,
    STRING,
    Field,
    Schema,
    Type,
    array,
    mapping,
    struct,
)
from headrace.errors import SchemaError


def test_schemas_with_the_same_content_are_equal_and_hash_alike() -> None:
    first = struct({"a": array(INT32), "b": STRING.with_default(["x"])}, name="s")
    second = struct({"a": array(INT32), "b": STRING.with_default(["x"])}, name="s")
    assert first == second
    assert hash(first) == hash(second)
    assert first != second.as_optional()


def test_absent_default_stays_absent_in_another_process() -> None:
    assert pickle.loads(pickle.dumps(INT64)).default is NO_DEFAULT
    assert copy.deepcopy(INT64).default is NO_DEFAULT
    assert INT64.with_default(None).has_default


def test_unknown_field_is_named_with_those_that_there_are() -> None:
    with pytest.raises(SchemaError, match="It has: id, name"):
        struct({"id": INT64, "name": STRING}).field("nmae")


def test_field_that_stands_twice_is_refused() -> None:
    with pytest.raises(SchemaError, match="the field 'a' twice"):
        Schema(Type.STRUCT, fields=(Field("a", INT32), Field("a", INT32)))


@pytest.mark.parametrize("kind", [Type.ARRAY, Type.MAP])
def test_container_without_items_is_refused(kind: Type) -> None:
    with pytest.raises(SchemaError, match="items"):
        Schema(kind)


def test_schema_prints_as_people_write_it() -> None:
    assert str(mapping(STRING, array(INT32)).as_optional()) == "map<string, array<int32>>?"
    assert str(struct({"id": INT64}, name="u", version=3)) == "struct u v3 {id: int64}"
