"""What is done in each kind of case, by the kind and the target of its fault.

A scenario runs drivers of a workload, does what the case says, and lets the job come to its end.
It says what was wrong on the way; what must hold at the end is checked by the invariants.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest.mock import patch

from headrace.client import Client
from headrace.errors import HeadraceError
from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Command
from headrace.runtime.commit.drivers import DriverName
from tests.faults.local_driver import LocalDriver
from tests.transactions.cases.case import Case
from tests.transactions.cases.evidence import committed_results
from tests.transactions.cases.hooks import VARIABLE, Fault, arm, release, times_hit
from tests.transactions.cases.local import FENCED
from tests.transactions.cases.proxy import running_proxy
from tests.transactions.cases.rig import Process, Rig
from tests.transactions.cases.workloads import BATCH

__all__ = ["SCENARIOS", "Scenario", "scenario_of"]

Scenario = Callable[[Case, str, Rig], Iterator[str]]
"""Takes the case, one of its variants, and the rig; gives what is wrong."""

#: Where the driver stands at each failpoint of the file; the number of the batch is the hit.
_POINTS = {
    "F2": "plan.planned",
    "F6": "job.before_commit",
    "F9": "job.after_commit",
    "F10": "job.published",
    "F11": "job.published",
}
#: The bolt of each workload in which user code fails.
_BOLTS = {"set": "count", "bank": "debit", "seq": "seq", "example": "count"}
_RESTS = 0.05
#: Seconds for the rest of a case after a new epoch is open.
_PATIENCE_TO_END = 30.0


def driver_killed(case: Case, variant: str, rig: Rig) -> Iterator[str]:
    """SIGKILL of the driver at a failpoint; another one goes on."""
    if variant == "COMMIT_FAIL":
        arm(rig.folder, Fault(f"{_bolt(rig)}.commit.0", case.batch, ("commit_fail",)))
        rig.send_all(case.batches)
        rig.finish()
        return
    if case.failpoint == "F1" and case.batch > 1:
        rig.finish_batch(case.batch - 1)
    rig.send_all(case.batches)
    _kill_at(case, variant, rig)
    yield from _visible(rig, _visible_after(case))
    if case.failpoint == "F2":
        # What comes in between belongs to some later batch, once.
        rig.send(1)
    rig.finish()


def _kill_at(case: Case, variant: str, rig: Rig) -> None:
    if case.failpoint == "F1":
        rig.start("job.opened=kill").await_killed()
    elif case.failpoint in ("F3", "F4", "F5"):
        arm(rig.folder, Fault(f"{_bolt(rig)}.execute", case.middle, ("wait",)))
        process = rig.start()
        _await(lambda: times_hit(rig.folder) > 0, process)
        process.kill()
        arm(rig.folder, None)
    elif "request dropped" in variant:
        _kill_at_commit(case, rig, "drop request")
    elif case.failpoint == "F8" or "answer" in variant:
        _kill_at_commit(case, rig, "drop answer")
    else:
        point = next(_POINTS[name] for name in (variant, case.failpoint) if name in _POINTS)
        rig.start(f"{point}=kill:{case.batch}").await_killed()


def _kill_at_commit(case: Case, rig: Rig, trick: Any) -> None:
    with running_proxy(rig.address, rig.broker) as proxy:
        plan = proxy.plan(_is_commit(rig), case.batch, trick)
        process = rig.start(address=proxy.entrance)
        _await(plan.done.is_set, process)
        process.kill()


def java_killed(case: Case, variant: str, rig: Rig) -> Iterator[str]:
    """SIGKILL of Java under a driver that lives: it goes on by itself, in a new epoch."""
    del variant
    rig.send_all(case.batches)
    arm(rig.folder, Fault(f"{_bolt(rig)}.execute", case.middle, ("wait",)))
    process = rig.start()
    _await(lambda: times_hit(rig.folder) > 0, process)
    arm(rig.folder, None)
    began = time.monotonic()
    process.kill_java()
    release(rig.folder)
    process.await_done()
    epochs = [record.epoch for record in rig.evidence().history if record.kind == "open"]
    if len(epochs) < 2 or time.monotonic() - began > 60 + _PATIENCE_TO_END:
        yield f"no new epoch within 60 s: {epochs}"


def answer_lost(case: Case, variant: str, rig: Rig) -> Iterator[str]:
    """The commit is applied and its answer lost: the driver asks again, and nothing else."""
    del variant
    rig.send_all(case.batches)
    with running_proxy(rig.address, rig.broker) as proxy:
        proxy.plan(_is_commit(rig), case.batch, "drop answer")
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


def worker_dies(case: Case, variant: str, rig: Rig) -> Iterator[str]:
    """A Python worker dies in a bolt: the task is tried again, or all goes back."""
    del variant
    once = case.fault["count"] == 1 and "every" not in case.fault["when"]
    # Spark tries a task four times.
    actions = ("kill",) * (1 if once else 4)
    arm(rig.folder, Fault(f"{_bolt(rig)}.execute", case.middle, actions))
    rig.send_all(case.batches)
    rig.finish()
    evidence = rig.evidence()
    opens = sum(record.kind == "open" for record in evidence.history)
    if opens != (1 if once else 2):
        yield f"{opens} epochs were opened"
    if not once:
        yield from _went_back(case, evidence.calls)


def _went_back(case: Case, calls: Any) -> Iterator[str]:
    if not any(call.name == "roll_back" for call in calls):
        yield f"nothing was rolled back to batch {case.batch - 1}"


def commit_fails(case: Case, variant: str, rig: Rig) -> Iterator[str]:
    """``commit`` of a bolt fails as often as the case says, then works."""
    del variant
    words = {"raise": "raise", "COMMIT_FAIL": "commit_fail"}
    actions = [words[word] for word in case.fault["sequence"] if word in words]
    arm(rig.folder, Fault(f"{_bolt(rig)}.commit.0", case.batch, tuple(actions)))
    rig.send_all(case.batches)
    rig.finish()
    evidence = rig.evidence()
    opens = sum(record.kind == "open" for record in evidence.history)
    if opens != 1 + len(actions):
        yield f"{opens - 1} roll-backs for {len(actions)} failures"
    acknowledged = _per_task(evidence.calls, "ack_commit", case.batch)
    if any(count != 1 for count in acknowledged.values()):
        yield f"ack_commit({case.batch}): {acknowledged}"


def _per_task(calls: Any, name: str, batch: int) -> Mapping[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for call in calls:
        if call.name == name and call.batch == batch:
            found[call.task] = found.get(call.task, 0) + 1
    return found


def sink_fails(case: Case, variant: str, rig: Rig) -> Iterator[str]:
    """Staging fails: twice, and every batch comes once; for good, and the job stops."""
    del variant
    with running_proxy(rig.address, rig.broker) as proxy:
        staging = _is_stage(rig)
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
        yield from _visible(rig, case.batch - 1)
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
        outage = proxy.refuse(_is_commit(rig), None)
        process = rig.start(address=proxy.entrance)
        _await(outage.is_set, process)
        time.sleep(float(case.fault["duration_s"]))
        yield from _visible(rig, case.batch - 1)
        acknowledged = _per_task(rig.calls, "ack_commit", case.batch)
        if acknowledged:
            yield f"acknowledged before it was committed: {acknowledged}"
        proxy.relent()
        process.await_done()


def driver_sleeps(case: Case, variant: str, rig: Rig) -> Iterator[str]:
    """A driver sleeps before its commit, is replaced, and wakes: it is told, and ends."""
    del variant
    rig.send_all(case.batches)
    sleeper = rig.start(f"job.before_commit=stop:{case.batch}")
    sleeper.await_stopped()
    rig.finish()
    before = _files(rig)
    sleeper.process.send_signal(signal.SIGCONT)
    code = sleeper.wait(30)
    if code in (0, -signal.SIGKILL):
        yield f"the driver that had slept ended with {code}"
    if rig.on == "local" and code != FENCED:
        yield f"it was not told that another took over:\n{sleeper.said[-500:]}"
    if changed := _files(rig) ^ before:
        yield f"it changed local state of its successor: {sorted(changed)[:3]}"


def _files(rig: Rig) -> set[tuple[str, int]]:
    root = rig.folder / "job" / "state"
    return {
        (str(path.relative_to(root)), path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file() and path.suffix != ".arrow" and path.name != "LOG"
    }


def commit_delayed(case: Case, variant: str, rig: Rig) -> Iterator[str]:
    """The commit of a killed driver comes late: nobody takes it for that of its successor."""
    rig.send_all(case.batches)
    with running_proxy(rig.address, rig.broker) as proxy:
        plan = proxy.plan(_is_commit(rig), case.batch, "delay request")
        process = rig.start(address=proxy.entrance)
        _await(plan.done.is_set, process)
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
    arm(rig.folder, Fault(f"{_bolt(rig)}.execute", case.middle, (f"sleep:{seconds}",)))
    rig.config["transaction.batch.snapshot.timeout"] = int(limit)
    rig.send_all(case.batches)
    process = rig.start()
    _await(lambda: times_hit(rig.folder) > 0, process)
    began = time.monotonic()
    epochs = rig.epochs
    _await(lambda: rig.epochs > epochs, process)
    took = time.monotonic() - began
    if took > 1.5 * limit + 2:
        yield f"it went back {took:.1f} s after the bolt hung; the limit is {limit:g} s"
    process.await_done()


def local_state_lost(case: Case, variant: str, rig: Rig) -> Iterator[str]:
    """What is on local disk is gone, or old: it is read from the state topics again."""
    rig.finish_batch(2)
    root, backup = rig.folder / "job" / "state", rig.folder / "backup"
    shutil.copytree(root, backup)
    rig.finish_batch(case.batch)
    shutil.rmtree(root)
    if "backup" in variant:
        shutil.copytree(backup, root)
    committed = rig.evidence().history[-1].batch
    rig.send_all(case.batches)
    rig.finish()
    following = [each.batch for each in rig.evidence().commits if each.batch > committed][:1]
    if following != [committed + 1]:
        yield f"after batch {committed} came {following}"


def state_ahead(case: Case, variant: str, rig: Rig) -> Iterator[str]:
    """Local state holds changes of batches that were never committed: nobody takes them."""
    del variant
    rig.send_all(case.batches)
    rig.start(f"job.before_commit=kill:{case.batch}").await_killed()
    rig.start("job.before_commit=kill:1").await_killed()
    rig.finish()
    yield from ()


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


def at_least_once(case: Case, variant: str, rig: Rig) -> Iterator[str]:
    """The same program with the other mode: nothing is lost, and only one batch comes twice."""
    rig.config["transaction.exactly.once.mode"] = False
    rig.send_all(case.batches)
    if variant != "no fault":
        point = {"F5": "task.staged", "F9": "job.after_commit"}[variant]
        hit = case.batch if variant == "F9" else (case.batch - 1) * rig.tasks_per_batch + 1
        rig.start(f"{point}=kill:{hit}").await_killed()
    rig.finish()
    seen: dict[Any, int] = {}
    for row in rig.evidence().results:
        seen[row["id"]] = seen.get(row["id"], 0) + 1
    twice = {number for number, count in seen.items() if count > 1}
    within = range((case.batch - 1) * BATCH, case.batch * BATCH)
    if variant == "no fault" and twice:
        yield f"without a fault, {len(twice)} results come twice"
    if any(number not in within for number in twice):
        yield f"results of other batches than {case.batch} come twice: {sorted(twice)[:5]}"


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


def _bolt(rig: Rig) -> str:
    return _BOLTS[rig.workload.name]


def _visible_after(case: Case) -> int:
    """Give the last batch that counts after the driver was killed."""
    committed = case.failpoint in ("F8", "F9", "F10", "F11")
    return case.batch if committed else case.batch - 1


def _visible(rig: Rig, batch: int) -> Iterator[str]:
    """Compare what a committed reader sees with the messages of the batches up to one."""
    if not rig.sink:
        return
    with Client(rig.address) as client:
        seen = {row["id"] for row in committed_results(client, rig.sink)}
    wanted = set(range(batch * BATCH))
    # On RocketMQ, what is committed may still have to be published, by whoever comes next.
    unpublished = set(range((batch - 1) * BATCH, batch * BATCH)) if rig.on_rocketmq else set()
    if not wanted - unpublished <= seen <= wanted:
        yield f"readers see {len(seen)} ids instead of those of batches 1 to {batch}"


def _is_commit(rig: Rig) -> Callable[[Command], bool]:
    if not rig.on_rocketmq:
        return lambda command: command.code == RequestCode.COMMIT_BATCH
    topic = rig.topology.commit_topic
    return lambda command: command.ext.get("b") == topic and "commit" in command.ext.get("i", "")


def _is_stage(rig: Rig) -> Callable[[Command], bool]:
    if not rig.on_rocketmq:
        return lambda command: command.code == RequestCode.STAGE
    return lambda command: str(command.ext.get("b", "")).endswith("-journalTopic")


def _await(reached: Callable[[], bool], process: Process, patience: float = 120.0) -> None:
    deadline = time.monotonic() + patience
    while not reached():
        assert process.process.poll() is None, f"the driver ended:\n{process.said[-3000:]}"
        assert time.monotonic() < deadline, f"it did not come so far:\n{process.said[-3000:]}"
        time.sleep(_RESTS)
