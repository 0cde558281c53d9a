"""Declared keys: typed values, and texts that say what is wrong."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headrace.connect.config import (
    Secret,
    Size,
    between,
    declare,
    key,
    one_of,
)
from headrace.errors import ConnectorConfigError

PORT = key("port", int, "Where it listens.", required=True, valid=between(1, 65535))


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (str, " a ", " a "),
        (int, " 12 ", 12),
        (float, "1.5", 1.5),
        (bool, "TRUE", True),
        (timedelta, "1500", timedelta(seconds=1.5)),
        (timedelta, "2 s", timedelta(seconds=2)),
        (timedelta, "500ms", timedelta(milliseconds=500)),
        (timedelta, "5 minutes", timedelta(minutes=5)),
        (timedelta, "1 d", timedelta(days=1)),
        (Size, "64 KiB", 65536),
        (Size, "10mb", 10_000_000),
        (Size, "7", 7),
        (list, "a, b ,c", ["a", "b", "c"]),
        (list, "", []),
        (list[int], "1,2", [1, 2]),
        (Secret, "word", Secret("word")),
    ],
)
def test_text_becomes_a_value_of_the_declared_kind(kind: Any, text: str, value: object) -> None:
    assert declare(key("it", kind, "It.")).parse({"it": text})["it"] == value


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        (int, "1.5", "it is no whole number"),
        (int, "1_000", "it is no whole number"),
        (float, "x", "it is no number"),
        (bool, "yes", "neither true nor false"),
        (timedelta, "5 parsecs", "500 ms, 2 s"),
        (timedelta, "-1", "at least"),
        (Size, "5 apples", "64 KiB"),
    ],
)
def test_wrong_text_is_refused_with_what_would_be_right(kind: Any, text: str, why: str) -> None:
    with pytest.raises(ConnectorConfigError, match=why):
        declare(key("it", kind, "It.")).parse({"it": text})


def test_every_wrong_key_is_named_at_once() -> None:
    declaration = declare(PORT, key("mode", str, "How.", valid=one_of("a", "b"), default="a"))
    with pytest.raises(ConnectorConfigError) as failure:
        declaration.parse({"port": "0", "mode": "c"})
    assert [name for name, _ in failure.value.problems] == ["port", "mode"]
    assert "The key port is '0': it must be from 1 to 65535. Where it listens." in str(
        failure.value
    )
    assert "it must be a or b" in str(failure.value)


def test_wrong_secret_is_not_shown() -> None:
    declaration = declare(key("pin", Secret, "The pin.", valid=one_of("1234")))
    with pytest.raises(ConnectorConfigError) as failure:
        declaration.parse({"pin": "swordfish"})
    assert "swordfish" not in str(failure.value)


@pytest.mark.parametrize("misspelt", ["prot", "PORT"])
def test_misspelt_key_is_named_with_the_one_that_was_meant(misspelt: str) -> None:
    declaration = declare(key("port", int, "It."), key("batch.max.rows", int, "Rows."))
    (problem,) = declaration.problems({misspelt: "1"})
    assert problem.message == f"There is no key {misspelt}: did you mean 'port'?"
    (problem,) = declaration.problems({"batch.max.row": "1"})
    assert problem.message == "There is no key batch.max.row: did you mean 'batch.max.rows'?"


def test_key_that_resembles_none_may_stand() -> None:
    assert declare(PORT).problems({"port": "80", "x.flag": "true"}) == []


def test_aliases_that_disagree_are_refused() -> None:
    declaration = declare(key("tasks.max", int, "Tasks.", default=1, aliases=("max.tasks",)))
    assert declaration.parse({"max.tasks": "2"})["tasks.max"] == 2
    assert declaration.parse({"max.tasks": "2", "tasks.max": "2"})["tasks.max"] == 2
    with pytest.raises(ConnectorConfigError, match=r"tasks\.max and max\.tasks mean the same"):
        declaration.parse({"max.tasks": "2", "tasks.max": "3"})


def test_undeclared_value_is_asked_for_with_a_hint() -> None:
    config = declare(PORT).parse({"port": "80"})
    with pytest.raises(ConnectorConfigError, match="did you mean 'port'"):
        config["prot"]
