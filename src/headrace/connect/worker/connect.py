"""What can be asked of a worker: the same for REST, for the command line and for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.connect.levels import Loggers, check_level
from headrace.connect.lifecycle import Target
from headrace.connect.log import (
    ConnectorDeleted,
    ConnectorEntry,
    ConnectorPut,
    LevelSet,
    Record,
    RestartAsked,
    TargetSet,
    TopicsReset,
)
from headrace.connect.naming import check_name
from headrace.connect.worker.following import decide, new_request
from headrace.connect.worker.reporting import (
    ConnectorInfo,
    ConnectorStatus,
    Health,
    LogEntry,
    OffsetEntry,
    PluginInfo,
    PositionStore,
    Reporter,
    RestartPlan,
    TaskInfo,
    TaskRef,
    TaskStatus,
    UnitReport,
    WorkerInfo,
)
from headrace.errors import (
    ConnectConflictError,
    ConnectorExistsError,
    ConnectorNotFoundError,
    ConnectRequestError,
    WorkerStoppingError,
)

if TYPE_CHECKING:
    from headrace.connect.worker.catalog import PluginDescription, PluginInspector
    from headrace.connect.worker.settings import WorkerSettings
    from headrace.connect.worker.worker import Worker


# Whether a config can be: what everybody can see, and what its plugin says.

_ALSO = (
    "You can also find the above list of errors at the endpoint"
    " `/connector-plugins/{connectorType}/config/validate`"
)


def named(name: str, config: Mapping[str, str]) -> dict[str, str]:
    """Return a config with its connector's name in it.

    Raises
    ------
    ConnectRequestError
        It has the name of another one.

    Examples
    --------
    >>> named("orders", {"tasks.max": "1"})
    {'tasks.max': '1', 'name': 'orders'}
    """
    given = config.get("name", name)
    if given != name:
        raise ConnectRequestError(
            f"Connector name configuration ({given}) doesn't match connector name in the URL ({name})"
        )
    return {**config, "name": name}


async def check_config(catalog: PluginInspector, config: Mapping[str, str]) -> None:
    """Have the plugin check a config, in a process of its own.

    Raises
    ------
    ConnectRequestError
        The plugin is broken, or refuses the config: the message has every problem.
    """
    plugin = await catalog.of(config)
    if plugin.error:
        raise ConnectRequestError(f"the plugin {plugin.class_name} is broken: {plugin.error}")
    answer = await catalog.validate(plugin, config)
    if answer.get("error_count"):
        raise ConnectRequestError(_problems(answer))


def _problems(answer: Mapping[str, Any]) -> str:
    count = answer["error_count"]
    lines = [f"Connector configuration is invalid and contains the following {count} error(s):"]
    for one in answer.get("configs", ()):
        value = one.get("value", {})
        for problem in value.get("errors", ()):
            key = value.get("name", "")
            lines.append(problem if key in problem else f"{key}: {problem}")
    return "\n".join([*lines, _ALSO])


# Where connectors are in what they read: told always, changed while they are stopped.

_NOT_STOPPED = (
    "Connectors must be in the STOPPED state before their offsets can be modified. This can be done"
    " for the specified connector by issuing a 'PUT' request to the '/connectors/{name}/stop'"
    " endpoint"
)
_PARTITION = {"rocketmq_topic": str, "rocketmq_broker": str, "rocketmq_queue_id": int}
_OFFSET = {"rocketmq_queue_offset": int}


class Offsets:
    """Reads and changes what the data plane has committed.

    Parameters
    ----------
    worker
        Knows the plugins, and whether requests are taken.
    entry
        Gives a connector by its name, or raises.
    positions
        Where the offsets are; None: there is no data plane.
    """

    def __init__(
        self,
        worker: Worker,
        entry: Callable[[str], ConnectorEntry],
        positions: PositionStore | None,
    ) -> None:
        self._worker = worker
        self._entry = entry
        self._given_positions = positions

    async def read(self, name: str) -> Sequence[OffsetEntry]:
        """Return where a connector is in what it reads."""
        entry = self._entry(name)
        return await self._positions.read(entry.kept_as, entry.config)

    async def alter(self, name: str, entries: Sequence[OffsetEntry]) -> None:
        """Set where a stopped connector goes on; its own code may say no."""
        entry = await self._stopped(name)
        plugin = await self._worker.catalog.of(entry.config)
        if plugin.role == "sink":
            for one in entries:
                check_queue_offset(one)
        entry = await self._allowed(name, plugin, entries)
        await self._positions.alter(entry.kept_as, entry.config, entries)

    async def reset(self, name: str) -> None:
        """Have a stopped connector begin anew; its own code may say no."""
        entry = await self._stopped(name)
        plugin = await self._worker.catalog.of(entry.config)
        known = await self._positions.read(entry.kept_as, entry.config)
        entry = await self._allowed(
            name, plugin, [OffsetEntry(one.partition, None) for one in known]
        )
        await self._positions.reset(entry.kept_as, entry.config)

    @property
    def _positions(self) -> PositionStore:
        if self._given_positions is None:
            raise WorkerStoppingError("this worker has no data plane, and so no offsets")
        return self._given_positions

    async def _stopped(self, name: str) -> ConnectorEntry:
        self._entry(name)
        # Another worker may have said more by now than was read here.
        await self._worker.catch_up()
        entry = self._entry(name)
        if entry.target is not Target.STOPPED or any(entry.alive()):
            told = _NOT_STOPPED.format(name=name)
            raise ConnectRequestError(told, hint=f"PUT /connectors/{name}/stop, then wait")
        self._worker.require_running()
        return entry

    async def _allowed(
        self, name: str, plugin: PluginDescription, entries: Sequence[OffsetEntry]
    ) -> ConnectorEntry:
        asked = [msgspec.to_builtins(one) for one in entries]
        answer = await self._worker.catalog.may_alter(plugin, self._entry(name).config, asked)
        if answer.failure is not None:
            raise ConnectRequestError(
                f"connector '{name}' does not take these offsets: {answer.failure.summary}"
            )
        # It may have been resumed while its code was asked.
        return await self._stopped(name)


def check_queue_offset(entry: OffsetEntry) -> None:
    """Refuse an offset of a sink that names no queue, or no place in it.

    Raises
    ------
    ConnectRequestError
        The message names the key.

    Examples
    --------
    >>> queue = {"rocketmq_topic": "t", "rocketmq_broker": "b", "rocketmq_queue_id": 0}
    >>> check_queue_offset(OffsetEntry(queue, {"rocketmq_queue_offset": 7}))
    >>> check_queue_offset(OffsetEntry(queue, None))
    >>> check_queue_offset(OffsetEntry({"kafka_topic": "t"}, None))
    Traceback (most recent call last):
    ...
    headrace.errors.ConnectRequestError: the partition of a sink's offset has no rocketmq_topic
      → send rocketmq_topic, rocketmq_broker, rocketmq_queue_id
    """
    _check("partition", entry.partition, _PARTITION)
    if entry.offset is not None:
        _check("offset", entry.offset, _OFFSET)


def _check(what: str, given: Mapping[str, Any], wanted: Mapping[str, type]) -> None:
    hint = f"send {', '.join(wanted)}"
    for key, kind in wanted.items():
        if key not in given:
            raise ConnectRequestError(f"the {what} of a sink's offset has no {key}", hint=hint)
        value = given[key]
        right = isinstance(value, kind) and not isinstance(value, bool)
        if not right or (isinstance(value, int) and value < 0):
            wish = "a text" if kind is str else "a whole number from 0 on"
            raise ConnectRequestError(
                f"{key} of a sink's offset is {value!r}, and must be {wish}", hint=hint
            )
    if unknown := sorted(given.keys() - wanted.keys()):
        raise ConnectRequestError(
            f"the {what} of a sink's offset has the unknown key {unknown[0]}", hint=hint
        )


API_LEVEL = "3.9.0"
"""The level of Kafka Connect's REST API that is spoken: clients unlock features by it."""


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
        self._offsets = Offsets(worker, self._entry, positions)
        self._reporter = Reporter(worker)

    @property
    def settings(self) -> WorkerSettings:
        """The settings of the worker."""
        return self._worker.settings

    @property
    def worker(self) -> Worker:
        """The worker itself."""
        return self._worker

    @property
    def loggers(self) -> Loggers:
        """Levels of the worker's loggers."""
        return self._worker.loggers

    # About the worker.

    def cluster(self) -> WorkerInfo:
        """Return who answers."""
        ours = _version()
        return WorkerInfo(f"{API_LEVEL}-headrace-{ours}", ours, self.settings.cluster)

    def health(self) -> Health:
        """Return whether the worker can do its work."""
        trouble = self._worker.trouble()
        if trouble is not None:
            return Health("unhealthy", trouble)
        state = self._worker.state
        if state == "running":
            message = "Worker has completed startup and is ready to handle requests."
            return Health("healthy", message)
        if state == "starting":
            return self._worker.startup.health()
        return Health("stopping", f"worker {self._worker.name} is about to end")

    def life(self) -> Health:
        """Return whether the worker goes on at all; who is not alive must be started again."""
        if (failure := self._worker.failure) is not None:
            return Health("unhealthy", f"a part of the worker has ended by {failure!r}")
        return Health("alive", f"worker {self._worker.name} answers")

    def readiness(self) -> Health:
        """Return whether the worker takes requests and runs what is its own."""
        found = self.health()
        if found.status == "healthy" and (waits := self._worker.waits()) is not None:
            return Health("starting", f"worker {self._worker.name} is not ready: {waits}")
        return found

    def units(self) -> list[UnitReport]:
        """Return a report of every copy on this worker."""
        return self._reporter.units()

    def config_log(self, key: str | None = None) -> list[LogEntry]:
        """Return what the log says key by key, with what is deleted."""
        return self._reporter.config_log(key)

    # Reading.

    def names(self) -> list[str]:
        """Return the names of all connectors."""
        self._worker.require_read()
        return sorted(self._worker.view.connectors())

    def info(self, name: str) -> ConnectorInfo:
        """Return what a connector is to do."""
        entry = self._entry(name)
        tasks = [TaskRef(name, number) for number in range(len(entry.tasks))]
        return ConnectorInfo(name, dict(entry.config), tasks, self._reporter.role(entry))

    def status(self, name: str) -> ConnectorStatus:
        """Return how a connector is doing."""
        return self._reporter.status(self._entry(name, "No status found for connector {name}"))

    def tasks(self, name: str) -> list[TaskInfo]:
        """Return what the tasks of a connector are to do."""
        tasks = self._entry(name).tasks
        return [TaskInfo(TaskRef(name, n), task.config) for n, task in enumerate(tasks)]

    def task_status(self, name: str, task: int) -> TaskStatus:
        """Return how a task is doing."""
        entry = self._entry(name, f"No status found for task {{name}}-{task}")
        if task >= len(entry.tasks):
            raise ConnectorNotFoundError(f"No status found for task {name}-{task}")
        return self._reporter.task_status(entry, task)

    def topics(self, name: str) -> list[str]:
        """Return the topics that a connector has used."""
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
        config = named(check_name(name), config)
        self._worker.require_running()
        if name in self._worker.view.connectors():
            raise ConnectorExistsError(f"Connector {name} already exists")
        await self._check(config)
        record = ConnectorPut(
            request=new_request(), name=name, config=config, expected_version=0, target=target
        )
        await self._append(record)
        return self.info(name)

    async def put_config(self, name: str, config: Mapping[str, str]) -> tuple[ConnectorInfo, bool]:
        """Replace a connector's config, or make one; say whether it is new.

        One that it has already changes nothing, and restarts nothing.
        """
        config = named(check_name(name), config)
        await self._check(config)
        if await self._has(name, config):
            return self.info(name), False
        created = name not in self._worker.view.connectors()
        await self._append(ConnectorPut(request=new_request(), name=name, config=config))
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
        config = named(name, {key: one for key, one in merged.items() if one is not None})
        await self._check(config)
        if await self._has(name, config):
            return self.info(name)
        record = ConnectorPut(
            request=new_request(), name=name, config=config, expected_version=entry.version
        )
        await self._append(record)
        return self.info(name)

    async def delete(self, name: str, *, force: bool = False, keep_offsets: bool = False) -> None:
        """Delete a connector; its tasks stop, and where it was is forgotten unless it is kept.

        A connector that gets its name later goes on from what is kept.
        """
        self._entry(name)
        record = ConnectorDeleted(
            request=new_request(), name=name, force=force, forget=not keep_offsets
        )
        await self._append(record)

    async def set_target(self, name: str, target: Target, *, force: bool = False) -> None:
        """Let a connector run, rest or stop."""
        self._entry(name, "Unknown connector {name}")
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
        entry = self._entry(name, "Unknown connector: {name}")
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
        entry = self._entry(name, "Unknown connector: {name}")
        if task >= len(entry.tasks):
            raise ConnectorNotFoundError(f"Unknown task: {name}-{task}")
        self._require_active(entry)
        record = RestartAsked(
            request=new_request(), name=name, connector=False, tasks=[task], force=force
        )
        await self._append(record)

    async def reset_topics(self, name: str) -> None:
        """Forget the topics that a connector has used."""
        self._entry(name)
        await self._append(TopicsReset(request=new_request(), name=name))

    async def set_level(self, logger: str, level: str) -> None:
        """Set the level of a logger, and of those below it, on every worker that runs.

        A worker that starts later has the levels of its settings.

        Raises
        ------
        ConnectNotFoundError
            There is no such level.
        """
        check_level(level)
        await self._append(LevelSet(request=new_request(), logger=logger, level=level))

    # Offsets.

    async def offsets(self, name: str) -> Sequence[OffsetEntry]:
        """Return where a connector is in what it reads."""
        return await self._offsets.read(name)

    async def alter_offsets(self, name: str, entries: Sequence[OffsetEntry]) -> str:
        """Set where a stopped connector goes on; its own code may say no.

        Raises
        ------
        ConnectRequestError
            It is not stopped, the entries are none of a sink's, or it says no.
        """
        await self._offsets.alter(name, entries)
        return "The offsets for this connector have been altered successfully"

    async def reset_offsets(self, name: str) -> str:
        """Have a stopped connector begin anew; its own code may say no.

        Raises
        ------
        ConnectRequestError
            It is not stopped, or it says no.
        """
        await self._offsets.reset(name)
        return "The offsets for this connector have been reset successfully"

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
        """Return the config keys of a plugin of any type."""
        return await self._catalog.describe(await self._catalog.plugin(plugin))

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
                f"Included connector type {config['connector.class']} does not match request type"
                f" {plugin}"
            )
        return await self._catalog.validate(found, config)

    # Inside.

    def _entry(self, name: str, missing: str = "Connector {name} not found") -> ConnectorEntry:
        self._worker.require_read()
        entry = self._worker.view.connector(name)
        if entry is None:
            # Kafka Connect has other words for it at each place, and tools know them.
            raise ConnectorNotFoundError(missing.format(name=name))
        return entry

    async def _has(self, name: str, config: Mapping[str, str]) -> bool:
        """Return whether a connector has this config, by all that workers have been told."""

        def has() -> bool:
            entry = self._worker.view.connector(name)
            return entry is not None and entry.config == config

        if not has():
            return False
        await self._worker.catch_up()
        return has()

    def _require_active(self, entry: ConnectorEntry) -> None:
        if entry.target is Target.STOPPED:
            raise ConnectConflictError(
                f"connector '{entry.name}' is stopped, so there is nothing to restart",
                hint="resume it instead",
            )

    async def _check(self, config: Mapping[str, str]) -> None:
        self._worker.require_running()
        await check_config(self._catalog, config)

    async def _append(self, record: Record) -> None:
        await decide(self._worker, record)


def _version() -> str:
    try:
        return metadata.version("headrace")
    except metadata.PackageNotFoundError:
        return "0"  # run from its sources
