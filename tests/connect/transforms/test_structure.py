from __future__ import annotations

from headrace.connect.schema import INT32, STRING, Schema, struct
from headrace.connect.transforms._structure import SchemaCache


def test_result_is_made_once_for_equal_schemas() -> None:
    made: list[Schema] = []

    def make(schema: Schema) -> Schema:
        made.append(schema)
        return schema.as_optional()

    cache = SchemaCache(make)
    first, same = struct({"a": INT32}), struct({"a": INT32})
    assert cache[first] is cache[same] is cache[first]
    assert len(made) == 1
    assert cache[struct({"a": STRING})].optional
    assert len(made) == 2


def test_cache_keeps_the_last_ones_only() -> None:
    made: list[Schema] = []

    def make(schema: Schema) -> int:
        made.append(schema)
        return len(made)

    cache = SchemaCache(make, size=2)
    schemas = [struct({f"f{number}": INT32}) for number in range(4)]
    assert [cache[schema] for schema in schemas] == [1, 2, 3, 4]
    assert cache[schemas[3]] == 4
    assert cache[schemas[0]] == 5
