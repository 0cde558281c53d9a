"""Transforms and predicates give what Kafka Connect 4.1.1's own give, but for named differences.

``cases/README.md`` says how the files there were made.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import pytest

from headrace.connect.plugins.builtin import BUILTIN
from headrace.connect.predicates import Predicate
from headrace.connect.records import SinkRecord, SourceRecord
from headrace.connect.schema import DATE_NAME, DECIMAL_NAME, TIME_NAME, TIMESTAMP_NAME
from headrace.connect.transforms import Transform
from headrace.errors import ProcessingError
from tests.connect.transforms.kafka_values import FOLDER, Case, cases_of, shown

LOGICAL = {DATE_NAME, TIME_NAME, TIMESTAMP_NAME, DECIMAL_NAME}

PLUGINS = {
    name.rpartition(".")[2]: plugin.target
    for plugin in BUILTIN
    if plugin.type in {"transformation", "predicate"}
    for name in (*plugin.aliases, plugin.target.partition(":")[2])
}


def of(name: str) -> type[Transform | Predicate]:
    module, _, title = PLUGINS[name].partition(":")
    found = getattr(importlib.import_module(module), title)
    assert isinstance(found, type)
    return found


def apply(
    transform: Transform, record: SourceRecord | SinkRecord
) -> SourceRecord | SinkRecord | None:
    given: object
    # Written twice for mypy: a transform gives the kind of record that it takes.
    match record:
        case SourceRecord():
            given = transform.apply(record)
        case SinkRecord():
            given = transform.apply(record)
    assert given is None or isinstance(given, SourceRecord | SinkRecord)
    return given


def answer(case: Case) -> dict[str, Any]:
    """What ours makes of a case."""
    kind = of(case.plugin)
    plugin = kind()
    try:
        plugin.configure(kind.config.parse(case.config))
    except ValueError:
        return {"fails": "configure"}
    try:
        if isinstance(plugin, Predicate):
            return {"holds": plugin.holds(case.record)}
        given = apply(plugin, case.record)
        return {"record": shown(given)}
    except ProcessingError:
        return {"fails": "apply"}


def wanted(case: Case) -> dict[str, Any]:
    """What Kafka Connect made of it."""
    if "fails" in case.expect:
        return {"fails": case.expect["fails"]}
    if "holds" in case.expect:
        return {"holds": case.expect["holds"]}
    return {"record": shown(case.expect["record"])}


def has(case: Case, words: str) -> bool:
    return words in str(case.expect.get("message"))


def is_julian(case: Case) -> bool:
    """Tell whether a day is written or read where Java's calendar is another one."""
    days = set("dDwW") & set(case.config.get("format", ""))
    return (bool(days) and case.name.endswith("of -62135596800000")) or "'23' by yyyy" in case.name


def is_java_float(case: Case) -> bool:
    """Return whether a float has become a text that Java alone writes so."""
    made = getattr(case.expect.get("record"), "value", None)
    return isinstance(case.record.value, float) and bool(re.search("E|Infinity|NaN", str(made)))


#: What ours does otherwise on purpose, by plugin: which cases, and why.
DIFFERENCES: Final[Mapping[str, tuple[tuple[str, Callable[[Case], bool]], ...]]] = MappingProxyType(
    {
        "Cast": (
            (
                "floating-point numbers become text as Python writes it",
                is_java_float,
            ),
            (
                # Kafka leaves the name on it, and its converters then refuse the record.
                "a value that is a number now is no Timestamp any more",
                lambda case: (
                    case.record.value_schema is not None
                    and case.record.value_schema.name in LOGICAL
                    and "record" in case.expect
                ),
            ),
            (
                "numbers of Python have no width, so without a schema all digits are written",
                lambda case: case.name == "tenth32 without schema to string",
            ),
            (
                "dates, times and decimals without a schema can be cast",
                lambda case: has(case, "not supported by Connect's data API"),
            ),
        ),
        "ExtractField": (
            ("no field has an empty name", lambda case: case.config.get("field") == ""),
        ),
        "Flatten": (
            (
                "dates, times and decimals without a schema can be carried along",
                lambda case: has(case, "not supported by Connect's data API"),
            ),
        ),
        "HoistField": (
            ("no field has an empty name", lambda case: case.config.get("field") == ""),
        ),
        "InsertField": (
            (
                "a required field without a value is refused here, not by the converter",
                lambda case: case.name == "no timestamp in a required field",
            ),
        ),
        "MaskField": (
            (
                "numbers of Python have no width, so none is cut",
                lambda case: case.name == "map: fields=i8, replacement=300.5",
            ),
        ),
        "SetSchemaMetadata": (
            (
                "not only structs have schemas with names",
                lambda case: has(case, "Cannot list fields on non-struct type"),
            ),
        ),
        "TimestampConverter": (
            (
                "numbers of Python have no width, so each can be a time",
                lambda case: has(case, "does not support class java.lang.Integer"),
            ),
            (
                "days before 1582 are those of ISO 8601",
                is_julian,
            ),
            (
                "Python has the years 1 to 9999",
                lambda case: (
                    "record" in case.expect and "before the year" in str(case.expect["record"])
                ),
            ),
        ),
        "TimestampRouter": (
            (
                "a wrong format is refused when it is configured",
                lambda case: (
                    has(case, "Illegal pattern") or case.config.get("timestamp.format") == "bad"
                ),
            ),
        ),
    }
)


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.json")))
def test_results_are_those_of_kafka_connect(name: str) -> None:
    differences = DIFFERENCES.get(name, ())
    wrong = []
    for case in cases_of(name):
        differs = any(holds(case) for _, holds in differences)
        if (answer(case) == wanted(case)) is differs:
            wrong.append(f"{case.name} {case.config}")
    assert wrong == []


@pytest.mark.defect(9)
@pytest.mark.parametrize("name", sorted(PLUGINS))
def test_every_plugin_of_the_table_is_a_concrete_class(name: str) -> None:
    made = of(name)()
    assert isinstance(made, Transform | Predicate)
