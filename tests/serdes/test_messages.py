from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from headrace import serdes
from headrace.errors import DeserializationError
from headrace.keys import properties_of_key
from headrace.serdes import Deserializer, Keyed, Serializer, as_deserializer, as_serializer


def columns(messages: Sequence[Mapping[str, str]]) -> serdes.PropertyColumns:
    def column(name: str) -> pa.BinaryArray:
        found = [message.get(name) for message in messages]
        return pa.array([None if one is None else one.encode() for one in found], pa.binary())

    return column


def read_both_ways(
    deserializer: Deserializer[Any, Any], bodies: list[bytes], properties: list[dict[str, str]]
) -> list[tuple[Any, Any]]:
    keys, values = deserializer.deserialize_many(pa.array(bodies, pa.binary()), columns(properties))
    many = list(zip(keys or [None] * len(values), values, strict=True))
    single = [deserializer.deserialize(b, p) for b, p in zip(bodies, properties, strict=True)]
    assert many == single
    return many


def read_pair(body: bytes) -> Keyed[str, int]:
    key, value = body.decode().split("=")
    return Keyed(key, int(value))


def test_a_serde_gives_no_key() -> None:
    reader = as_deserializer(serdes.string)
    keys, values = reader.deserialize_many(pa.array([b"a"]), columns([{"KEYS": "k"}]))
    assert (keys, values) == (None, ["a"])
    assert reader.deserialize(b"a", {"KEYS": "k"}) == (None, "a")


def test_a_callable_may_give_the_key() -> None:
    assert read_both_ways(as_deserializer(read_pair), [b"a=1", b"b=2"], [{}, {}]) == [
        ("a", 1),
        ("b", 2),
    ]


def test_a_callable_may_give_keys_for_some() -> None:
    reader = as_deserializer(lambda body: Keyed(1, body) if body == b"x" else body)
    assert read_both_ways(reader, [b"x", b"y"], [{}, {}]) == [(1, b"x"), (None, b"y")]


def test_a_pair_that_is_not_keyed_is_a_value() -> None:
    assert read_both_ways(as_deserializer(lambda body: (1, body)), [b"x"], [{}]) == [
        (None, (1, b"x"))
    ]


@pytest.mark.parametrize("key", ["word", "", "a\x01b"])
def test_with_key_reads_back_what_a_sink_wrote(key: str) -> None:
    reader = serdes.with_key(serdes.int)
    bodies = [serdes.int.serialize(n) for n in (1, 2)]
    properties = [properties_of_key(key), properties_of_key("other")]
    assert read_both_ways(reader, bodies, properties) == [(key, 1), ("other", 2)]


def test_with_key_reads_keys_of_the_type_it_was_given() -> None:
    reader = serdes.with_key(serdes.int, of=tuple)
    body = serdes.int.serialize(5)
    assert read_both_ways(reader, [body], [properties_of_key(("a", 1))]) == [(("a", 1), 5)]


@pytest.mark.parametrize(("key", "what"), [(None, "no key"), (1, "a key of type int")])
def test_with_key_refuses_other_keys(key: Any, what: str) -> None:
    reader = serdes.with_key(serdes.string)
    with pytest.raises(DeserializationError, match=what):
        reader.deserialize(b"", properties_of_key(key))
    with pytest.raises(DeserializationError, match=what):
        reader.deserialize_many(pa.array([b""]), columns([properties_of_key(key)]))


def test_with_key_of_object_takes_every_message() -> None:
    reader = serdes.with_key(serdes.string, of=object)
    properties = [properties_of_key(key) for key in (None, 1, "a")]
    assert read_both_ways(reader, [b"x"] * 3, properties) == [(None, "x"), (1, "x"), ("a", "x")]


class TagReader(Deserializer[str, bytes]):
    def deserialize(self, body: bytes, properties: Mapping[str, str]) -> Keyed[str, bytes]:
        return Keyed(properties.get("KEYS", "none"), body)


def test_a_deserializer_of_ones_own_reads_properties() -> None:
    assert as_deserializer(TagReader()).deserialize(b"x", {"KEYS": "k"}) == ("k", b"x")
    assert read_both_ways(TagReader(), [b"x", b"y"], [{"KEYS": "k"}, {}]) == [
        ("k", b"x"),
        ("none", b"y"),
    ]


def test_a_serializer_takes_the_value_or_key_and_value() -> None:
    by_value = as_serializer(lambda value: value.encode())
    by_pair = as_serializer(lambda key, value: f"{key}:{value}".encode())
    by_serde = as_serializer(serdes.string)
    for serializer, expected in ((by_value, b"v"), (by_pair, b"k:v"), (by_serde, b"v")):
        assert serializer.serialize("k", "v") == expected
        assert serializer.serialize_many(["k"], ["v"]).to_pylist() == [expected]


def test_optional_parameters_do_not_make_a_serializer_take_the_key() -> None:
    def write(value: str, encoding: str = "utf-8") -> bytes:
        return value.encode(encoding)

    assert as_serializer(write).serialize("k", "v") == b"v"


class Both(Serializer[str, str]):
    def serialize(self, key: str, value: str) -> bytes:
        return f"{key}{value}".encode()


def test_a_serializer_of_ones_own_writes_many() -> None:
    assert as_serializer(Both()).serialize_many(["a"], ["b"]).to_pylist() == [b"ab"]


def test_what_is_neither_serde_nor_callable_is_refused() -> None:
    with pytest.raises(TypeError, match="a deserializer is a serde or a callable"):
        as_deserializer("utf-8")
    with pytest.raises(TypeError, match="a serializer is a serde or a callable"):
        as_serializer(3)


@pytest.mark.parametrize(
    "adapter",
    [as_deserializer(serdes.json), serdes.with_key(serdes.json), as_serializer(serdes.int)],
)
def test_adapters_travel_to_other_processes(adapter: object) -> None:
    assert repr(pickle.loads(pickle.dumps(adapter))) == repr(adapter)
