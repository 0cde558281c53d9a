"""A test driver: a topology in one process, without Java, broker or disk."""

from __future__ import annotations

from headrace.runtime.testing.driver import TopologyTestDriver
from headrace.runtime.testing.state import TestState
from headrace.runtime.testing.topics import TestInput, TestOutput, TestRecord

__all__ = ["TestInput", "TestOutput", "TestRecord", "TestState", "TopologyTestDriver"]
