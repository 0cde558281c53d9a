"""A few seconds of `make fuzz`, always the same."""

from __future__ import annotations

import pytest

from tests.fuzz.fuzzer import Findings, fuzz, run_once
from tests.fuzz.live import LiveConnect
from tests.fuzz.targets import TARGETS, Target

by_target = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


@by_target
def test_real_inputs_are_read_and_extreme_ones_do_no_harm(target: Target) -> None:
    findings = Findings()
    for data in target.corpus():
        run_once(target, data, findings, measure=True)
    assert findings.refused == 0 or target.name == "compression"
    for data in target.extreme:
        run_once(target, data, findings, measure=True)


@by_target
def test_mutated_inputs_do_no_harm(target: Target) -> None:
    fuzz(target, 150, 20_260_101, Findings())


def test_a_connect_worker_answers_whatever_else_comes() -> None:
    with LiveConnect() as connect:
        fuzz(connect.target(), 40, 20_260_101, Findings())
