"""Converters: what plugins say of keys, values and headers, as the bytes of messages, and back."""

from __future__ import annotations

from headrace.connect.converters.avro import AvroConverter
from headrace.connect.converters.avro_schemas import schema_from_avro, schema_to_avro
from headrace.connect.converters.base import Column, Converted, Converter, HeaderConverter
from headrace.connect.converters.headers import SimpleHeaderConverter
from headrace.connect.converters.json import JsonConverter, schema_from_json, schema_to_json
from headrace.connect.converters.protobuf import ProtobufConverter
from headrace.connect.converters.scalars import (
    BooleanConverter,
    BytesConverter,
    DoubleConverter,
    FloatConverter,
    IntegerConverter,
    LongConverter,
    ShortConverter,
    StringConverter,
)

__all__ = [
    "AvroConverter",
    "BooleanConverter",
    "BytesConverter",
    "Column",
    "Converted",
    "Converter",
    "DoubleConverter",
    "FloatConverter",
    "HeaderConverter",
    "IntegerConverter",
    "JsonConverter",
    "LongConverter",
    "ProtobufConverter",
    "ShortConverter",
    "SimpleHeaderConverter",
    "StringConverter",
    "schema_from_avro",
    "schema_from_json",
    "schema_to_avro",
    "schema_to_json",
]
