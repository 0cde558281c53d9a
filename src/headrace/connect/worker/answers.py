"""What a worker tells of itself, in the shapes of Kafka Connect's REST API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.connect.worker.launching import Figures

__all__ = [
    "ClusterInfo",
    "ConnectorInfo",
    "ConnectorStatus",
    "Health",
    "LogEntry",
    "OffsetEntry",
    "PluginInfo",
    "TaskInfo",
    "TaskRef",
    "TaskStatus",
    "UnitReport",
    "UnitStatus",
]


class ClusterInfo(msgspec.Struct, frozen=True):
    """Who answers."""

    #: Level of Kafka Connect's API that is spoken, a dash, and our own version.
    version: str
    commit: str
    #: Name of the cluster of brokers.
    kafka_cluster_id: str


class Health(msgspec.Struct, frozen=True):
    """Whether the worker can do its work."""

    #: ``healthy``, ``starting``, ``stopping`` or ``unhealthy``; ``alive`` of one that answers.
    status: str
    message: str


class TaskRef(msgspec.Struct, frozen=True):
    """A task by its connector and number."""

    connector: str
    task: int


class ConnectorInfo(msgspec.Struct, frozen=True):
    """A connector: what it is to do."""

    name: str
    config: dict[str, str]
    tasks: list[TaskRef]
    #: ``source``, ``sink``, or ``unknown`` where its plugin is gone.
    type: str


class TaskInfo(msgspec.Struct, frozen=True):
    """A task: what it is to do."""

    id: TaskRef
    config: dict[str, str]


class UnitStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a connector is doing."""

    state: str
    worker_id: str
    trace: str = ""
    version: str = ""


class TaskStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a task is doing."""

    id: int
    state: str
    worker_id: str
    trace: str = ""
    version: str = ""
    #: What it waits for outside, while it runs as far as it can.
    waits_for: str = ""


class ConnectorStatus(msgspec.Struct, frozen=True):
    """How a connector and its tasks are doing."""

    name: str
    connector: UnitStatus
    tasks: list[TaskStatus]
    type: str


class OffsetEntry(msgspec.Struct, frozen=True):
    """Where a connector is in one partition of what it reads."""

    partition: dict[str, Any]
    #: None: from the beginning again.
    offset: dict[str, Any] | None


class PluginInfo(msgspec.Struct, frozen=True, rename={"class_name": "class"}, omit_defaults=True):
    """A plugin that connectors can use."""

    class_name: str
    type: str
    version: str
    #: Why it cannot be used.
    error: str = ""


class UnitReport(msgspec.Struct, frozen=True, kw_only=True):
    """One copy of a connector or task on this worker, in full."""

    connector: str
    #: None: the connector itself.
    task: int | None
    generation: int
    phase: str
    #: Seconds since the phase began.
    since: float
    worker_id: str
    #: Whether it had to be killed.
    forced: bool
    ending: str | None
    error: str | None
    #: What it waits for outside.
    waits_for: str | None
    pid: int | None
    pid_alive: bool
    #: Rungs of the stop ladder that were taken, with seconds after the first.
    rungs: list[dict[str, Any]]
    #: Restarts by the worker itself since the unit was last well.
    restarts: int
    #: Seconds until the next one.
    restarts_in: float | None
    #: What the task has moved; None until the data plane tells.
    figures: Figures | None = None
    #: What has failed in the task since it started, by Kafka Connect's names.
    errors: Mapping[str, int] | None = None


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One key of the config log, as it stands: also what is deleted."""

    key: str
    position: int
    deleted: bool
    value: Any
