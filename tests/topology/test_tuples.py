"""Tuples, and what callbacks are given."""

from __future__ import annotations

import pickle

import pytest

from headrace.topology import COMMIT_FAIL, BatchGroupId, Tuple


def test_a_tuple_gives_values_by_name_and_by_place() -> None:
    found = Tuple(("be", 2), ("word", "count"), "count", 3, "totals")
    assert (found["word"], found[1], found.get("count")) == ("be", 2, 2)
    assert (list(found), len(found)) == (["be", 2], 2)
    assert (found.source_component, found.source_task, found.source_stream) == (
        "count",
        3,
        "totals",
    )


def test_a_field_that_is_not_there_is_named_with_those_that_are() -> None:
    found = Tuple(("be", 2), ("word", "count"), "count", 0)
    with pytest.raises(KeyError, match=r"'words'.*'count', stream 'default'.*word, count"):
        found["words"]


def test_a_tuple_survives_pickling() -> None:
    found = Tuple(("be",), ("word",), "split", 1)
    assert pickle.loads(pickle.dumps(found)) == found
    assert hash(pickle.loads(pickle.dumps(found))) == hash(found)
    assert found != Tuple(("be",), ("word",), "split", 2)


def test_the_sign_of_a_failed_commit_is_one_object_over_pickling() -> None:
    """R13."""
    assert pickle.loads(pickle.dumps({"u": COMMIT_FAIL}))["u"] is COMMIT_FAIL


def test_batches_of_a_group_are_ordered() -> None:
    assert sorted([BatchGroupId(2, 1), BatchGroupId(10, 0), BatchGroupId(2, 0)]) == [
        BatchGroupId(2, 0),
        BatchGroupId(2, 1),
        BatchGroupId(10, 0),
    ]
