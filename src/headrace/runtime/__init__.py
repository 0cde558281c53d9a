"""Operators at work: processors, state, watermarks, the commit; no Spark in it."""

from __future__ import annotations

from headrace.runtime.state_checks import StateMigration
from headrace.runtime.testing import (
    TestInput,
    TestOutput,
    TestRecord,
    TestState,
    TopologyTestDriver,
)

__all__ = [
    "StateMigration",
    "TestInput",
    "TestOutput",
    "TestRecord",
    "TestState",
    "TopologyTestDriver",
]
