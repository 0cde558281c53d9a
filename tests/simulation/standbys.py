"""Standby drivers: they wait until the driver's lease ends, and then take over, not much later."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import headrace.spark.job
import headrace.spark.standby
from headrace.broker.clients import QueueLocks
from headrace.runtime.commit.drivers import Lease
from headrace.spark.standby import Standby
from headrace.topology.names import commit_topic
from tests.simulation.cluster import EmbeddedCluster
from tests.simulation.job import JOB
from tests.simulation.rocketmq import LOCK_EXPIRY
from tests.simulation.world import Process, ViolationError, World

if TYPE_CHECKING:
    from headrace.spark import StreamJob
    from tests.simulation.cluster import Drivers
    from tests.simulation.network import Network
    from tests.simulation.rocketmq import RocketMQCluster

__all__ = ["Standbys"]

#: It takes the lease to end, a look, the time for which that is doubted, and what is slow, s.
_TAKEN_OVER = LOCK_EXPIRY + 1.0 + 5.0 + 5.0

#: How long it may take from the end of a doubt to a takeover, s.
_DECIDED = 8.0


class Standbys:
    """Keeps a standby beside the driver of a job.

    Parameters
    ----------
    world, cluster, network, drivers
        Where it is.
    is_busy
        Tells whether no driver may be started.
    """

    def __init__(
        self,
        world: World,
        cluster: EmbeddedCluster | RocketMQCluster,
        network: Network,
        drivers: Drivers,
        is_busy: Callable[[], bool],
    ) -> None:
        self._world = world
        self._cluster = cluster
        self._network = network
        self._drivers = drivers
        self._is_busy = is_busy
        #: Those that wait, and are warm.
        self._waiting: set[Process] = set()
        self._warm: set[Process] = set()
        #: Who was granted the lease last, when, and by which broker's table.
        self._holder: tuple[str, float] | None = None
        self._table: object = None
        #: When a standby last held it, or gave it back after its doubt.
        self._yielded = -1e9
        #: Since when nothing stands in the way of a standby.
        self._since: float | None = None
        self.failure: ViolationError | None = None
        #: How often one took over.
        self.count = 0

    def keep(self) -> None:
        """Start one where there is none, and look whether one is late."""
        world = self._world
        self._waiting = {each for each in self._waiting if not each.dead}
        if not self._waiting and not self._is_busy() and world.now >= self._drivers.away_until:
            self._waiting.add(self._drivers.start(self._stand_by))
        if not self._is_free():
            self._since = None
        elif self._since is None:
            self._since = world.now
        elif world.now - self._since > _TAKEN_OVER:
            self._fail(f"no standby has taken over for {_TAKEN_OVER:g} s")
        world.after(0.2, self.keep)

    def _is_free(self) -> bool:
        """Tell whether only a standby is left, which could take over."""
        if any(each not in self._waiting for each in self._drivers.alive):
            return False
        if self._network.trouble or self._network.cuts or self._is_busy():
            return False
        if isinstance(self._cluster, EmbeddedCluster) and self._cluster.core is None:
            return False
        return any(each in self._warm and not each.asleep for each in self._waiting)

    def _stand_by(self, job: StreamJob, process: Process) -> None:
        alone = threading.Event()
        alone.set()
        ready = partial(self._warm.add, process)
        took_over = Standby(job).wait(threading.Event(), alone=alone, ready=ready)
        self._waiting.discard(process)
        self._world.tell(f"{process.name} {'takes over' if took_over else 'finds no driver'}")
        self.count += took_over
        if took_over and self._holder is not None:
            holder, since = self._holder
            # What a driver is granted after a standby's doubt comes too late for it.
            held = not 0 <= since - self._yielded < _DECIDED
            if held and self._world.now - since < LOCK_EXPIRY and self._lives(holder):
                self._fail(f"{process.name} takes over, and {holder} has the lease")

    def _lives(self, holder: str) -> bool:
        pid = int(holder.split("@", maxsplit=1)[0].rsplit(":", 1)[1])
        return any(each.pid == pid and not each.dead for each in self._world.processes)

    def _fail(self, what: str) -> None:
        self.failure = self.failure or ViolationError(what)

    def _note(self, table: object, client: str, *, granted: bool) -> None:
        if table is not self._table:
            # A broker that was started anew knows of no lease.
            self._table, self._holder = table, None
        if client.startswith("standby@"):
            self._yielded = self._world.now
            return
        if granted:
            self._holder = client, self._world.now
        elif self._holder is not None and self._holder[0] == client:
            self._holder = None

    @contextmanager
    def applied(self, get_session: Callable[..., Any]) -> Iterator[None]:
        """Have standbys wait here, for leases that end as soon on all kinds of brokers."""
        lease = commit_topic(JOB), 0
        acquire, release = QueueLocks.acquire, QueueLocks.release

        def acquired(locks: QueueLocks, group: str, client: str, queues: Any, **more: Any) -> Any:
            found = acquire(locks, group, client, queues, **more)
            if lease in found:
                self._note(locks, client, granted=True)
            return found

        def released(locks: QueueLocks, group: str, client: str, queues: Any) -> None:
            release(locks, group, client, queues)
            if lease in queues:
                self._note(locks, client, granted=False)

        with ExitStack() as stack:
            for place, name, instead in (
                (QueueLocks, "acquire", acquired),
                (QueueLocks, "release", released),
                (headrace.spark.job, "Lease", partial(Lease, renewal=LOCK_EXPIRY / 3)),
                (headrace.spark.standby, "get_session", get_session),
                (headrace.spark.standby, "checkpoint_folder", lambda: nullcontext("")),
            ):
                stack.enter_context(patch.object(place, name, instead))
            yield
