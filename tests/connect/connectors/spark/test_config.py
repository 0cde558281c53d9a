"""What the connectors of Spark's formats tell the engine, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from headrace.connect.connectors.spark import (
    SparkSinkConnector,
    SparkSinkTask,
    SparkSourceConnector,
    SparkSourceTask,
)
from headrace.connect.plugins import Connector
from headrace.connect.testing.sinks import SinkTaskKit
from headrace.errors import ProcessingError
from tests.connect.connectors.runs import problems

SOURCE = {"format": "csv", "path": "/in", "topic": "rows"}
SINK = {"format": "parquet", "path": "/out", "schema": "n long"}


def order(task: SparkSourceTask | SparkSinkTask, kind: type[Connector], **keys: str) -> Any:
    given: Mapping[str, str] = (SOURCE if task.__class__ is SparkSourceTask else SINK) | keys
    assert problems(kind, given) == []
    return task.in_engine(kind.config.parse(given))


def test_options_go_to_the_format_and_all_is_what_json_holds() -> None:
    found = order(
        SparkSourceTask(),
        SparkSourceConnector,
        **{"option.header": "true", "option.pathGlobFilter": "*", "settle.ms": "2 s"},
    )
    assert json.loads(json.dumps(found)) == found
    assert found["options"] == {"header": "true", "pathGlobFilter": "*"}
    assert (found["settle.ms"], found["batch.max.files"], found["recursive"]) == (2.0, 100, True)
    assert "schema" not in found


@pytest.mark.parametrize(
    ("keys", "way"),
    [
        ({}, "files"),
        ({"increasing.column": "n"}, "column"),
        ({"format": "jdbc"}, "once"),
        ({"read": "once"}, "once"),
    ],
)
def test_the_format_says_how_it_is_read(keys: dict[str, str], way: str) -> None:
    assert order(SparkSourceTask(), SparkSourceConnector, **keys)["read"] == way


@pytest.mark.parametrize(("name", "folders"), [("orc", True), ("jdbc", False)])
def test_files_have_a_folder_for_each_batch(name: str, folders: bool) -> None:
    assert order(SparkSinkTask(), SparkSinkConnector, format=name)["folders"] is folders


@pytest.mark.parametrize(
    ("kind", "texts", "problem"),
    [
        (SparkSourceConnector, SOURCE | {"transforms": "cast"}, "pass no transforms"),
        (SparkSourceConnector, SOURCE | {"read": "column"}, "needs increasing.column"),
        (SparkSourceConnector, {"format": "csv", "topic": "t"}, "needs a path"),
        (SparkSourceConnector, SOURCE | {"format": "binaryFile"}, "value.format=bytes"),
        (SparkSinkConnector, SINK | {"value.converter": "string"}, "pass no value.converter"),
        (SparkSinkConnector, {"format": "jdbc"}, "needs schema"),
        (SparkSinkConnector, SINK | {"format": "binaryFile"}, "does not write it"),
        (SparkSinkConnector, SINK | {"metadata.columns": "size"}, "must be"),
    ],
)
def test_a_config_that_cannot_work_is_refused(
    kind: type[Connector], texts: dict[str, str], problem: str
) -> None:
    assert any(problem in one for one in problems(kind, texts))


def test_records_that_come_all_the_same_are_refused() -> None:
    with SinkTaskKit(SparkSinkConnector, SINK) as kit:
        kit.send("{}")
        with pytest.raises(ProcessingError, match="whose records Spark writes"):
            kit.put()
