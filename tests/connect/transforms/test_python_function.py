from __future__ import annotations

from typing import Any

import pytest

from headrace.connect.records import SourceRecord
from headrace.connect.transforms.python_function import PythonFunction
from headrace.errors import ConnectorConfigError, TransformError

HERE = "tests.connect.transforms.test_python_function"

NUMBER = 5


class Shop:
    @staticmethod
    def doubled(record: Any) -> Any:
        return record.replace(value=record.value * 2)


def dropped(_: Any) -> None:
    return None


def split(record: Any) -> Any:
    return [record.replace(value=letter) for letter in record.value]


def broken(record: Any) -> Any:
    return [record, record.value]


def raising(record: Any) -> Any:
    raise KeyError(record.value)


def configured(name: str) -> PythonFunction:
    transform = PythonFunction()
    transform.configure(PythonFunction.config.parse({"function": name}))
    return transform


def made(name: str) -> PythonFunction:
    return configured(f"{HERE}:{name}")


def record(value: Any) -> SourceRecord:
    return SourceRecord(partition={}, offset={}, topic="t", value=value)


def test_function_gives_a_record() -> None:
    assert made("Shop.doubled").apply(record("ab")) == record("abab")


def test_none_drops_the_record() -> None:
    assert made("dropped").apply(record("ab")) is None


def test_list_stands_in_its_place() -> None:
    assert made("split").apply(record("ab")) == [record("a"), record("b")]
    assert made("split").apply(record("")) == []


def test_anything_else_is_refused_with_what_to_give() -> None:
    with pytest.raises(TransformError, match="gave a str") as raised:
        made("broken").apply(record("ab"))
    assert "None to drop it" in str(raised.value)


def test_error_of_the_function_is_its_own() -> None:
    with pytest.raises(KeyError, match="ab"):
        made("raising").apply(record("ab"))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (f"{HERE}:missing", "cannot be loaded"),
        ("no.such.module:function", "cannot be loaded"),
        (f"{HERE}:NUMBER", "is a int, which cannot be called"),
        ("no_colon", "module:function"),
    ],
)
def test_function_that_is_none_is_refused_when_it_is_configured(name: str, why: str) -> None:
    with pytest.raises(ConnectorConfigError, match=why):
        configured(name)
