"""The workload that the environment names, for drivers without Spark."""

from __future__ import annotations

import json
import os

from tests.transactions.cases.workloads import WORKLOADS

WORKLOAD, CONFIG = "HEADRACE_CASE_WORKLOAD", "HEADRACE_CASE_CONFIG"
SUFFIX = "HEADRACE_CASE_SUFFIX"

topology = WORKLOADS[os.environ.get(WORKLOAD, "set")].build(
    json.loads(os.environ.get(CONFIG, "{}")), os.environ.get(SUFFIX, "")
)
