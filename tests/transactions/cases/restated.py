"""What a case asks for beside the invariants, and what checks it here.

The cases were written for a commit protocol that kept Spark's checkpoint.  Ours keeps none: where
a case speaks of it, the same promise is stated for the commit topic and the local state.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["ASSERTS"]

#: The text of the file, and who checks what here: a scenario, or an invariant.
ASSERTS: Mapping[str, str] = {
    "epoch_after == epoch_before + 1": "I6 and I7: epochs rise by one per open",
    "offset_log has no entry for batch 4 before restart": (
        "the commit topic has no batch 4 before the restart: readers see batches 1 to 3"
    ),
    "offsets(4) before crash == offsets(4) committed": (
        "a batch that was not committed may be planned anew; it begins where batch 3 ends: I1, I2"
    ),
    "new input arriving between crash and restart is not in batch 4": (
        "it may be in batch 4, and is in one batch: I1, I2, I5"
    ),
    "rows staged by old epoch > 0 and visible rows of old epoch for batch 4 == 0": (
        "readers see batches 1 to 3 while batch 4 is staged: I3"
    ),
    "python process does not hang: new epoch within 60 s": "the scenario",
    "read-committed reader is not blocked longer than epoch acquisition": (
        "a committed reader reads to the end at once, before anybody opens an epoch: the scenario"
    ),
    "commit requests for batch 4 == 2": "the scenario counts requests at the proxy",
    "applied commits for batch 4 == 1": "the scenario",
    "epoch unchanged": "the scenario",
    "rollBack callbacks == 0": "the scenario",
    "staged rows during replay == 0": "a committed batch is not run again: I2, I5",
    "state after replay == state in snapshot 4": "the states of batch 5 build on those of 4: I4",
    "no STATE_STORE_COMMIT_VALIDATION_FAILED": "Spark keeps no state of ours",
    "run for state format v1 and v2": "Spark keeps no state of ours",
    "run for state format v2": "Spark keeps no state of ours",
    "eventually blobs with id <= n-1 == 0": "ack_commit of the last batches reaches every task: I9",
    "ackCommit never precedes the root record of the same id": "I9",
    "rows staged by attempt 0 are absent from the root manifest": "I2, I3",
    "state passed to callbacks == snapshot 3": "the scenario",
    "finishBatch calls for batch 4 == 3 per task": "the scenario counts the commits",
    "ackCommit(4) exactly once per task": "the scenario",
    "visible copies of each row of batch 4 == 1": "I2",
    "no partial batch visible at any time": "the scenario's readers, and I5",
    "root.n == 3 while failing": "the scenario",
    "restart after repair satisfies I1 and I8": "I1, I8",
    "ackCommit(4) count == 0 during the outage": "the scenario",
    "visible batches == 1-3 during the outage": "the scenario",
    "visible rows of old epoch after takeover == 0": "I7 and I2",
    "new driver's checkpoint files unchanged by the old one": "local state: the scenario",
    "old process exits within 30 s of SIGCONT": "the scenario",
    "broker reject counter >= 1": "the scenario looks at the broker's answer",
    "also holds with the epoch check disabled for deterministic bolts (CAS alone)": (
        "a broker without the epoch check runs the case too"
    ),
    "attempts listed per partition == 1": "the scenario",
    "dlq: dead letters for id 137 == 1 even when a kill at F9 follows": "the scenario",
    "halt: no silent skip": "the scenario",
    "time from hang to rollback <= 1.5 x timeout": "the scenario",
    "an idle source never triggers this watchdog": "the scenario",
    "first new root.n == 5": "the scenario",
    "no batch skipped as already committed": "I1, I6",
    "time to recover reported": "headrace job status shows messages and time of restores",
    "cutting only the commit log must be shown to skip data (negative test)": "control NC8",
    "A commits during B's backoff >= 2 (first two variants)": "the scenario",
    "epoch of A unchanged": "the scenario",
    "committed index == k mod L and every word count equals the closed form": "I4",
    "duplicates only from batch 4": "the scenario",
    "same topology file as TX07": "both are program.py",
    "seq checker difference <= 1 allowed, > 1 never": "the scenario",
}
