"""Converters are found by our names and by Kafka's."""

from __future__ import annotations

import pytest

from headrace.connect import converters
from headrace.connect.converters import Converter, HeaderConverter
from headrace.connect.plugins.catalog import Catalog

KAFKA = "org.apache.kafka.connect"
NAMES = [
    ("string", converters.StringConverter),
    ("StringConverter", converters.StringConverter),
    (f"{KAFKA}.storage.StringConverter", converters.StringConverter),
    (f"{KAFKA}.json.JsonConverter", converters.JsonConverter),
    (f"{KAFKA}.converters.ByteArrayConverter", converters.BytesConverter),
    ("ByteArrayConverter", converters.BytesConverter),
    (f"{KAFKA}.converters.ShortConverter", converters.ShortConverter),
    (f"{KAFKA}.converters.IntegerConverter", converters.IntegerConverter),
    (f"{KAFKA}.converters.LongConverter", converters.LongConverter),
    (f"{KAFKA}.converters.FloatConverter", converters.FloatConverter),
    (f"{KAFKA}.converters.DoubleConverter", converters.DoubleConverter),
    (f"{KAFKA}.converters.BooleanConverter", converters.BooleanConverter),
    ("avro", converters.AvroConverter),
    ("io.confluent.connect.protobuf.ProtobufConverter", converters.ProtobufConverter),
]
CATALOG = Catalog.installed()


@pytest.mark.parametrize(("name", "kind"), NAMES)
def test_converters_are_found(name: str, kind: type[Converter]) -> None:
    assert CATALOG.load(name, "converters") is kind
    if issubclass(kind, HeaderConverter):
        assert CATALOG.load(name, "header_converters") is kind


def test_the_converter_of_headers_is_found() -> None:
    found = CATALOG.load(f"{KAFKA}.storage.SimpleHeaderConverter", "header_converters")
    assert found is converters.SimpleHeaderConverter


def test_converters_are_listed_once_as_converters() -> None:
    listed = [one for one in CATALOG.listing() if "JsonConverter" in one["class"]]
    assert [one["type"] for one in listed] == ["converter"]
