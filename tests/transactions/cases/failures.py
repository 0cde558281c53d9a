"""Scenarios in which requests are lost and user code fails, while the driver lives."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from unittest.mock import patch

from headrace.client import Client
from headrace.errors import HeadraceError
from headrace.runtime.commit.drivers import DriverName
from tests.faults.local_driver import LocalDriver
from tests.transactions.cases.case import Case
from tests.transactions.cases.evidence import committed_results
from tests.transactions.cases.hooks import VARIABLE, Fault, arm, release, times_hit
from tests.transactions.cases.looks import (
    await_true,
    bolt_of,
    calls_per_task,
    is_commit,
    is_stage,
    visible,
)
from tests.transactions.cases.proxy import running_proxy
from tests.transactions.cases.rig import Rig
from tests.transactions.cases.workload import BATCH, FIRST

__all__ = [
    "answer_lost",
    "attempt_late",
    "bolt_hangs",
    "commit_delayed",
    "commit_fails",
    "group_fails",
    "log_away",
    "poison",
    "sink_fails",
]


def answer_lost(case: Case, variant: str, rig: Rig) -> Iterator[str]:
    """The commit is applied and its answer lost: the driver asks again, and nothing else."""
    del variant
    rig.send_all(case.batches)
    with running_proxy(rig.address, rig.broker) as proxy:
        proxy.plan(is_commit(rig), case.batch, "drop answer")
        process = rig.start(address=proxy.entrance)
        process.await_done()
        asked = proxy.seen["requests"]
    evidence = rig.evidence()
    applied = [each for each in evidence.commits if each.batch == case.batch]
    if len(applied) != 1:
        yield f"batch {case.batch} is in the commit topic {len(applied)} times"
    if not rig.on_rocketmq and asked != case.batches + 1:
        yield f"{asked} commit requests for {case.batches} batches: one was to be repeated"
    if {record.epoch for record in evidence.history} != {1}:
        yield "the epoch changed"
    if any(call.name == "roll_back" for call in evidence.calls):
        yield "something was rolled back"


def commit_fails(case: Case, variant: str, rig: Rig) -> Iterator[str]:
    """``commit`` of a bolt fails as often as the case says, then works."""
    del variant
    words = {"raise": "raise", "COMMIT_FAIL": "commit_fail"}
    actions = [words[word] for word in case.fault["sequence"] if word in words]
    arm(rig.folder, Fault(f"{bolt_of(rig)}.commit.0", case.batch, tuple(actions)))
    rig.send_all(case.batches)
    rig.finish()
    evidence = rig.evidence()
    opens = sum(record.kind == "open" for record in evidence.history)
    if opens != 1 + len(actions):
        yield f"{opens - 1} roll-backs for {len(actions)} failures"
    acknowledged = calls_per_task(evidence.calls, "ack_commit", case.batch)
    if any(count != 1 for count in acknowledged.values()):
        yield f"ack_commit({case.batch}): {acknowledged}"


def sink_fails(case: Case, variant: str, rig: Rig) -> Iterator[str]:
    """Staging fails: twice, and every batch comes once; for good, and the job stops."""
    del variant
    with running_proxy(rig.address, rig.broker) as proxy:
        staging = is_stage(rig)
        rig.finish_batch(case.batch - 1, address=proxy.entrance)
        rig.send_all(case.batches)
        if case.fault["count"] > 0:
            proxy.refuse(staging, case.fault["count"])
            rig.finish(address=proxy.entrance)
            return
        proxy.refuse(staging, None)
        failing = rig.start(
            address=proxy.entrance, retry_timeout="1 s", request_timeout="1 s", rollback_retries="2"
        )
        if failing.wait() == 0:
            yield "it ended well while nothing could be staged"
        yield from visible(rig, case.batch - 1)
        last = rig.evidence().history[-1]
        if last.batch != case.batch - 1:
            yield f"batch {last.batch} was committed meanwhile"
    rig.finish()


def log_away(case: Case, variant: str, rig: Rig) -> Iterator[str]:
    """The commit topic cannot be reached for a while: the job waits and goes on."""
    del variant
    with running_proxy(rig.address, rig.broker) as proxy:
        rig.finish_batch(case.batch - 1, address=proxy.entrance)
        rig.send_all(case.batches)
        outage = proxy.refuse(is_commit(rig), None)
        process = rig.start(address=proxy.entrance)
        await_true(outage.is_set, process)
        time.sleep(float(case.fault["duration_s"]))
        yield from visible(rig, case.batch - 1)
        acknowledged = calls_per_task(rig.calls, "ack_commit", case.batch)
        if acknowledged:
            yield f"acknowledged before it was committed: {acknowledged}"
        proxy.relent()
        process.await_done()


def commit_delayed(case: Case, variant: str, rig: Rig) -> Iterator[str]:
    """The commit of a killed driver comes late: nobody takes it for that of its successor."""
    rig.send_all(case.batches)
    with running_proxy(rig.address, rig.broker) as proxy:
        # With whatever its driver sends again until it is killed.
        plan = proxy.plan(is_commit(rig), case.batch, "delay request", None)
        process = rig.start(address=proxy.entrance)
        await_true(plan.done.is_set, process)
        process.kill()
        if "before" in variant:
            successor = rig.start("job.before_commit=stop")
            successor.await_stopped()
            answers = proxy.deliver_late()
            successor.process.send_signal(signal.SIGCONT)
            successor.await_done()
        else:
            rig.finish()
            answers = [*proxy.deliver_late(), *(proxy.deliver_late() if "dup" in variant else ())]
    if not rig.on_rocketmq and any(answer.code == 0 for answer in answers):
        yield f"the late commit was accepted: {[answer.remark for answer in answers]}"


def poison(case: Case, variant: str, rig: Rig) -> Iterator[str]:
    """A tuple that a bolt cannot handle: the job halts, or the tuple goes to dead letters."""
    poisoned = int(case.fault["when"].split(",")[0].split()[-1])
    arm(rig.folder, Fault("split.execute", poisoned, ("raise",), always=True))
    rig.send_all(case.batches)
    if "halt" in variant:
        process = rig.start(rollback_retries="2")
        if process.wait() == 0:
            yield "it went on behind a tuple that it cannot handle"
        if str(poisoned) not in process.said:
            yield f"the message does not name the tuple:\n{process.said[-800:]}"
        reached = rig.evidence().history[-1].batch
        if reached != (poisoned // BATCH):
            yield f"it stopped at batch {reached}"
        arm(rig.folder, None)
        rig.finish()
        return
    rig.config["poison.policy"] = f"topic:{rig.dead_letters}"
    hit = poisoned // BATCH + 1
    rig.start(f"job.after_commit=kill:{hit}").await_killed()
    rig.finish()
    with Client(rig.address) as client:
        dead = [row["id"] for row in committed_results(client, rig.dead_letters)]
    if dead != [poisoned]:
        yield f"dead letters: {dead}"
    rig.without.add(poisoned)


def bolt_hangs(case: Case, variant: str, rig: Rig) -> Iterator[str]:
    """A bolt hangs for longer than a batch may take: the job goes back and tries again."""
    del variant
    seconds = float(case.fault["duration_s"])
    limit = float(case.setup["transaction.batch.snapshot.timeout"])
    arm(rig.folder, Fault(f"{bolt_of(rig)}.execute", case.middle, (f"sleep:{seconds}",)))
    rig.config["transaction.batch.snapshot.timeout"] = int(limit)
    rig.send_all(case.batches)
    process = rig.start()
    await_true(lambda: times_hit(rig.folder) > 0, process)
    began = time.monotonic()
    epochs = rig.epochs
    await_true(lambda: rig.epochs > epochs, process)
    took = time.monotonic() - began
    if took > 1.5 * limit + 2:
        yield f"it went back {took:.1f} s after the bolt hung; the limit is {limit:g} s"
    process.await_done()


def attempt_late(case: Case, variant: str, rig: Rig) -> Iterator[str]:
    """Attempts of tasks that do not count stage beside the one that does, and after its commit."""
    del variant
    rig.finish_batch(case.batch - 1)
    rig.send_all(case.batches)
    here = {VARIABLE: str(rig.folder)}
    with (
        patch.dict(os.environ, here),
        LocalDriver(
            rig.address, rig.folder / "job", BATCH, job=rig.topology, name=str(DriverName.here())
        ) as driver,
    ):
        planned = driver.plan()
        driver.process(planned)
        end = driver.process(planned)
        places = [(part.stage, part.partition) for part in end.parts]
        if len(places) != len(set(places)):
            yield f"more than one attempt of a task is committed: {places}"
        driver.commit(end)
        with contextlib.suppress(HeadraceError):
            driver.process(planned)
    rig.finish()


def group_fails(case: Case, variant: str, rig: Rig) -> Iterator[str]:
    """A bolt below the second kind of source fails: only what shares state with it goes back."""
    failures = int(case.fault["count"])
    *others, group = rig.built.groups
    if bool(others) != ("stateful" not in variant):
        yield f"there are {len(others) + 1} groups"
    if not others and "meet in the state of count" not in rig.built.describe():
        yield "the builder does not say that both are one group"
    actions = ("raise",) * (failures - 1) + ("hold",)
    arm(rig.folder, Fault("split-b.execute", FIRST + case.middle, actions))
    rig.send_to(1, case.batches)
    if not others:
        rig.send_to(0, case.batches)
        release(rig.folder)
    process = rig.start()
    for other in others:
        # The others get theirs while the last failure is held back.
        await_true(lambda: times_hit(rig.folder) == failures, process)
        before = rig.history_of(group)[-1]
        rig.send_to(0, case.batches)
        await_true(lambda at=other: rig.history_of(at)[-1].batch >= case.batches, process)  # type: ignore[misc]
        if rig.history_of(group)[-1] != before or before.batch != case.batch - 1:
            yield f"group {group.name} stood at batch {before.batch}, and went on meanwhile"
        release(rig.folder)
    process.await_done()
    yield from _rolled_back(rig, failures)


def _rolled_back(rig: Rig, failures: int) -> Iterator[str]:
    """Compare the roll-backs of the last group, and those of the others, with what there must be."""
    *others, failed = rig.evidences()
    for evidence, wanted in [*((other, 0) for other in others), (failed, failures)]:
        opens = sum(record.kind == "open" for record in evidence.history)
        if opens != 1 + wanted:
            yield f"{opens - 1} roll-backs of a group instead of {wanted}"
        if any(call.name == "roll_back" for call in evidence.calls) != bool(wanted):
            yield f"roll_back of a group with {wanted} failures: {not wanted}"
