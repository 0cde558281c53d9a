"""What is done in each kind of case, by the kind and the target of its fault.

A scenario runs drivers of a workload, does what the case says, and lets the job come to its end.
It says what was wrong on the way; what must hold at the end is checked by the invariants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tests.transactions.cases.case import Case
from tests.transactions.cases.failures import (
    answer_lost,
    attempt_late,
    bolt_hangs,
    commit_delayed,
    commit_fails,
    group_fails,
    log_away,
    poison,
    sink_fails,
)
from tests.transactions.cases.kills import (
    at_least_once,
    driver_killed,
    driver_sleeps,
    java_killed,
    local_state_lost,
    state_ahead,
    worker_dies,
)
from tests.transactions.cases.rig import Rig

__all__ = ["SCENARIOS", "Scenario", "scenario_of"]

Scenario = Callable[[Case, str, Rig], Iterator[str]]
"""Takes the case, one of its variants, and the rig; gives what is wrong."""

#: By kind and target of the fault.
SCENARIOS: Mapping[tuple[str, str], Scenario] = {
    ("kill", "python_driver"): driver_killed,
    ("kill", "jvm"): java_killed,
    ("drop_response", "broker_proxy"): answer_lost,
    ("delete_file", "checkpoint/commits/3"): driver_killed,
    ("os_exit", "python_worker"): worker_dies,
    ("raise", "bolt.commit"): commit_fails,
    ("raise", "sink.stage"): sink_fails,
    ("unavailable", "snapshot_topic"): log_away,
    ("pause", "python_driver_and_jvm"): driver_sleeps,
    ("delay_request", "broker_proxy"): commit_delayed,
    ("raise", "bolt.execute"): poison,
    ("raise", "bolt below spout B"): group_fails,
    ("sleep", "bolt.execute"): bolt_hangs,
    ("delete_dir", "checkpoint"): local_state_lost,
    ("delay", "stage writer of task attempt 0"): attempt_late,
}


def scenario_of(case: Case) -> Scenario:
    """Choose what is done in a case."""
    if case.mode == "at_least_once":
        return at_least_once
    if "transaction.max.pending.batch" in case.setup:
        return state_ahead
    return SCENARIOS[case.kind, case.target]
