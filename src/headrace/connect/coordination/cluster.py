"""One worker's part in a cluster: the log, its membership and its coordinator, together."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from headrace.connect.coordination.coordinator import Coordinator, CoordinatorStatistics
from headrace.connect.coordination.members import Members
from headrace.connect.log.topic import TopicLog

if TYPE_CHECKING:
    from headrace.client import AsyncClient
    from headrace.watched import OnFailure

__all__ = ["Cluster", "ClusterTimes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTimes:
    """How long a cluster waits for what."""

    #: What a lost worker ran moves after so long; its workers have the same `rebalance_delay`.
    delay: timedelta = timedelta(seconds=30)
    #: A worker that gives no sign of life for so long is lost, ...
    session: timedelta = timedelta(seconds=15)
    #: ... and they come so often.
    heartbeat: timedelta = timedelta(seconds=2)
    #: Marks of deleted connectors are purged after so long.
    purge_after: timedelta = timedelta(hours=1)
    #: A broker holds back a pull that finds nothing for so long.
    pull_wait: timedelta = timedelta(seconds=5)


class Cluster:
    """A worker as a member of a cluster of workers.

    Made by `join`; a worker runs on its ``log``, and joins again by `join_again`.

    Examples
    --------
    >>> async def run(client: AsyncClient) -> None:
    ...     cluster = await Cluster.join(client, "headrace-connect", "worker-1")
    ...     ...  # run a worker on cluster.log
    ...     await cluster.leave()
    """

    def __init__(self, log: TopicLog, members: Members, coordinator: Coordinator) -> None:
        self.log = log
        self._members = members
        self._coordinator = coordinator

    @classmethod
    async def join(
        cls, client: AsyncClient, group: str, worker: str, times: ClusterTimes | None = None
    ) -> Self:
        """Read the log of a cluster to its end, and become a member.

        Parameters
        ----------
        client
            Connection to the cluster of brokers; it stays open.
        group
            Name of the cluster of workers: its log is the topic of this name.
        worker
            Name of this worker, which no other one may have.

        Raises
        ------
        WorkerIdTakenError
            A worker of this name is alive.
        ConnectError
            The topic of the group cannot hold a log.
        """
        times = ClusterTimes() if times is None else times
        topic = f"{group}-log"
        log = await TopicLog.open(client, topic, wait=times.pull_wait)
        members = Members(
            client, group, topic, worker, interval=times.heartbeat, timeout=times.session
        )
        try:
            await members.join()
        except BaseException:
            await log.close()
            raise
        coordinator = Coordinator(
            log,
            members,
            worker,
            delay=times.delay.total_seconds(),
            purge_after=times.purge_after.total_seconds(),
        )
        coordinator.start()
        return cls(log, members, coordinator)

    def watch(self, on_failure: OnFailure) -> None:
        """Have an error told that ends a part of the membership, or has ended the log."""
        self._members.on_failure = self._coordinator.on_failure = on_failure
        if self.log.failure is not None:
            on_failure(self.log.failure)

    async def join_again(self) -> None:
        """Become a member anew, after having been cut off for so long that others took over.

        Raises
        ------
        WorkerIdTakenError
            Another worker has the name by now.
        """
        await self._members.join_again()

    async def workers(self) -> set[str]:
        """Give the names of all workers that are alive."""
        return await self._members.workers()

    async def leave(self) -> None:
        """Be a member no more; what this worker ran has to be stopped before."""
        await self._coordinator.stop()
        await self._members.leave()
        await self.log.close()

    def statistics(self) -> CoordinatorStatistics:
        """Tell what this worker's coordinator has done."""
        return self._coordinator.statistics()
