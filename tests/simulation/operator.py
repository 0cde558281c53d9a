"""Somebody who looks after the simulated job: looks at it, ends it, moves its state."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from msgspec import structs

from headrace.client import Client, Jobs
from headrace.errors import (
    FencedError,
    HeadraceError,
    InvalidParameterError,
    PredecessorMismatchError,
)
from headrace.protocol.transactions import CommitRequest
from headrace.runtime.commit.transactions import BrokerTransactions
from headrace.runtime.jobs.journal import abort
from headrace.runtime.jobs.reset import exported, import_state, rescale
from headrace.runtime.state.home import StateHome
from headrace.runtime.state.views import CommittedState
from headrace.topology.names import commit_topic
from tests.simulation.checks import require
from tests.simulation.job import EPOCH, JOB, LINES
from tests.simulation.threads import sleep
from tests.simulation.world import Process, ViolationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.simulation.cluster import Drivers

#: How long a step is tried again, s; the lease of a driver that was killed ends before that.
_PATIENCE = 15.0
_LATE = EPOCH + timedelta(days=365)
_BELOW_ZERO = {f"{LINES}@broker-a@0": -1}


class Operator:
    """Visits the job now and then; while its state moves, no driver is started.

    Parameters
    ----------
    process
        What runs its commands.
    drivers
        Who runs the job.
    connect
        Connects to its cluster.
    stores
        Stores of the job.
    """

    def __init__(
        self,
        process: Process,
        drivers: Drivers,
        connect: Callable[[], Client],
        stores: Sequence[str],
    ) -> None:
        self.failure: ViolationError | None = None
        self.is_here = False
        #: Whether no driver may be started.
        self.is_busy = False
        self._process = process
        self._world = process.world
        self._drivers = drivers
        self._connect = connect
        self._stores = stores
        process.on_death.append(self._leave)

    def plan(self, *, carries: bool) -> None:
        """Choose when to come, and for what: state in a file is not always that of the last commit."""
        chance = self._world.chance
        visits = [self._look, self._abort, self._rescale, self._pry]
        visits += [self._carry] if carries else []
        for _ in range(chance.choice((0, 0, 0, 1, 2))):
            visit = chance.choice(visits)
            self._world.at(chance.uniform(1.0, 7.0), partial(self._begin, visit))

    def end_job(self) -> None:
        """Come to end the job: something has just happened to it."""
        self._begin(self._abort)

    def dismiss(self) -> None:
        """Have the operator come no more."""
        self._process.kill()

    def _begin(self, visit: Callable[[StateHome], None]) -> None:
        def run() -> None:
            with self._connect() as client:
                self._try(visit, client)
            self._leave()

        if not self.is_here and not self._process.dead and self._drivers.processes:
            self._world.tell(f"the operator comes to {visit.__name__.strip('_')}")
            self.is_here = True
            self._world.start(self._process, run)

    def _leave(self) -> None:
        self.is_here = self.is_busy = False

    def _try(self, visit: Callable[[StateHome], None], client: Client) -> None:
        deadline = self._world.now + _PATIENCE
        while self._world.now < deadline:
            try:
                visit(StateHome.of(JOB, client))
            except HeadraceError as error:
                self._world.tell(f"the operator: {error.message[:90]}")
                sleep(self._world, 0.5)
            except ViolationError as error:
                self.failure = error
                return
            else:
                return

    def _look(self, home: StateHome) -> None:
        for store in self._stores:
            with CommittedState(home, store) as view:
                found = list(exported(view))
                _look_by_key(view)
            self._world.tell(f"the operator sees {len(found)} entries of {store}")

    def _pry(self, home: StateHome) -> None:
        """Send a commit that no driver would send, which must leave nothing in the log."""
        if not isinstance(home.transactions, BrokerTransactions):
            return
        record = home.transactions.plan([], {}, 0, 0).record
        if record is None:
            return
        wrong = self._world.chance.choice(({"lines": 1}, {"lines@broker-a@x": 1}, _BELOW_ZERO))
        asked = structs.replace(
            record, kind="commit", batch=record.batch + 1, offsets=record.offsets | wrong
        )
        request = CommitRequest(
            commit_topic=commit_topic(JOB), group=JOB, previous=record.batch, parts=[], record=asked
        )
        try:
            Jobs(home.client, request.commit_topic).commit(request)
        except (InvalidParameterError, FencedError, PredecessorMismatchError) as error:
            self._world.tell(f"somebody's commit is refused: {error.message[:90]}")

    def _abort(self, home: StateHome) -> None:
        """End whoever runs the job, in the middle of what it does."""
        told = abort(home.client, JOB, patience=timedelta(seconds=2))
        self._world.tell(f"the operator has ended epoch {told.epoch}")

    def _rescale(self, home: StateHome) -> None:
        partitions = self._world.chance.choice((1, 2, 3))
        self._stop_drivers()
        rescale(home, partitions)
        self._world.tell(f"the job has {partitions} partitions now")

    def _carry(self, home: StateHome) -> None:
        """Let each store hold what it holds, by the way through a file."""
        self._stop_drivers()
        for store in self._stores:
            with CommittedState(home, store) as view:
                lines = list(exported(view))
            import_state(home, store, lines)

    def _stop_drivers(self) -> None:
        self.is_busy = True
        for driver in self._drivers.alive:
            driver.kill()


def _look_by_key(view: CommittedState) -> None:
    """Ask for single keys, ranges and windows: between two commits they agree with each other.

    Raises
    ------
    ViolationError
        They do not.
    """
    while True:
        before = view.all()
        texts = [key for key in before if isinstance(key, str)]
        seen = {key: view.get(key) for key in before}
        ordered = dict(view.range(min(texts), max(texts))) if texts else {}
        begun = {key: value for key in texts[:1] for key, value in view.prefix(key)}
        windows = [list(view.window(key, EPOCH, _LATE)) for key in texts]
        if view.all() == before:
            break
    require(seen == dict(before), f"{view.name} has {before}, and key by key {seen}")
    require(set(ordered) == {key for key in texts if key < max(texts)}, f"a range gives {ordered}")
    require(set(begun) <= set(texts), f"a prefix gives {begun}")
    require(len(windows) == len(texts), "windows are missing")
