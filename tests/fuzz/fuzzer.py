"""Runs targets: mutated inputs until something breaks, takes too long, or takes too much memory."""

from __future__ import annotations

import random
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.mutation import mutated, random_input
from tests.fuzz.targets import Target

__all__ = ["Findings", "fuzz", "run_once", "storm"]

#: A call that takes longer hangs, or would under more of the same.
_LONGEST = 2.0
#: Python's own limit of nested calls.
_DEPTH = 1000
#: Memory is measured in every so many calls: it costs as much as ten of them.
_MEASURED = 64


@dataclass(slots=True)
class Findings:
    """What a run saw."""

    inputs: int = 0
    #: Inputs that were refused as they should be.
    refused: int = 0
    longest: float = 0.0
    most_memory: int = 0


class _Quiet(tuple[bytes, ...]):
    """A corpus that is not written out in reports."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{len(self)} inputs>"


def run_once(target: Target, data: bytes, findings: Findings, *, measure: bool) -> None:
    """Give one input to a target; an assertion fails if that ends badly."""
    if measure:
        tracemalloc.start()
    # As Python has it: some library of another test may have raised it.
    depth = sys.getrecursionlimit()
    sys.setrecursionlimit(_DEPTH)
    # Time of the processor, and of this thread: what is busy beside it is no finding.
    began, peak = time.thread_time(), 0
    try:
        target.run(data)
    except target.allowed:
        findings.refused += 1
    finally:
        took = time.thread_time() - began
        sys.setrecursionlimit(depth)
        if measure:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            findings.most_memory = max(findings.most_memory, peak)
    findings.inputs += 1
    findings.longest = max(findings.longest, took)
    assert took < _LONGEST, f"{target.name} took {took:.1f} s for {len(data)} bytes"
    if measure:
        assert peak < target.memory + 20 * len(data), f"{target.name} took {peak} bytes"


def fuzz(target: Target, examples: int, number: int, findings: Findings) -> None:
    """Give a target so many mutated inputs, the same ones for the same number."""

    @seed(number)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink) if target.shrinks else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(mutated(_Quiet(target.corpus())))
    def attack(data: bytes) -> None:
        measured = findings.inputs % _MEASURED == 0
        run_once(target, data, findings, measure=measured)

    run: Callable[[], None] = attack
    run()


def storm(target: Target, seconds: float, number: int, findings: Findings) -> None:
    """Give a target as many mutated inputs as it takes in some time."""
    choice = random.Random(number)
    inputs = target.corpus()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        data = random_input(choice, inputs)
        try:
            run_once(target, data, findings, measure=findings.inputs % _MEASURED == 0)
        except BaseException as error:
            error.add_note(f"input: {data!r}")
            raise
