"""A connector in its host."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from headrace.connect.handling.counters import Counters
from headrace.connect.handling.policy import ErrorPolicy
from headrace.connect.handling.retrying import Retrying
from headrace.connect.hosts.contexts import Committed, HostedConnector
from headrace.connect.hosts.life import Life, Unit
from headrace.connect.hosts.loading import connector_of
from headrace.connect.hosts.outside import OutsideValues

if TYPE_CHECKING:
    from headrace.connect.hosts.control import Control
    from headrace.connect.hosts.spec import Told
    from headrace.connect.plugins import Connector

__all__ = ["ConnectorUnit"]


class ConnectorUnit(Unit):
    """Starts a connector, lets it watch what it watches, and stops it."""

    def __init__(self, told: Told, control: Control, life: Life) -> None:
        self._told = told
        self._control = control
        self._life = life
        self._connector: Connector

    def make(self) -> None:
        """Import the plugin and make the instance with its context."""
        told = self._told
        # Before they are read: what changes in between counts as a change, too.
        outside = OutsideValues(told.config)
        kind, config = connector_of(self, told, self._life.masking)
        if config["config.action.reload"].lower() == "restart":
            outside.watch(
                lambda: self._control.tell("outside"),
                self._life.stopping,
                told.outside,
                self._life.break_off,
            )
        self._kind, self._config = kind, config
        policy = ErrorPolicy.of(config.texts, "source" if told.role == "source" else "sink")
        self._retrying = Retrying(policy.task_patience, Counters(), wait=self._life.stopping.wait)
        self._retrying.heard = self._life.waits
        self._make_connector()

    def _make_connector(self) -> None:
        self._connector = self._kind()
        self._connector.context = HostedConnector(
            self._told.connector,
            self._config,
            self._control,
            self._life,
            Committed(self._told.positions),
        )
        self._has_started = False

    def start(self) -> str:
        """Call ``start``, again where it waits for something outside."""
        self._retrying.call(self._start_connector)
        return ""

    def _start_connector(self) -> None:
        if self._has_started:
            # What a start that failed has left is nobody's.
            with contextlib.suppress(Exception):
                self._connector.stop()
            self._make_connector()
        self._has_started = True
        self._connector.start(self._config)

    def work(self) -> None:
        """Wait for the end: a connector has its own threads, if it watches something."""
        self._life.stopping.wait()

    def stop(self) -> None:
        """Call ``stop``."""
        self._connector.stop()

    def wake(self) -> None:
        """Nothing waits but for the end."""

    def healthy(self) -> bool:
        """Ask the connector's probe."""
        return self._connector.healthy()
