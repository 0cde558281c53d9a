"""Connect: move data between RocketMQ topics and everything else.

This is the face for people who write plugins::

    from headrace.connect import SourceConnector, SourceRecord, SourceTask, declare, key

Names are imported at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.connect import schema
    from headrace.connect.config import (
        Config,
        ConfigDeclaration,
        ConfigKey,
        ConfigProblem,
        PluginName,
        Secret,
        Size,
        all_of,
        at_least,
        at_most,
        between,
        declare,
        each,
        key,
        matching,
        not_empty,
        one_of,
    )
    from headrace.connect.converters import Converter, HeaderConverter
    from headrace.connect.plugins import (
        ConnectorContext,
        OffsetReader,
        SinkConnector,
        SinkTask,
        SinkTaskContext,
        SourceConnector,
        SourceTask,
        SourceTaskContext,
    )
    from headrace.connect.predicates import Predicate
    from headrace.connect.records import (
        Header,
        Queue,
        SinkBatch,
        SinkRecord,
        SourceBatch,
        SourceRecord,
    )
    from headrace.connect.schema import Field, Schema
    from headrace.connect.transforms import Transform
    from headrace.errors import RetriableError, SchemaError

_HOMES = {
    "headrace.connect.config": (
        "Config",
        "ConfigDeclaration",
        "ConfigKey",
        "ConfigProblem",
        "PluginName",
        "Secret",
        "Size",
        "all_of",
        "at_least",
        "at_most",
        "between",
        "declare",
        "each",
        "key",
        "matching",
        "not_empty",
        "one_of",
    ),
    "headrace.connect.converters": ("Converter", "HeaderConverter"),
    "headrace.connect.plugins": (
        "ConnectorContext",
        "OffsetReader",
        "SinkConnector",
        "SinkTask",
        "SinkTaskContext",
        "SourceConnector",
        "SourceTask",
        "SourceTaskContext",
    ),
    "headrace.connect.predicates": ("Predicate",),
    "headrace.connect.records": (
        "Header",
        "Queue",
        "SinkBatch",
        "SinkRecord",
        "SourceBatch",
        "SourceRecord",
    ),
    "headrace.connect.schema": ("Field", "Schema"),
    "headrace.connect.transforms": ("Transform",),
    "headrace.errors": ("RetriableError", "SchemaError"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Config",
    "ConfigDeclaration",
    "ConfigKey",
    "ConfigProblem",
    "ConnectorContext",
    "Converter",
    "Field",
    "Header",
    "HeaderConverter",
    "OffsetReader",
    "PluginName",
    "Predicate",
    "Queue",
    "RetriableError",
    "Schema",
    "SchemaError",
    "Secret",
    "SinkBatch",
    "SinkConnector",
    "SinkRecord",
    "SinkTask",
    "SinkTaskContext",
    "Size",
    "SourceBatch",
    "SourceConnector",
    "SourceRecord",
    "SourceTask",
    "SourceTaskContext",
    "Transform",
    "all_of",
    "at_least",
    "at_most",
    "between",
    "declare",
    "each",
    "key",
    "matching",
    "not_empty",
    "one_of",
    "schema",
]


def __getattr__(name: str) -> Any:
    if name == "schema":
        return importlib.import_module("headrace.connect.schema")
    home = _HOME_OF.get(name)
    if home is None:
        message = f"module 'headrace.connect' has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(home), name)
