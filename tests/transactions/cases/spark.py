"""Drivers of workloads on Spark: ``python -m tests.transactions.cases.spark FOLDER``.

Spark takes longer to start than a case takes, so this process runs one driver after the other in
one session, as its standard input asks for them: a line of JSON each, an :class:`Order`.  Python
workers outlive the drivers, and their environment is that of the process; what they look up there
are links in the folder, which lead to what belongs to the present driver.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from datetime import timedelta
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn

import msgspec

from headrace.errors import RollbackError
from headrace.failpoints import ENVIRONMENT_VARIABLE, arm_in_folder
from headrace.settings import JobSettings
from headrace.spark import TransactionJob
from headrace.spark.driver import JobDriver
from headrace.spark.session import get_session
from tests.transactions.cases.hooks import VARIABLE, FaultError, here
from tests.transactions.cases.local import status_of
from tests.transactions.cases.workloads import WORKLOADS

__all__ = ["MASTERS", "Order", "environment_of"]

MASTERS: dict[str, dict[str, Any]] = {
    "spark": {"master": "local[2,4]"},
    "one core": {"master": "local[1,4]"},
    "cluster": {
        "master": "local-cluster[3,1,1024]",
        "spark_config": {"spark.executor.memory": "512m"},
    },
}
"""Spark tries a task four times: a worker that dies once is no failure of the batch."""
_ON = "HEADRACE_CASES_ON"

_CASE, _POINTS = "case", "points"
_LOOK = timedelta(seconds=0.05)


class Order(msgspec.Struct):
    """One driver: what it runs, until when, and what happens to it."""

    workload: str
    suffix: str
    config: dict[str, Any]
    settings: dict[str, str]
    #: Failpoints that are armed; hits are counted over all processes of the driver.
    failpoints: str
    #: The batch after which it ends; 0: when it has caught up.
    last: int
    #: Folder of the case, for faults and traces.
    folder: str
    #: Folder for the counts of failpoints.
    points: str
    #: File for what is printed, and for the exit status.
    log: str
    answer: str


def environment_of(folder: Path, on: str) -> dict[str, str]:
    """Give what all processes of a host look up."""
    return {
        VARIABLE: str(folder / _CASE),
        ENVIRONMENT_VARIABLE: f"folder:{folder / _POINTS}",
        _ON: on,
    }


def _master() -> dict[str, Any]:
    return MASTERS[os.environ[_ON]]


def _run(order: Order) -> int:
    try:
        return status_of(partial(_run_job, order))
    except Exception:
        traceback.print_exc()
        return 2


def _run_job(order: Order) -> None:
    workload = WORKLOADS[order.workload]
    builder = workload.build(order.config, order.suffix)
    settings: dict[str, Any] = {**_master(), **order.settings}
    with TransactionJob(builder.build(), JobSettings(**settings)).start() as job:
        if workload.sources and not order.last:
            job.await_caught_up()
            return
        # Without a source to catch up with, it goes on until it is killed.
        while not order.last or job.statistics().batch < order.last:
            # Raises where the job has failed.
            job.await_termination(_LOOK)
            time.sleep(_LOOK.total_seconds())


def _settle_in(folder: Path, order: Order) -> None:
    """Let everything that this process and its children look up be that of a driver."""
    output = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    Path(order.points).mkdir()
    arm_in_folder(Path(order.points), order.failpoints)
    for name, target in ((_CASE, order.folder), (_POINTS, order.points)):
        draft = folder / f"{name}.draft"
        draft.symlink_to(target)
        draft.replace(folder / name)


def _answer(order: Order, code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    path = Path(order.answer)
    draft = path.with_suffix(".draft")
    draft.write_text(str(code))
    draft.replace(path)


def _let_drivers_give_up() -> None:
    """Have ``driver.commit`` be a place for faults: the batch fails, and no worker with it."""
    commit = JobDriver._commit

    def commit_or_give_up(self: JobDriver, *given: Any) -> None:
        try:
            here("driver.commit", self.batch + 1)
        except FaultError as error:
            raise RollbackError(f"the driver gives a batch up: {error}") from error
        commit(self, *given)

    JobDriver._commit = commit_or_give_up  # type: ignore[method-assign, assignment]


def _read(orders: SimpleQueue[Order]) -> None:
    """Take orders; whoever gave them is gone when there are no more, and so is this process."""
    for line in sys.stdin.buffer:
        orders.put(msgspec.json.decode(line, type=Order))
    os._exit(0)


def main(folder: Path) -> NoReturn:
    """Run the drivers that are asked for, until nobody asks any more."""
    logging.basicConfig(level=logging.WARNING)
    orders: SimpleQueue[Order] = SimpleQueue()
    threading.Thread(target=_read, args=(orders,), daemon=True).start()
    get_session(JobSettings(**_master(), data_dir=folder))
    _let_drivers_give_up()
    while True:
        order = orders.get()
        _settle_in(folder, order)
        _answer(order, _run(order))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
