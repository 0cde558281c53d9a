"""The plugins that come with Headrace: a line each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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


_KAFKA = "org.apache.kafka.connect."
_TRANSFORMS = "org.apache.kafka.connect.transforms."
_PREDICATES = "org.apache.kafka.connect.transforms.predicates."
_ROCKETMQ_TRANSFORMS = "org.apache.rocketmq.connect.transforms."


def _converter(
    name: str, theirs: str, package: str = _KAFKA, *, kind: PluginType = "converter"
) -> Builtin:
    """Return a converter, also named by its first word in small letters and by its Java class."""
    short = name.removesuffix("Converter").lower()
    return Builtin(f"headrace.connect.converters:{name}", kind, (short, f"{package}{theirs}"))


def _for_headers_too(name: str, theirs: str) -> tuple[Builtin, Builtin]:
    """Return a converter under both of its kinds, as it also takes values of headers."""
    # REST lists a class once, as what it was named last.
    return _converter(name, theirs, kind="header_converter"), _converter(name, theirs)


def _transform(module: str, name: str) -> Builtin:
    """Return a transform of whole records."""
    return Builtin(
        f"headrace.connect.transforms.{module}:{name}", "transformation", (f"{_TRANSFORMS}{name}",)
    )


def _sided(module: str, name: str, package: str = _TRANSFORMS) -> tuple[Builtin, Builtin]:
    """Return the two plugins of a transform that works on the key or on the value."""
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


#: What plugins were called that are part of others now, and what to write in their place.
REPLACED = {
    name: f"it is files-{role.lower()} now: give its place by the key uri, as a path, file:///folder"
    " or s3://bucket/prefix"
    for place in ("Directory", "S3")
    for role in ("Source", "Sink")
    for name in (f"{place}-{role}".lower(), f"{place}{role}Connector")
}

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
        "headrace.connect.connectors.storage:FilesSourceConnector", "source", ("files-source",)
    ),
    Builtin("headrace.connect.connectors.storage:FilesSinkConnector", "sink", ("files-sink",)),
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
    Builtin("headrace.connect.connectors.kafka:KafkaSourceConnector", "source", ("kafka-source",)),
    Builtin("headrace.connect.connectors.kafka:KafkaSinkConnector", "sink", ("kafka-sink",)),
    Builtin(
        "headrace.connect.connectors.elasticsearch:ElasticsearchSinkConnector",
        "sink",
        ("elasticsearch-sink", "opensearch-sink"),
    ),
    Builtin(
        "headrace.connect.connectors.elasticsearch:ElasticsearchSourceConnector",
        "source",
        ("elasticsearch-source", "opensearch-source"),
    ),
    Builtin(
        "headrace.connect.connectors.rocketmq:RocketMQSourceConnector",
        "source",
        ("rocketmq-source",),
    ),
    Builtin(
        "headrace.connect.connectors.rocketmq:RocketMQSinkConnector", "sink", ("rocketmq-sink",)
    ),
    Builtin("headrace.connect.connectors.spark:SparkSourceConnector", "source", ("spark-source",)),
    Builtin("headrace.connect.connectors.spark:SparkSinkConnector", "sink", ("spark-sink",)),
    # converters
    _converter("SimpleHeaderConverter", "storage.SimpleHeaderConverter", kind="header_converter"),
    *_for_headers_too("BooleanConverter", "converters.BooleanConverter"),
    *_for_headers_too("BytesConverter", "converters.ByteArrayConverter"),
    *_for_headers_too("DoubleConverter", "converters.DoubleConverter"),
    *_for_headers_too("FloatConverter", "converters.FloatConverter"),
    *_for_headers_too("IntegerConverter", "converters.IntegerConverter"),
    *_for_headers_too("JsonConverter", "json.JsonConverter"),
    *_for_headers_too("LongConverter", "converters.LongConverter"),
    *_for_headers_too("ShortConverter", "converters.ShortConverter"),
    *_for_headers_too("StringConverter", "storage.StringConverter"),
    _converter("AvroConverter", "avro.AvroConverter", "io.confluent.connect."),
    _converter("ProtobufConverter", "protobuf.ProtobufConverter", "io.confluent.connect."),
    # transforms
    *_sided("cast", "Cast"),
    *_sided("field_names", "ChangeCase", _ROCKETMQ_TRANSFORMS),
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
    *_sided("field_names", "PatternRename", _ROCKETMQ_TRANSFORMS),
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
