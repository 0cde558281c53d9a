"""A connector in its host."""

from __future__ import annotations

import queue
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.connect.config import Secret
from headrace.connect.config.providers import references
from headrace.connect.handling.retrying import ErrorPolicy, Retrying
from headrace.connect.handling.stages import Counters
from headrace.connect.hosts.causes import cause_of
from headrace.connect.hosts.contexts import CommittedPositions, HostedConnector, connector_of
from headrace.connect.hosts.life import Life, RunningUnit
from headrace.connect.hosts.outside import OutsideValues
from headrace.errors import ConfigurationError

if TYPE_CHECKING:
    from headrace.connect.config import Config
    from headrace.connect.hosts.control import HostControl
    from headrace.connect.hosts.launcher import Told
    from headrace.connect.plugins import Connector

__all__ = ["ConnectorUnit"]

#: A shorter value says nothing, and would be found in many texts by chance.
_WORTH_HIDING = 4


class ConnectorUnit(RunningUnit):
    """Starts a connector, lets it watch what it watches, asks it for its tasks, and stops it."""

    def __init__(self, told: Told, control: HostControl, life: Life) -> None:
        self._told = told
        self._control = control
        self._life = life
        self._connector: Connector
        #: Questions that wait for the main thread; None: something has changed.
        self._questions: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self.words = {"task_configs": lambda number, most: self._questions.put((number, most))}

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
        self._outside = references(told.config)
        self._kind, self._config = kind, config
        policy = ErrorPolicy.of(config.texts, "source" if told.role == "source" else "sink")
        self._retrying = Retrying(policy.task_patience, Counters(), wait=self._life.stopping.wait)
        self._retrying.heard = self._life.waits
        self.make_instance()

    @property
    def instance(self) -> Connector:
        """The connector."""
        return self._connector

    def make_instance(self) -> None:
        """Make the connector with its context."""
        self._connector = self._kind()
        self._connector.context = HostedConnector(
            self._told.connector,
            self._config,
            self._control,
            self._life,
            CommittedPositions(self._told.positions),
        )

    def start(self) -> str:
        """Call ``start``."""
        self.start_instance(self._config, self._retrying)
        return ""

    def work(self) -> None:
        """Answer questions until the end: a connector has its own threads, if it watches something."""
        while not self._life.stopping.is_set():
            question = self._questions.get()
            if question is not None and not self._life.stopping.is_set():
                self._tell_tasks(*question)

    def stop(self) -> None:
        """Call ``stop``."""
        self._connector.stop()

    def wake(self) -> None:
        """Let :meth:`work` look up."""
        self._questions.put(None)

    def _tell_tasks(self, number: int, most: int) -> None:
        try:
            with self.in_call("task_configs()"):
                found = self._retrying.call(lambda: self._connector.task_configs(most))
                config = self._connector.context.config
                value = [_texts(one, config, self._outside) for one in found]
        except BaseException as error:  # noqa: BLE001 - plugin code may raise anything
            traceback.print_exc()
            if self._life.stopping.is_set():
                return
            cause = cause_of(error, self._told.who, "task_configs()", self._life.masking)
            self._control.tell("task_configs", number=number, failure=cause)
        else:
            self._control.tell("task_configs", number=number, value=value)


def _texts(texts: Any, config: Config, outside: Mapping[str, str]) -> dict[str, str]:
    """Check a task's config, which is kept and shown: what came from outside stays there."""
    wrong = [name for name, value in texts.items() if not isinstance(value, str)]
    if wrong:
        raise ConfigurationError(
            f"task_configs() gave values that are no texts, for {', '.join(map(repr, wrong))}",
            hint="write each value as the text that a person would write into the config",
        )
    given = {name: _unresolved(text, outside) for name, text in texts.items()}
    secrets = {one.reveal() for one in config.values() if isinstance(one, Secret)}
    shown = [name for name, text in given.items() if text in secrets]
    if shown:
        raise ConfigurationError(
            f"task_configs() gave a secret of the config under {', '.join(map(repr, shown))}, and"
            " task configs are kept and shown",
            hint="leave it out: every task gets the whole config of its connector",
        )
    return given


def _unresolved(text: str, outside: Mapping[str, str]) -> str:
    """Put references back in the places of their values.

    >>> _unresolved("/srv/lines/a.txt", {"${env:FOLDER}": "/srv/lines"})
    '${env:FOLDER}/a.txt'
    """
    for reference, value in sorted(outside.items(), key=lambda one: -len(one[1])):
        if len(value) >= _WORTH_HIDING:
            text = text.replace(value, reference)
    return text
