"""A test driver: a topology in one process, without Java, broker or disk."""

from __future__ import annotations

import pandas as pd  # noqa: F401 - pyarrow imports it at the first array: here, not in a test

from headrace.runtime.testing.driver import TestState, TopologyTestDriver
from headrace.runtime.testing.topics import TestInput, TestOutput, TestRecord

__all__ = ["TestInput", "TestOutput", "TestRecord", "TestState", "TopologyTestDriver"]
