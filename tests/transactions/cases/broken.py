"""Builds that are wrong in one way each: the negative controls, which some case must catch.

The file's controls speak of Spark's checkpoint; each is restated here for what takes its place,
the commit topic and the local state.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from headrace.runtime.bolts.states import StatefulTasks
from headrace.runtime.state import local as copies
from tests.transactions.cases.case import On
from tests.transactions.cases.workload import BATCH

__all__ = ["CONTROLS", "Control", "break_build"]


@dataclass(frozen=True)
class Control:
    """What is wrong, for one control of the file."""

    #: Says what it is here.
    what: str
    #: Safeguards that the broker goes without.
    without: str = ""
    #: Name of the change to the driver, below.
    broken: str = ""
    #: Name of the flaw of the workload's own code.
    flaw: str = ""
    #: What shows it on Spark: a task that moves to another worker begins anew there.
    on_spark: On = "spark"


CONTROLS: Mapping[str, Control] = {
    "NC1": Control("the broker takes commits of older epochs", without="epoch"),
    "NC2": Control("and those that do not follow the last commit", without="epoch,predecessor"),
    "NC3": Control("a start reads from an older place than the commit", broken="older offsets"),
    "NC4": Control("ack_commit comes before the commit", broken="early ack"),
    "NC5": Control("a committed change is not applied to local state", broken="lost change"),
    "NC6": Control("a driver that was replaced tidies local state up", broken="tidy zombie"),
    "NC7": Control("a bolt ignores roll_back(None)", flaw="forgetful", on_spark="one core"),
    "NC8": Control("changes are applied that no commit names", broken="early change"),
}


def break_build(name: str) -> None:
    """Break this process in the way that is named; nothing for no name."""
    if name:
        _BREAKS[name]()


def _older_offsets() -> None:
    # The workloads ask for this while they are loaded, so this module can load nothing of theirs.
    from headrace.spark import driver
    from tests.faults import local_driver

    modules: Any = driver, local_driver
    settled = modules[0].settled_record

    def older(*given: Any) -> Any:
        record = settled(*given)
        offsets = {queue: max(0, offset - BATCH) for queue, offset in record.offsets.items()}
        return msgspec.structs.replace(record, offsets=offsets)

    for module in modules:
        module.settled_record = older


def _early_ack() -> None:
    finish = StatefulTasks.finish

    def finish_and_acknowledge(self: Any, task: int, instance: Any, **more: Any) -> None:
        finish(self, task, instance, **more)
        place = instance.place
        instance.call("ack_commit", place.batch(place.numbers.batch))

    StatefulTasks.finish = finish_and_acknowledge  # type: ignore[method-assign]


def _lost_change() -> None:
    def mark_only(database: Any, keys: Any, values: Any, mark: Any) -> None:
        del keys, values
        _write(database, [], [], mark)

    _write = copies._write
    copies._write = mark_only


def _tidy_zombie() -> None:
    from headrace.spark.driver import JobDriver
    from tests.faults.local_driver import LocalDriver

    _tidy_after(LocalDriver, "commit", lambda driver: driver._job.plan.state_root)
    _tidy_after(JobDriver, "_commit", lambda driver: driver._connection.plan.state_root)


def _tidy_after(driver: type, name: str, root: Callable[[Any], Path]) -> None:
    commit = getattr(driver, name)

    def commit_or_tidy(self: Any, *given: Any) -> Any:
        try:
            return commit(self, *given)
        except Exception:
            shutil.rmtree(root(self))
            raise

    setattr(driver, name, commit_or_tidy)


def _early_change() -> None:
    open_copy = copies.LocalCopies.open

    def open_ahead(self: Any, store: str, partition: int, summary: Any, lineage: Any) -> Any:
        copy = open_copy(self, store, partition, summary, lineage)
        database = copy._database
        for path in (self._folder(store, partition) / "changes").glob("*.arrow"):
            if database is not None and int(path.stem.split("-")[1]) > summary.batch:
                table = pa.ipc.open_file(path.read_bytes()).read_all()
                keys, values = (table.column(name).to_pylist() for name in ("key", "value"))
                copies._write(database, keys, values, None)
        return copy

    copies.LocalCopies.open = open_ahead  # type: ignore[method-assign]


_BREAKS: Mapping[str, Callable[[], None]] = {
    "older offsets": _older_offsets,
    "early ack": _early_ack,
    "lost change": _lost_change,
    "tidy zombie": _tidy_zombie,
    "early change": _early_change,
}
