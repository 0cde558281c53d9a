"""Operators at work: processors, state, watermarks, the commit; no Spark in it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.runtime.state.interface import StateStore, StorePlace
    from headrace.runtime.state.steps import StateMigration
    from headrace.runtime.state.store import LayeredStore, MemoryStore
    from headrace.runtime.testing import (
        TestInput,
        TestOutput,
        TestRecord,
        TestState,
        TopologyTestDriver,
    )

__all__ = [
    "LayeredStore",
    "MemoryStore",
    "StateMigration",
    "StateStore",
    "StorePlace",
    "TestInput",
    "TestOutput",
    "TestRecord",
    "TestState",
    "TopologyTestDriver",
]

_HOMES = {
    "LayeredStore": "state.store",
    "MemoryStore": "state.store",
    "StateMigration": "state.steps",
    "StateStore": "state.interface",
    "StorePlace": "state.interface",
}


def __getattr__(name: str) -> Any:
    # Imported at first use: only tests need the driver.
    if name not in __all__:
        message = f"module 'headrace.runtime' has no attribute {name!r}"
        raise AttributeError(message)
    home = _HOMES.get(name, "testing")
    return getattr(importlib.import_module(f"headrace.runtime.{home}"), name)
