"""The plugins that come with Headrace: a line each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["BUILTIN", "Builtin", "PluginType"]

PluginType = Literal[
    "source", "sink", "converter", "header_converter", "transformation", "predicate"
]
"""What a plugin is, by the words of Kafka Connect's REST API."""


@dataclass(frozen=True, slots=True)
class Builtin:
    """One plugin: where its class is, and what it is called.

    The class is imported only where it runs, so an extra that is not installed harms nobody else.
    """

    #: ``module:Class``.
    target: str
    type: PluginType
    #: Other names, such as ``file-source`` or Kafka's class name of the same thing.
    aliases: tuple[str, ...] = ()


_TRANSFORMS = "org.apache.kafka.connect.transforms."
_PREDICATES = "org.apache.kafka.connect.transforms.predicates."
_ROCKETMQ_TRANSFORMS = "org.apache.rocketmq.connect.transforms."


def _transform(module: str, name: str) -> Builtin:
    """Name a transform of whole records."""
    return Builtin(
        f"headrace.connect.transforms.{module}:{name}", "transformation", (f"{_TRANSFORMS}{name}",)
    )


def _sided(module: str, name: str, package: str = _TRANSFORMS) -> tuple[Builtin, Builtin]:
    """Name the two plugins of a transform that works on the key or on the value."""
    key, value = (
        Builtin(
            f"headrace.connect.transforms.{module}:{name}{side}",
            "transformation",
            (f"{name}${side}", f"{package}{name}${side}"),
        )
        for side in ("Key", "Value")
    )
    return key, value


def _predicate(module: str, name: str) -> Builtin:
    return Builtin(
        f"headrace.connect.predicates.{module}:{name}", "predicate", (f"{_PREDICATES}{name}",)
    )


BUILTIN: tuple[Builtin, ...] = (
    # connectors
    Builtin(
        "headrace.connect.connectors.file:FileSourceConnector",
        "source",
        ("file-source", "org.apache.kafka.connect.file.FileStreamSourceConnector"),
    ),
    Builtin(
        "headrace.connect.connectors.file:FileSinkConnector",
        "sink",
        ("file-sink", "org.apache.kafka.connect.file.FileStreamSinkConnector"),
    ),
    Builtin(
        "headrace.connect.connectors.directory:DirectorySourceConnector",
        "source",
        ("directory-source",),
    ),
    Builtin(
        "headrace.connect.connectors.directory:DirectorySinkConnector",
        "sink",
        ("directory-sink",),
    ),
    Builtin("headrace.connect.connectors.http:HttpSourceConnector", "source", ("http-source",)),
    Builtin("headrace.connect.connectors.http:HttpSinkConnector", "sink", ("http-sink",)),
    Builtin(
        "headrace.connect.connectors.sqlite:SqliteSourceConnector", "source", ("sqlite-source",)
    ),
    Builtin("headrace.connect.connectors.sqlite:SqliteSinkConnector", "sink", ("sqlite-sink",)),
    Builtin(
        "headrace.connect.connectors.datagen:DatagenSourceConnector",
        "source",
        ("datagen-source", "io.confluent.kafka.connect.datagen.DatagenConnector"),
    ),
    Builtin(
        "headrace.connect.connectors.postgres:PostgresSourceConnector",
        "source",
        ("postgres-source", "io.confluent.connect.jdbc.JdbcSourceConnector"),
    ),
    Builtin(
        "headrace.connect.connectors.postgres:PostgresSinkConnector",
        "sink",
        ("postgres-sink", "io.confluent.connect.jdbc.JdbcSinkConnector"),
    ),
    # converters
    Builtin(
        "headrace.connect.converters:AvroConverter",
        "converter",
        ("io.confluent.connect.avro.AvroConverter",),
    ),
    Builtin(
        "headrace.connect.converters:BooleanConverter",
        "converter",
        ("org.apache.kafka.connect.converters.BooleanConverter",),
    ),
    Builtin(
        "headrace.connect.converters:BytesConverter",
        "converter",
        (
            "ByteArrayConverter",
            "org.apache.kafka.connect.converters.ByteArrayConverter",
        ),
    ),
    Builtin(
        "headrace.connect.converters:DoubleConverter",
        "converter",
        ("org.apache.kafka.connect.converters.DoubleConverter",),
    ),
    Builtin(
        "headrace.connect.converters:FloatConverter",
        "converter",
        ("org.apache.kafka.connect.converters.FloatConverter",),
    ),
    Builtin(
        "headrace.connect.converters:IntegerConverter",
        "converter",
        ("org.apache.kafka.connect.converters.IntegerConverter",),
    ),
    Builtin(
        "headrace.connect.converters:JsonConverter",
        "converter",
        ("org.apache.kafka.connect.json.JsonConverter",),
    ),
    Builtin(
        "headrace.connect.converters:LongConverter",
        "converter",
        ("org.apache.kafka.connect.converters.LongConverter",),
    ),
    Builtin(
        "headrace.connect.converters:ProtobufConverter",
        "converter",
        ("io.confluent.connect.protobuf.ProtobufConverter",),
    ),
    Builtin(
        "headrace.connect.converters:ShortConverter",
        "converter",
        ("org.apache.kafka.connect.converters.ShortConverter",),
    ),
    Builtin(
        "headrace.connect.converters:StringConverter",
        "converter",
        ("org.apache.kafka.connect.storage.StringConverter",),
    ),
    Builtin(
        "headrace.connect.converters:SimpleHeaderConverter",
        "header_converter",
        ("org.apache.kafka.connect.storage.SimpleHeaderConverter",),
    ),
    # transforms
    *_sided("cast", "Cast"),
    *_sided("change_case", "ChangeCase", _ROCKETMQ_TRANSFORMS),
    _transform("drop_headers", "DropHeaders"),
    *_sided("extract_field", "ExtractField"),
    _transform("filter", "Filter"),
    *_sided("flatten", "Flatten"),
    *_sided("header_from", "HeaderFrom"),
    *_sided("hoist_field", "HoistField"),
    *_sided("insert_field", "InsertField"),
    _transform("insert_header", "InsertHeader"),
    *_sided("mask_field", "MaskField"),
    *_sided("pattern_filter", "PatternFilter", _ROCKETMQ_TRANSFORMS),
    *_sided("pattern_rename", "PatternRename", _ROCKETMQ_TRANSFORMS),
    _transform("regex_router", "RegexRouter"),
    *_sided("replace_field", "ReplaceField"),
    *_sided("set_null", "SetNull", _ROCKETMQ_TRANSFORMS),
    *_sided("set_schema_metadata", "SetSchemaMetadata"),
    *_sided("timestamp_converter", "TimestampConverter"),
    _transform("timestamp_router", "TimestampRouter"),
    _transform("value_to_key", "ValueToKey"),
    Builtin("headrace.connect.transforms.python_function:PythonFunction", "transformation"),
    # predicates
    _predicate("has_header_key", "HasHeaderKey"),
    _predicate("record_is_tombstone", "RecordIsTombstone"),
    _predicate("topic_name_matches", "TopicNameMatches"),
)
