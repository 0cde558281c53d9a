"""What can be asked of a worker: the same for REST, for the command line and for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.connect.lifecycle import Target
from headrace.connect.log import (
    ConnectorDeleted,
    ConnectorEntry,
    ConnectorPut,
    Outcome,
    Record,
    Rejected,
    RestartAsked,
    TargetSet,
    TopicsReset,
)
from headrace.connect.naming import check_name
from headrace.connect.worker.answers import (
    ClusterInfo,
    ConnectorInfo,
    ConnectorStatus,
    Health,
    LogEntry,
    OffsetEntry,
    PluginInfo,
    TaskInfo,
    TaskRef,
    TaskStatus,
    UnitReport,
)
from headrace.connect.worker.loggers import Loggers
from headrace.connect.worker.reporting import Reporter
from headrace.connect.worker.requests import new_request
from headrace.connect.worker.restarts import RestartPlan
from headrace.errors import (
    ConnectConflictError,
    ConnectorExistsError,
    ConnectorNotFoundError,
    ConnectRequestError,
    MessageTooLargeError,
    WorkerStoppingError,
)

if TYPE_CHECKING:
    from headrace.connect.worker.positions import PositionStore
    from headrace.connect.worker.settings import WorkerSettings
    from headrace.connect.worker.worker import Worker

__all__ = ["API_LEVEL", "Connect"]

API_LEVEL = "3.9.0"
"""The level of Kafka Connect's REST API that is spoken: clients unlock features by it."""

_NOT_STOPPED = (
    "connectors must be in the STOPPED state, with all their tasks gone, before their offsets can"
    " be changed"
)


class Connect:
    """A cluster of connectors, as seen from one of its workers.

    What is asked for is put into the log; the answer comes when the worker has read it back, so
    that whoever asks next sees it.

    Parameters
    ----------
    worker
        Runs what is wanted.
    positions
        Where connectors are in what they read.
    """

    def __init__(self, worker: Worker, positions: PositionStore | None = None) -> None:
        self._worker = worker
        self._catalog = worker.catalog
        self._given_positions = positions
        self._reporter = Reporter(worker)
        #: Levels of this process's loggers.
        self.loggers = Loggers()

    @property
    def settings(self) -> WorkerSettings:
        """The settings of the worker."""
        return self._worker.settings

    @property
    def worker(self) -> Worker:
        """The worker itself."""
        return self._worker

    # About the worker.

    def cluster(self) -> ClusterInfo:
        """Say who answers."""
        ours = _version()
        return ClusterInfo(f"{API_LEVEL}-headrace-{ours}", ours, self.settings.cluster)

    def health(self) -> Health:
        """Say whether the worker can do its work."""
        trouble = self._worker.trouble()
        if trouble is not None:
            return Health("unhealthy", trouble)
        state = self._worker.state
        if state == "running":
            return Health("healthy", f"worker {self._worker.name} has read its log and works")
        if state == "starting":
            return Health("starting", f"worker {self._worker.name} reads its log")
        return Health("stopping", f"worker {self._worker.name} is about to end")

    def units(self) -> list[UnitReport]:
        """Tell of every copy on this worker."""
        return self._reporter.units()

    def config_log(self, key: str | None = None) -> list[LogEntry]:
        """Tell what the log says key by key, with what is deleted."""
        return self._reporter.config_log(key)

    # Reading.

    def names(self) -> list[str]:
        """Give the names of all connectors."""
        self._worker.require_read()
        return sorted(self._worker.view.connectors())

    def info(self, name: str) -> ConnectorInfo:
        """Say what a connector is to do."""
        entry = self._entry(name)
        tasks = [TaskRef(name, number) for number in range(len(entry.tasks))]
        return ConnectorInfo(name, dict(entry.config), tasks, self._reporter.role(entry))

    def status(self, name: str) -> ConnectorStatus:
        """Say how a connector is doing."""
        return self._reporter.status(self._entry(name))

    def tasks(self, name: str) -> list[TaskInfo]:
        """Say what the tasks of a connector are to do."""
        tasks = self._entry(name).tasks
        return [TaskInfo(TaskRef(name, n), task.config) for n, task in enumerate(tasks)]

    def task_status(self, name: str, task: int) -> TaskStatus:
        """Say how a task is doing."""
        entry = self._entry(name)
        if task >= len(entry.tasks):
            raise ConnectorNotFoundError(f"connector '{name}' has no task {task}")
        return self._reporter.task_status(entry, task)

    def topics(self, name: str) -> list[str]:
        """Give the topics that a connector has used."""
        return list(self._entry(name).topics)

    # Changing.

    async def create(
        self, name: str, config: Mapping[str, str], *, target: Target = Target.RUNNING
    ) -> ConnectorInfo:
        """Make a connector.

        Raises
        ------
        ConnectRequestError
            The name or the config cannot be.
        ConnectConflictError
            The name is taken.
        """
        config = _named(check_name(name), config)
        self._worker.require_running()
        if name in self._worker.view.connectors():
            raise ConnectorExistsError(f"there is a connector '{name}' already")
        await self._check(config)
        record = ConnectorPut(
            request=new_request(), name=name, config=config, expected_version=0, target=target
        )
        await self._put(record)
        return self.info(name)

    async def put_config(self, name: str, config: Mapping[str, str]) -> tuple[ConnectorInfo, bool]:
        """Replace a connector's config, or make one; say whether it is new."""
        config = _named(check_name(name), config)
        self._worker.require_running()
        await self._check(config)
        created = name not in self._worker.view.connectors()
        await self._put(ConnectorPut(request=new_request(), name=name, config=config))
        return self.info(name), created

    async def patch_config(self, name: str, patch: Mapping[str, str | None]) -> ConnectorInfo:
        """Change some keys of a config; None takes a key out.

        Raises
        ------
        ConnectConflictError
            The config changed meanwhile.
        """
        entry = self._entry(name)
        merged = {**entry.config, **patch}
        config = _named(name, {key: one for key, one in merged.items() if one is not None})
        self._worker.require_running()
        await self._check(config)
        record = ConnectorPut(
            request=new_request(), name=name, config=config, expected_version=entry.version
        )
        await self._put(record)
        return self.info(name)

    async def delete(self, name: str, *, force: bool = False) -> None:
        """Delete a connector; its tasks stop."""
        self._entry(name)
        await self._append(ConnectorDeleted(request=new_request(), name=name, force=force))

    async def set_target(self, name: str, target: Target, *, force: bool = False) -> None:
        """Let a connector run, rest or stop."""
        self._entry(name)
        await self._append(TargetSet(request=new_request(), name=name, target=target, force=force))

    async def restart(
        self,
        name: str,
        *,
        include_tasks: bool = False,
        only_failed: bool = False,
        force: bool = False,
    ) -> ConnectorStatus:
        """Start new copies; give the status with those that are about to restart."""
        entry = self._entry(name)
        self._require_active(entry)
        found = RestartPlan.of(entry, include_tasks=include_tasks, only_failed=only_failed)
        status = self._reporter.restarting(entry, found)
        if found.connector or found.tasks:
            record = RestartAsked(
                request=new_request(),
                name=name,
                connector=found.connector,
                tasks=sorted(found.tasks),
                force=force,
            )
            await self._append(record)
        return status

    async def restart_task(self, name: str, task: int, *, force: bool = False) -> None:
        """Start a new copy of a task."""
        self.task_status(name, task)
        self._require_active(self._entry(name))
        record = RestartAsked(
            request=new_request(), name=name, connector=False, tasks=[task], force=force
        )
        await self._append(record)

    async def reset_topics(self, name: str) -> None:
        """Forget the topics that a connector has used."""
        self._entry(name)
        await self._append(TopicsReset(request=new_request(), name=name))

    # Offsets.

    async def offsets(self, name: str) -> Sequence[OffsetEntry]:
        """Say where a connector is in what it reads."""
        return await self._positions.read(name, self._entry(name).config)

    async def alter_offsets(self, name: str, entries: Sequence[OffsetEntry]) -> str:
        """Set where a stopped connector goes on; its own code may say no.

        Raises
        ------
        ConnectRequestError
            It is not stopped, or it says no.
        """
        entry = await self._ask_about_offsets(name, entries)
        await self._positions.alter(name, entry.config, entries)
        return f"the offsets of connector '{name}' have been altered"

    async def reset_offsets(self, name: str) -> str:
        """Have a stopped connector begin anew; its own code may say no.

        Raises
        ------
        ConnectRequestError
            It is not stopped, or it says no.
        """
        entry = self._stopped(name)
        known = await self._positions.read(name, entry.config)
        await self._ask_about_offsets(name, [OffsetEntry(one.partition, None) for one in known])
        await self._positions.reset(name, entry.config)
        return f"the offsets of connector '{name}' have been reset"

    # Plugins.

    async def plugins(self, *, connectors_only: bool = True) -> list[PluginInfo]:
        """List the plugins."""
        found = await self._catalog.plugins()
        return [
            PluginInfo(one.class_name, one.type, one.version, one.error)
            for one in found
            if not connectors_only or one.type in {"source", "sink"}
        ]

    async def describe(self, plugin: str) -> list[dict[str, Any]]:
        """Give the config keys of a plugin."""
        return await self._catalog.describe(await self._catalog.connector(plugin))

    async def validate(self, plugin: str, config: Mapping[str, str]) -> dict[str, Any]:
        """Check a config for a plugin, without making anything.

        Raises
        ------
        ConnectRequestError
            The config names another plugin.
        """
        found = await self._catalog.connector(plugin)
        named = await self._catalog.of({"connector.class": found.class_name} | dict(config))
        if named != found:
            raise ConnectRequestError(
                f"the connector.class '{config['connector.class']}' does not match '{plugin}'"
            )
        return await self._catalog.validate(found, config)

    # Inside.

    @property
    def _positions(self) -> PositionStore:
        if self._given_positions is None:
            raise WorkerStoppingError("this worker has no data plane, and so no offsets")
        return self._given_positions

    def _entry(self, name: str) -> ConnectorEntry:
        self._worker.require_read()
        entry = self._worker.view.connector(name)
        if entry is None:
            raise ConnectorNotFoundError(f"there is no connector '{name}'")
        return entry

    def _require_active(self, entry: ConnectorEntry) -> None:
        if entry.target is Target.STOPPED:
            raise ConnectConflictError(
                f"connector '{entry.name}' is stopped, so there is nothing to restart",
                hint="resume it instead",
            )

    def _stopped(self, name: str) -> ConnectorEntry:
        entry = self._entry(name)
        if entry.target is not Target.STOPPED or any(entry.alive()):
            raise ConnectRequestError(_NOT_STOPPED, hint=f"PUT /connectors/{name}/stop, then wait")
        self._worker.require_running()
        return entry

    async def _ask_about_offsets(self, name: str, entries: Sequence[OffsetEntry]) -> ConnectorEntry:
        entry = self._stopped(name)
        plugin = await self._catalog.of(entry.config)
        asked = [msgspec.to_builtins(one) for one in entries]
        answer = await self._catalog.may_alter(plugin, entry.config, asked)
        if answer.failure is not None:
            raise ConnectRequestError(
                f"connector '{name}' does not take these offsets: {answer.failure.summary}"
            )
        # It may have been resumed while its code was asked.
        return self._stopped(name)

    async def _check(self, config: Mapping[str, str]) -> None:
        """Have the plugin check a config, in a process of its own."""
        plugin = await self._catalog.of(config)
        if plugin.error:
            raise ConnectRequestError(f"the plugin {plugin.class_name} is broken: {plugin.error}")
        answer = await self._catalog.validate(plugin, config)
        if answer.get("error_count"):
            raise ConnectRequestError(_problems(answer))

    async def _put(self, record: ConnectorPut) -> None:
        try:
            await self._append(record)
        except MessageTooLargeError as error:
            raise ConnectRequestError(error.message, hint=error.hint) from None

    async def _append(self, record: Record) -> None:
        _settle(await self._worker.append(record))


def _version() -> str:
    try:
        return metadata.version("headrace")
    except metadata.PackageNotFoundError:
        return "0"  # run from its sources


def _settle(outcome: Outcome) -> None:
    if not isinstance(outcome, Rejected) or outcome.reason == "duplicate":
        return
    if outcome.reason == "missing":
        raise ConnectorNotFoundError(outcome.message)
    if outcome.reason == "exists":
        raise ConnectorExistsError(outcome.message)
    raise ConnectConflictError(outcome.message)


def _named(name: str, config: Mapping[str, str]) -> dict[str, str]:
    given = config.get("name", name)
    if given != name:
        raise ConnectRequestError(f"the name '{given}' in the config does not match '{name}'")
    return {**config, "name": name}


def _problems(answer: Mapping[str, Any]) -> str:
    lines = [f"the config has {answer['error_count']} error(s):"]
    for one in answer.get("configs", ()):
        value = one.get("value", {})
        for problem in value.get("errors", ()):
            key = value.get("name", "")
            lines.append(f"  {problem}" if key in problem else f"  {key}: {problem}")
    return "\n".join(lines)
