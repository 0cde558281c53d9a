"""A running topology of spouts and bolts: one job per group, each with failures of its own."""

from __future__ import annotations

import dataclasses
import logging
import time
from contextlib import ExitStack
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from headrace.client import Admin, Client, ClientSettings
from headrace.embedded import embedded_broker
from headrace.errors import HeadraceError, StateError
from headrace.runtime.state.home import StateHome
from headrace.runtime.state.resetting import reset
from headrace.settings import JobSettings
from headrace.spark.job import StreamJob
from headrace.spark.statistics import JobStatistics, total

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from headrace.runtime.state.checks import Migrations
    from headrace.runtime.state.interface import StoreFactory
    from headrace.runtime.state.views import StateView
    from headrace.spark.launch import Prepared
    from headrace.transactions import TransactionTopology

__all__ = ["TransactionJob", "settings_of"]

logger = logging.getLogger(__name__)

_LOOK = timedelta(seconds=0.2)


class TransactionJob:
    """Runs a topology of spouts and bolts on Spark: each group as a job of its own.

    A group that fails goes back to its own last commit; the others do not notice.

    Parameters
    ----------
    topology
        What to run.
    settings
        Where and how; keys of the topology's configuration that were given win over them.
    migrate
        What becomes of the state of components that were renamed; see :class:`StreamJob`.
    stores
        Makes state stores of another kind than RocksDB; see :class:`StreamJob`.

    Examples
    --------
    ::

        with TransactionJob(builder.build(), JobSettings(namesrv="127.0.0.1:9876")).start() as job:
            job.await_termination()
    """

    def __init__(
        self,
        topology: TransactionTopology,
        settings: JobSettings | None = None,
        *,
        migrate: Migrations | None = None,
        stores: StoreFactory | None = None,
    ) -> None:
        self.topology = topology
        self.settings = settings_of(topology, settings or JobSettings())
        self._options: dict[str, Any] = {"migrate": migrate, "stores": stores}
        #: Whether a start obeys ``transaction.topology.reset``; one that goes on does not.
        self.resets = True
        self._jobs: dict[str, StreamJob] = {}
        self._opened = ExitStack()
        self._told: set[str] = set()

    @property
    def jobs(self) -> Mapping[str, StreamJob]:
        """The jobs of the groups, by their names, once they are started."""
        return dict(self._jobs)

    def start(self) -> Self:
        """Start every group.

        Raises
        ------
        HeadraceError
            One of them cannot start; then none runs.
        """
        for key, reason in self.topology.config.ignored.items():
            logger.warning("configuration key %s changes nothing: %s", key, reason)
        try:
            if self.topology.config["transaction.topology.reset"] and self.resets:
                self._reset()
            self.prepare()
            for job in self._jobs.values():
                job.start()
        except BaseException:
            self._opened.close()
            raise
        return self

    def prepare(self) -> list[Prepared]:
        """Do what a start needs before any group opens an epoch; see :meth:`StreamJob.prepare`.

        Raises
        ------
        HeadraceError
            One of the groups cannot start.
        """
        if not self._jobs:
            self._make_topics()
        for group in self.topology.groups:
            if group.name not in self._jobs:
                job = StreamJob(group, self._connected, **self._options)
                self._jobs[group.name] = self._opened.enter_context(job)
        return [prepared for job in self._jobs.values() for prepared in job.prepare()]

    @cached_property
    def _connected(self) -> JobSettings:
        """The settings, with the address of the cluster."""
        if self.settings.namesrv is not None:
            return self.settings
        address = self._opened.enter_context(embedded_broker(self.settings.data_dir))
        return dataclasses.replace(self.settings, namesrv=address)

    def stop(self) -> None:
        """Stop every group and wait for their ends."""
        self._opened.close()

    def await_caught_up(self, timeout: timedelta | None = None) -> None:
        """Wait until what is in the topics that are spouts at this moment is committed.

        Other spouts have no end that could be known, and are not waited for.

        Raises
        ------
        RequestTimeoutError
            It was not, within ``timeout``.
        HeadraceError
            A group failed.
        """
        deadline = _deadline(timeout)
        for job in self._jobs.values():
            job.await_caught_up(_rest(deadline))

    def await_batches(self, timeout: timedelta | None = None) -> None:
        """Do nothing: spouts and bolts hand no batches over; :class:`StreamJob` may."""

    def await_commit(self, timeout: timedelta | None = None) -> None:
        """Wait until every group has committed a batch since it was started.

        Raises
        ------
        RequestTimeoutError
            One has not, within ``timeout``.
        HeadraceError
            A group failed.
        """
        deadline = _deadline(timeout)
        for job in self._jobs.values():
            job.await_commit(_rest(deadline))

    def await_termination(self, timeout: timedelta | None = None) -> bool:
        """Wait until every group has ended; tell whether that came within ``timeout``.

        Raises
        ------
        HeadraceError
            A group failed: the first one's failure, once the others have ended, too.
        """
        deadline = _deadline(timeout)
        while True:
            running = [name for name, job in self._jobs.items() if not self._ended(name, job)]
            if not running:
                break
            rest = _rest(deadline)
            if rest is not None and rest <= timedelta(0):
                return False
            wait = _LOOK if rest is None else min(rest, _LOOK)
            time.sleep(wait.total_seconds())
        for failure in self.failures.values():
            raise failure
        return True

    @property
    def failures(self) -> Mapping[str, HeadraceError]:
        """Why groups have failed for good, by the names of their jobs."""
        found: dict[str, HeadraceError] = {}
        for name, job in self._jobs.items():
            try:
                job.await_termination(timedelta(0))
            except HeadraceError as error:
                found[name] = error
        return found

    def statistics(self) -> JobStatistics:
        """Sum up how far the groups are, and how fast; each one's own is ``jobs[NAME]``'s."""
        return total([job.statistics() for job in self._jobs.values()])

    def stalled(self) -> float:
        """Give the seconds for which a group's query was not looked after; see `StreamJob`."""
        return max((job.stalled() for job in self.jobs.values()), default=0.0)

    def state(self, component: str) -> StateView:
        """Look into the state of a component, as of the last commit; see :class:`StateView`.

        Raises
        ------
        StateError
            No component of this name has state, or its group has committed nothing.
        """
        for job in self._jobs.values():
            if component in job.topology.state_topics:
                return job.state(component)
        known = [name for job in self._jobs.values() for name in job.topology.state_topics]
        raise StateError(
            f"topology '{self.topology.name}' has no state of '{component}'",
            hint=f"it has state of {', '.join(known) or 'nothing'}",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _ended(self, name: str, job: StreamJob) -> bool:
        try:
            return job.await_termination(timedelta(0))
        except HeadraceError as error:
            if name not in self._told and len(self._jobs) > 1:
                logger.warning("group %s has failed, the others go on: %s", name, error)
            self._told.add(name)
            return True

    def _make_topics(self) -> None:
        """Make the topics between groups."""
        if self.topology.journal_topics:
            settings = self._connected
            with self._client() as client:
                admin = Admin(client)
                for topic in set(self.topology.journal_topics) - set(admin.topics()):
                    admin.create_topic(topic, queues=settings.partitions)

    def _reset(self) -> None:
        """Let the groups begin anew."""
        with self._client() as client:
            for group in self.topology.groups:
                if reset(StateHome.of(group.name, client)) is not None:
                    logger.warning("job %s begins anew: its offsets and state are gone", group.name)

    def _client(self) -> Client:
        settings = self._connected
        assert settings.namesrv is not None
        return Client(settings.namesrv, ClientSettings(**settings.connection))


def settings_of(topology: TransactionTopology, settings: JobSettings) -> JobSettings:
    """Put what a topology's configuration says in the place of settings."""
    given, config = topology.config.given, topology.config
    changes: dict[str, Any] = {}
    if "transaction.exactly.once.mode" in given:
        changes["guarantee"] = topology.guarantee
    if "tuple.num.per.batch" in given:
        changes["max_records_per_batch"] = config["tuple.num.per.batch"]
    if "transaction.batch.snapshot.timeout" in given:
        changes["batch_timeout"] = timedelta(seconds=config["transaction.batch.snapshot.timeout"])
    if "poison.max.rollbacks" in given:
        changes["rollback_retries"] = config["poison.max.rollbacks"]
    return dataclasses.replace(settings, **changes)


def _deadline(timeout: timedelta | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout.total_seconds()


def _rest(deadline: float | None) -> timedelta | None:
    if deadline is None:
        return None
    return timedelta(seconds=max(0.0, deadline - time.monotonic()))
