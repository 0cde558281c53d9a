"""Scenarios in which processes die, sleep, or find their local state gone."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from typing import Any

from tests.transactions.cases.case import Case
from tests.transactions.cases.hooks import Fault, arm, release, times_hit
from tests.transactions.cases.local import FENCED
from tests.transactions.cases.looks import (
    await_true,
    bolt_of,
    is_commit,
    visible,
)
from tests.transactions.cases.proxy import running_proxy
from tests.transactions.cases.rig import Rig
from tests.transactions.cases.workload import BATCH

__all__ = [
    "at_least_once",
    "driver_killed",
    "driver_sleeps",
    "java_killed",
    "local_state_lost",
    "state_ahead",
    "worker_dies",
]

#: Where the driver stands at each failpoint of the file; the number of the batch is the hit.
_POINTS = {
    "F2": "plan.planned",
    "F6": "job.before_commit",
    "F9": "job.after_commit",
    "F10": "job.published",
    "F11": "job.published",
}
#: Seconds for the rest of a case after a new epoch is open.
_PATIENCE_TO_END = 30.0


def driver_killed(case: Case, variant: str, rig: Rig) -> Iterator[str]:
    """SIGKILL of the driver at a failpoint; another one goes on."""
    if variant == "COMMIT_FAIL":
        # On Spark, a bolt that refuses takes its worker along; those that live on must go back too.
        places = f"{bolt_of(rig)}.commit.0 driver.commit"
        arm(rig.folder, Fault(places, case.batch, ("commit_fail", "pass", "raise")))
        rig.send_all(case.batches)
        rig.finish()
        return
    if case.failpoint == "F1" and case.batch > 1:
        rig.finish_batch(case.batch - 1)
    rig.send_all(case.batches)
    _kill_at(case, variant, rig)
    yield from visible(rig, _visible_after(case))
    if case.failpoint == "F2":
        # What comes in between belongs to some later batch, once.
        rig.send(1)
    rig.finish()


def _kill_at(case: Case, variant: str, rig: Rig) -> None:
    if case.failpoint == "F1":
        _kill_at_point("job.opened", 1, rig)
    elif case.failpoint in ("F3", "F4", "F5"):
        arm(rig.folder, Fault(f"{bolt_of(rig)}.execute", case.middle, ("wait",)))
        process = rig.start()
        await_true(lambda: times_hit(rig.folder) > 0, process)
        process.kill()
        arm(rig.folder, None)
    elif "request dropped" in variant:
        _kill_at_commit(case, rig, "drop request")
    elif case.failpoint == "F8" or "answer" in variant:
        _kill_at_commit(case, rig, "drop answer")
    else:
        point = next(_POINTS[name] for name in (variant, case.failpoint) if name in _POINTS)
        _kill_at_point(point, case.batch, rig)


def _kill_at_commit(case: Case, rig: Rig, trick: Any) -> None:
    with running_proxy(rig.address, rig.broker) as proxy:
        # Asked again, a request that was lost is lost again: its sender is to die first.
        count = None if trick == "drop request" else 1
        plan = proxy.plan(is_commit(rig), case.batch, trick, count)
        process = rig.start(address=proxy.entrance)
        await_true(plan.done.is_set, process)
        process.kill()


def java_killed(case: Case, variant: str, rig: Rig) -> Iterator[str]:
    """SIGKILL of Java under a driver that lives: it goes on by itself, in a new epoch."""
    del variant
    rig.send_all(case.batches)
    arm(rig.folder, Fault(f"{bolt_of(rig)}.execute", case.middle, ("wait",)))
    process = rig.start()
    await_true(lambda: times_hit(rig.folder) > 0, process)
    arm(rig.folder, None)
    began = time.monotonic()
    process.kill_java()
    release(rig.folder)
    process.await_done()
    epochs = [record.epoch for record in rig.evidence().history if record.kind == "open"]
    if len(epochs) < 2 or time.monotonic() - began > 60 + _PATIENCE_TO_END:
        yield f"no new epoch within 60 s: {epochs}"


def worker_dies(case: Case, variant: str, rig: Rig) -> Iterator[str]:
    """A Python worker dies in a bolt: the task is tried again, or all goes back."""
    del variant
    once = case.fault["count"] == 1 and "every" not in case.fault["when"]
    # Spark tries a task four times.
    actions = ("kill",) * (1 if once else 4)
    arm(rig.folder, Fault(f"{bolt_of(rig)}.execute", case.middle, actions))
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
    if code != FENCED:
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


def at_least_once(case: Case, variant: str, rig: Rig) -> Iterator[str]:
    """The same program with the other mode: nothing is lost, and only one batch comes twice."""
    rig.config["transaction.exactly.once.mode"] = False
    if variant == "F5":
        rig.finish_batch(case.batch - 1)
    rig.send_all(case.batches)
    if variant == "F9":
        _kill_at_point("job.after_commit", case.batch, rig)
    elif variant == "F5":
        # When the first task of the next batch has staged its part.
        _kill_at_point("task.staged", 1, rig)
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


def _kill_at_point(point: str, hit: int, rig: Rig) -> None:
    """Kill the driver at a failpoint, which on Spark another of its processes may pass."""
    if rig.on == "local":
        rig.start(f"{point}=kill:{hit}").await_killed()
        return
    process = rig.start(f"{point}=stop:{hit}")
    await_true(lambda: process.times_hit(point) >= hit, process)
    process.kill()


def _visible_after(case: Case) -> int:
    """Give the last batch that counts after the driver was killed."""
    committed = case.failpoint in ("F8", "F9", "F10", "F11")
    return case.batch if committed else case.batch - 1
