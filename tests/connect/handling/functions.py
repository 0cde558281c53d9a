"""Functions that connectors of the tests name in their configs."""

from __future__ import annotations

from typing import Any

from headrace.errors import RetriableError

calls: list[Any] = []


def twice(record: Any) -> Any:
    return [record, record.replace(value=f"{record.value} again")]


def refuse_bad(record: Any) -> Any:
    if record.value == "bad":
        raise ValueError("swordfish is no word for it")
    return record


def away(record: Any) -> Any:
    calls.append(record.value)
    if len(calls) < 4:
        raise RetriableError("not yet")
    return record


def text(record: Any) -> Any:
    return f"{record.value}"
