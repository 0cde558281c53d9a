"""What components emit, and the mistakes that collectors name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace import serdes
from headrace.runtime.bolts.instances import BoltOutput, SpoutOutput
from headrace.topology import Spout as SpoutNode

NODE = SpoutNode(
    name="words",
    parents=(),
    component=None,
    parallelism=1,
    streams={"default": ("word", "count"), "direct": ("word",)},
    direct_streams=frozenset({"direct"}),
    config={},
    state_serde=serdes.state,
    batch_size=1,
    delay_ms=1,
)
TIMES, MARKS = np.array([10, 20, 99]), np.array([1, 2, 9])


def test_tuples_have_the_time_and_mark_of_what_caused_them() -> None:
    output = BoltOutput(NODE)
    output.emit(["before", 0])
    for output.cause, word in enumerate(("to", "be")):
        output.emit((word, 1), anchor=None)
        output.emit_direct(4, [word], stream="direct")
    found = output.taken(TIMES, MARKS, 3)
    default, direct = found["default"], found["direct"]
    assert default.values == [("before", 0), ("to", 1), ("be", 1)]
    assert (default.times.tolist(), default.marks.tolist()) == ([99, 10, 20], [9, 1, 2])
    assert default.emitters is not None
    assert default.emitters.tolist() == [3, 3, 3]
    assert direct.targets is not None
    assert direct.targets.tolist() == [4, 4]
    assert output.taken(TIMES, MARKS, 3) == {}


def test_what_a_failed_execution_emitted_is_taken_back() -> None:
    output = BoltOutput(NODE)
    for output.cause in range(2):
        output.emit(("word", output.cause))
        output.emit_direct(0, ("word",), stream="direct")
    output.forget_cause()
    found = output.taken(TIMES, MARKS, 0)
    assert {stream: len(chunk) for stream, chunk in found.items()} == {"default": 1, "direct": 1}


@pytest.mark.parametrize(
    ("emit", "kind", "message"),
    [
        (lambda o: o.emit("be"), TypeError, "emits 'be': give a list or tuple of values"),
        (lambda o: o.emit({"word": "be"}), TypeError, "give a list or tuple of values"),
        (lambda o: o.emit(["be"]), ValueError, "emits 1 values .* which has 2 fields"),
        (lambda o: o.emit(("be", 1, 2)), ValueError, "emits 3 values"),
        (lambda o: o.emit(["be"], stream="other"), KeyError, "stream 'other'; it declared"),
        (lambda o: o.emit(["be"], stream="direct"), TypeError, "must use emit_direct for its"),
        (lambda o: o.emit_direct(0, ["be", 1]), TypeError, "must use emit for its stream"),
    ],
)
@pytest.mark.parametrize("output", [BoltOutput, SpoutOutput])
def test_mistakes_are_named(
    output: Callable[[Any], Any], emit: Callable[[Any], None], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        emit(output(NODE))


def test_a_generator_of_values_is_taken() -> None:
    output = SpoutOutput(NODE)
    values: Any = (value for value in ("be", 1))
    output.emit(values)
    assert output.taken(TIMES, MARKS, 0)["default"].values == [("be", 1)]
