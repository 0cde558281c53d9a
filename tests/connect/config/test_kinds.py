"""Kinds of values: what is written is read again."""

from __future__ import annotations

import copy
import pickle
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from headrace.connect.config import (
    PluginName,
    Secret,
    Size,
    all_of,
    at_least,
    at_most,
    between,
    each,
    key,
    matching,
    not_empty,
    one_of,
)
from headrace.connect.config.kinds import Check, kind_of

TEXTS = st.text(st.characters(exclude_characters=",", exclude_categories=["Z", "C"]), min_size=1)


@pytest.mark.parametrize(
    ("declared", "values"),
    [
        (str, st.text()),
        (int, st.integers()),
        (float, st.floats(allow_nan=False)),
        (bool, st.booleans()),
        (timedelta, st.integers(-(10**12), 10**12).map(lambda ms: timedelta(milliseconds=ms))),
        (Size, st.integers(0, 2**50)),
        (list, st.lists(TEXTS)),
        (list[int], st.lists(st.integers())),
    ],
)
@given(st.data())
def test_value_is_read_as_it_was_written(
    declared: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    value = data.draw(values)
    kind = kind_of(declared)
    assert kind.parse(kind.write(value)) == value


def test_kind_that_there_is_not_is_refused_while_declaring() -> None:
    with pytest.raises(TypeError, match="there are str, int, float"):
        key("it", dict, "It.")


def test_key_is_either_required_or_has_a_default() -> None:
    with pytest.raises(TypeError, match="required and has a default"):
        key("it", int, "It.", required=True, default=1)


def test_name_of_a_plugin_is_a_class_for_kafka_connect() -> None:
    assert key("it", PluginName("converters"), "It.").kind.kafka == "CLASS"


@pytest.mark.parametrize(
    ("check", "right", "wrong", "words"),
    [
        (between(1, 3), 3, 4, "from 1 to 3"),
        (at_least(timedelta(seconds=1)), timedelta(seconds=1), timedelta(0), "at least 1000 ms"),
        (at_most(2), 2, 3, "at most 2"),
        (one_of("a", "b"), "a", "A", "a or b"),
        (one_of("a", ignore_case=True), "A", "b", "a"),
        (matching("[a-z]+", "small letters"), "ab", "a1", "small letters"),
        (not_empty(), "x", " ", "not empty"),
        (each(between(1, 3)), [1, 2], [1, 7], "a list of which each is from 1 to 3"),
        (all_of(not_empty(), matching("a*")), "aa", "ab", "not empty and of the shape a*"),
    ],
)
def test_check_allows_what_its_words_say(
    check: Check, right: object, wrong: object, words: str
) -> None:
    assert check.allows(right)
    assert not check.allows(wrong)
    assert check.words == words


def test_secret_shows_itself_nowhere_and_survives_a_copy() -> None:
    secret = Secret("swordfish")
    assert "swordfish" not in f"{secret} {secret!r} {[secret]} {secret:>10}"
    assert pickle.loads(pickle.dumps(secret)) == copy.deepcopy(secret) == secret
    assert not Secret("")


def test_duration_beyond_all_measure_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than a duration can be"):
        kind_of(timedelta).parse("9" * 30)
