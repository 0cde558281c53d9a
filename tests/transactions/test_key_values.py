"""The state of a key-value bolt: a mapping over the store, that writes what a batch changed."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import serdes
from headrace.keys import encode_key
from headrace.runtime import MemoryStore
from headrace.runtime.bolts.spouts import KeyValues


def mapping(store: MemoryStore, *, foreign: object = "foreign") -> KeyValues:
    return KeyValues(store, serdes.state, lambda key: key != encode_key(foreign))


def kept(store: MemoryStore) -> dict[Any, Any]:
    decode = serdes.state.deserialize
    return {serdes.key.deserialize(key): decode(value) for key, value in store.scan()}


@pytest.fixture
def store() -> MemoryStore:
    found = MemoryStore()
    for key, value in {"a": 1, "b": [1], "c": 3}.items():
        found.put(encode_key(key), serdes.state.serialize(value))
    return found


def test_values_are_read_set_and_deleted(store: MemoryStore) -> None:
    state = mapping(store)
    assert (state["a"], state.get("z"), state.get("z", 5), "b" in state, "z" in state) == (
        1,
        None,
        5,
        True,
        False,
    )
    state["a"] += 1
    state["new"] = {"x": (1, 2)}
    del state["c"]
    with pytest.raises(KeyError):
        state["c"]
    with pytest.raises(KeyError):
        del state["z"]
    assert sorted(state) == ["a", "b", "new"]
    assert len(state) == 3
    assert kept(store) == {"a": 1, "b": [1], "c": 3}, "nothing is written before the batch ends"
    state.keep()
    assert kept(store) == {"a": 2, "b": [1], "new": {"x": (1, 2)}}


def test_a_value_that_was_changed_in_place_is_kept(store: MemoryStore) -> None:
    state = mapping(store)
    state["b"].append(2)
    state.keep()
    assert kept(store)["b"] == [1, 2]


def test_keys_that_python_calls_equal_are_several_keys() -> None:
    store = MemoryStore()
    state = mapping(store)
    for key in (1, True, 1.0, "1", (1,), (True,)):
        state[key] = repr(key)
    state.keep()
    assert sorted(map(repr, state)) == sorted(["1", "True", "1.0", "'1'", "(1,)", "(True,)"])
    assert [state[key] for key in (1, True, 1.0)] == ["1", "True", "1.0"]
    assert len(list(store.scan())) == 6


def test_many_keys_are_looked_up_at_once(store: MemoryStore) -> None:
    state = mapping(store)
    state.fetch(["a", "z", "a", ("k", 1)])
    assert (state["a"], state.get("z"), state.get(("k", 1))) == (1, None, None)
    state["z"] = None
    state.keep()
    assert kept(store)["z"] is None
    assert "z" in state


@pytest.mark.parametrize("foreign", ["foreign", ("k", 2)])
def test_a_key_of_another_task_is_refused(store: MemoryStore, foreign: object) -> None:
    state = mapping(store, foreign=foreign)
    with pytest.raises(LookupError, match="belongs to another task: use the values of the fields"):
        state[foreign]
    with pytest.raises(LookupError, match="belongs to another task"):
        state[foreign] = 1
