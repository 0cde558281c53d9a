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
        "headrace.connect.connectors.datagen:DatagenSourceConnector",
        "source",
        ("datagen-source", "io.confluent.kafka.connect.datagen.DatagenConnector"),
    ),
    Builtin(
        "headrace.connect.connectors.postgres:PostgresSinkConnector",
        "sink",
        ("postgres-sink", "io.confluent.connect.jdbc.JdbcSinkConnector"),
    ),
    # converters
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
        "headrace.connect.converters:ShortConverter",
        "converter",
        ("org.apache.kafka.connect.converters.ShortConverter",),
    ),
    Builtin(
        "headrace.connect.converters:StringConverter",
        "converter",
        ("org.apache.kafka.connect.storage.StringConverter",),
    ),
    # transforms
    # predicates
)
