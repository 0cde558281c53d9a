"""The settings of a worker: each with its type, unit, default and meaning."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from headrace._setting import DeclaredSettings, setting
from headrace.connect.config.declaration import COMMON
from headrace.connect.lifecycle import UnitTimeouts
from headrace.durations import format_duration
from headrace.errors import SettingsError
from headrace.private import is_loopback

#: Kafka Connect's port.
_PORT = 8083
_SOON = timedelta(milliseconds=10)

MEMORY_KEY = "task.memory.mb"
"""Key of a connector's config that overrides ``memory_mb``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings(DeclaredSettings):
    """How a worker runs.

    Durations are ``timedelta`` or text such as ``"500 ms"``.

    Raises
    ------
    SettingsError
        When a value cannot work; the message names the setting, its value and why.

    Examples
    --------
    >>> WorkerSettings(port=0, graceful_timeout="2 s").limits.ask
    2.0
    """

    VARIABLES = "HEADRACE_CONNECT_"
    PANELS: ClassVar[Mapping[str, str]] = {
        "host": "REST",
        "allow_env": "What configs may take from this machine",
        "group": "Cluster of workers",
        "data": "Plugins and their processes",
        "graceful_timeout": "Times",
    }

    host: str = setting("127.0.0.1", doc="Address that the REST API listens on.")
    port: int = setting(
        _PORT, doc="Port of the REST API; 0 takes a free one.", maximum=65_535, shown=f"{_PORT}"
    )
    token: str | None = setting(
        None,
        doc="Token that REST requests must bring; others on this machine see options, but not "
        "variables.",
        secret=True,
    )
    tls_certificate: Path | None = setting(
        None, doc="File with the certificate (PEM) that makes REST speak TLS."
    )
    tls_key: Path | None = setting(None, doc="File with the key (PEM) of the certificate.")
    cors_origins: tuple[str, ...] = setting(
        (),
        doc="Web origins whose pages may call REST; * stands for all.",
        unit="origin",
        option="--cors-origin",
    )
    allow_anyone: bool = setting(
        default=False,
        doc="Whether REST may listen on other addresses than loopback without a token: whoever"
        " reaches them can run code here then.",
    )
    max_connections: int = setting(
        512,
        doc="Most connections of REST, and most requests that are worked on.",
        unit="connections",
        minimum=1,
    )
    request_time: timedelta = setting(
        timedelta(seconds=30), doc="Time in which a request must have come whole.", minimum=_SOON
    )
    allow_env: tuple[str, ...] = setting(
        (), doc="Variables that ${env:NAME} in a config may take; * stands for any signs."
    )
    allow_file: tuple[Path, ...] = setting(
        (),
        doc="Files, and folders with all that is in them, that ${file:PATH:KEY} in a config may"
        " read.",
    )
    allow_function: tuple[str, ...] = setting(
        (), doc="Modules, with all that is in them, whose functions PythonFunction may call."
    )
    group: str = setting(
        "headrace-connect", doc="Name of the cluster of workers that this one joins."
    )
    cluster: str = setting("standalone", doc="Name of the cluster of brokers, as REST tells it.")
    worker_id: str = setting(
        "",
        doc="Name of this worker, unique in the cluster; status shows it, so give the address at"
        " which others reach it.",
        shown="host name and port",
    )
    heartbeat_interval: timedelta = setting(
        timedelta(seconds=2),
        doc="Time between two signs of life of a worker of a cluster"
        " (in Kafka Connect: heartbeat.interval.ms).",
        minimum=_SOON,
    )
    session_timeout: timedelta = setting(
        timedelta(seconds=15),
        doc="A worker of a cluster that gives no sign of life for so long is lost"
        " (in Kafka Connect: session.timeout.ms).",
        minimum=timedelta(milliseconds=30),
    )
    fence_after: timedelta = setting(
        timedelta(seconds=18),
        doc="A worker that cannot read or write its log for so long stops all that it runs.",
        minimum=timedelta(milliseconds=100),
    )
    rebalance_delay: timedelta = setting(
        timedelta(seconds=30),
        doc="What a lost worker of a cluster ran moves to others after so long, unless it comes back"
        " (in Kafka Connect: scheduled.rebalance.max.delay.ms).",
        minimum=timedelta(milliseconds=200),
    )
    data: Path = setting(
        Path("connect-data"), doc="Folder of the worker's sockets and scratch files."
    )
    plugins: tuple[str, ...] = setting(
        (), doc="Modules with plugins, besides installed packages.", unit="module"
    )
    memory_mb: int | None = setting(
        None, doc="Memory that one task may use.", unit="MB", minimum=1, shown="no limit"
    )
    share_hosts: bool = setting(
        default=False,
        doc="Whether all connectors of a class share one process, each in a thread of its own;"
        " tasks never do.",
    )
    graceful_timeout: timedelta = setting(
        timedelta(seconds=5),
        doc="Time that a connector or task has for its stop() before it is cancelled.",
    )
    cancel_timeout: timedelta = setting(
        timedelta(seconds=3), doc="Time after the cancellation before its process is killed."
    )
    kill_timeout: timedelta = setting(
        timedelta(seconds=3),
        doc="Time after which a process that is still there is killed again.",
        minimum=_SOON,
    )
    start_timeout: timedelta = setting(
        timedelta(minutes=3), doc="Time that start() may take.", minimum=_SOON
    )
    call_timeout: timedelta = setting(
        timedelta(seconds=10),
        doc="Time that a plugin has to answer a question, such as whether a config is right.",
        minimum=_SOON,
    )
    pass_interval: timedelta = setting(
        timedelta(seconds=20),
        doc="Time between two passes over all units; a change wakes the worker at once.",
        minimum=_SOON,
    )
    purge_after: timedelta = setting(
        timedelta(days=1), doc="Time after which the mark of a deleted connector is removed."
    )

    def __post_init__(self) -> None:
        DeclaredSettings.__post_init__(self)
        if self.rebalance_delay < self.fence_after * 1.5:
            raise SettingsError(
                f"The setting rebalance_delay is {format_duration(self.rebalance_delay)}, and"
                f" fence_after is {format_duration(self.fence_after)}: others would take over what"
                " a worker runs that has not stopped it yet.",
                hint="Give rebalance_delay at least half as much again as fence_after.",
            )
        if self.session_timeout < self.heartbeat_interval * 3:
            raise SettingsError(
                f"The setting session_timeout is {format_duration(self.session_timeout)}, and"
                f" heartbeat_interval is {format_duration(self.heartbeat_interval)}: a worker would"
                " be lost because one sign of life came late.",
                hint="Give session_timeout at least three times heartbeat_interval.",
            )
        if self.token is None and not self.allow_anyone and not is_loopback(self.host):
            raise SettingsError(
                f"The setting host is {self.host}: whoever reaches that address could run code here,"
                " as no token is set.",
                hint="Give a token, or listen on 127.0.0.1; --allow-anyone takes the risk.",
            )
        if (self.tls_certificate is None) != (self.tls_key is None):
            lacking = "tls_key" if self.tls_key is None else "tls_certificate"
            raise SettingsError(
                f"The setting {lacking} is missing: TLS needs a certificate and its key.",
                hint="Give tls_certificate and tls_key, or neither.",
            )

    @property
    def name(self) -> str:
        """The worker's id."""
        return self.worker_id or f"{socket.gethostname()}:{self.port}"

    @property
    def limits(self) -> UnitTimeouts:
        """The time limits of units whose config says nothing else."""
        return UnitTimeouts(
            start=self.start_timeout.total_seconds(),
            ask=self.graceful_timeout.total_seconds(),
            cancel=self.cancel_timeout.total_seconds(),
            kill=self.kill_timeout.total_seconds(),
        )


def limits_of(config: Mapping[str, str], settings: WorkerSettings) -> UnitTimeouts:
    """Return the time limits of a connector's units.

    Examples
    --------
    >>> limits_of({"task.start.timeout.ms": "3 s"}, WorkerSettings()).start
    3.0
    """
    keys = {"start": "task.start.timeout.ms", "ask": "task.shutdown.graceful.timeout.ms"}
    given = {limit: COMMON.value(name, config) for limit, name in keys.items()}
    seconds = {limit: one.total_seconds() for limit, one in given.items() if one is not None}
    return replace(settings.limits, **seconds)


def memory_of(config: Mapping[str, str], settings: WorkerSettings) -> int | None:
    """Return the memory limit of a connector's units, in MB; None: no limit."""
    return COMMON.value(MEMORY_KEY, config) or settings.memory_mb
