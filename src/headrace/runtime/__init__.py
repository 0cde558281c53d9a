"""Operators at work: processors, state, watermarks, the commit; no Spark in it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    # Imported at first use: only tests need the driver.
    if name not in __all__:
        message = f"module 'headrace.runtime' has no attribute {name!r}"
        raise AttributeError(message)
    home = "state_checks" if name == "StateMigration" else "testing"
    return getattr(importlib.import_module(f"headrace.runtime.{home}"), name)
