"""What a host does: it holds a connector, a task, or connectors of a class, or answers a question."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import queue
import site
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connect.channel import AskTasks, Born, ChildEnd, HostCommand, Left, Reply, Told
from headrace.connect.columns import SINK_SCHEMA
from headrace.connect.config import Config, Masking, Secret
from headrace.connect.config.providers import is_reference, references, resolve, restrict
from headrace.connect.handling import sink_chain, source_chain
from headrace.connect.handling.retrying import Counters, ErrorPolicy, Retrying
from headrace.connect.hosts.channel import packed, unpacked
from headrace.connect.hosts.control import (
    HostedConnector,
    add_new_places,
    catalog,
    config_of,
    connector_class,
    connector_of,
)
from headrace.connect.hosts.keeper import mask_output
from headrace.connect.hosts.life import Life, RunningUnit, cause_of
from headrace.connect.hosts.sink_unit import SinkUnit
from headrace.connect.hosts.source_unit import SourceUnit
from headrace.connect.levels import set_level
from headrace.connect.lifecycle import Failed, OutsideChanged, Started
from headrace.connect.plugins import Connector, SinkTask
from headrace.connect.plugins.builtin import BUILTIN
from headrace.connect.plugins.catalog import GROUPS, Catalog
from headrace.connect.plugins.contexts import CommittedPositions
from headrace.connect.plugins.validation import describe, validate
from headrace.connect.records import SourceBatch, SourceRecord
from headrace.connect.schema import schema_of_arrow
from headrace.errors import ConfigurationError, ConnectorConfigError, PluginError
from headrace.watched import OnFailure, watched_thread

logger = logging.getLogger(__name__)

# Values from outside that a config takes: looked at again, for as long as its connector runs.


class OutsideValues:
    """Notices when a value that a config takes from outside is another one.

    Parameters
    ----------
    texts
        The config, as it was written.

    Examples
    --------
    >>> import os
    >>> os.environ["HEADRACE_EXAMPLE_PASSWORD"] = "swordfish"
    >>> values = OutsideValues({"password": "${env:HEADRACE_EXAMPLE_PASSWORD}", "topic": "t"})
    >>> values.changed()
    False
    >>> os.environ["HEADRACE_EXAMPLE_PASSWORD"] = "kingfisher"
    >>> values.changed()
    True
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._references = {key: text for key, text in texts.items() if is_reference(text)}
        self._known = self._read()

    def changed(self) -> bool:
        """Look again; one that cannot be read now, such as a file that is replaced, waits."""
        found = self._read()
        if self._known is None:
            self._known = found
        return found is not None and found != self._known

    def watch(
        self,
        told: Callable[[], None],
        stopping: threading.Event,
        every: float,
        on_failure: OnFailure,
    ) -> None:
        """Look every so many seconds in a thread of its own, and tell of the first change."""
        if not self._references or not every:
            return

        def look() -> None:
            while not stopping.wait(every):
                if self.changed():
                    told()
                    return

        watched_thread(look, name="headrace-outside", on_failure=on_failure).start()

    def _read(self) -> dict[str, str] | None:
        try:
            return resolve(self._references)
        except ConnectorConfigError as error:
            logger.debug("a value from outside cannot be read now: %s", error)
            return None


# A connector in its host.

#: A shorter value says nothing, and would be found in many texts by chance.
_WORTH_HIDING = 4


class ConnectorUnit(RunningUnit):
    """Starts a connector, lets it watch what it watches, asks it for its tasks, and stops it."""

    def __init__(self, told: Told, control: ChildEnd, life: Life) -> None:
        self._told = told
        self._control = control
        self._life = life
        self._connector: Connector
        #: Questions that wait for the main thread; None: something has changed.
        self._questions: queue.SimpleQueue[AskTasks | None] = queue.SimpleQueue()
        self.words = {AskTasks: self._questions.put}

    def make(self) -> None:
        """Import the plugin and make the instance with its context."""
        told = self._told
        # Before they are read: what changes in between counts as a change, too.
        outside = OutsideValues(told.config)
        kind, config = connector_of(self, told, self._life.masking)
        if config["config.action.reload"].lower() == "restart":
            outside.watch(
                lambda: self._control.tell(OutsideChanged()),
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
                self._tell_tasks(question)

    def stop(self) -> None:
        """Call ``stop``."""
        self._connector.stop()

    def wake(self) -> None:
        """Let :meth:`work` look up."""
        self._questions.put(None)

    def _tell_tasks(self, question: AskTasks) -> None:
        try:
            with self.in_call("task_configs()"):
                config = self._connector.context.config
                most = config["tasks.max"]
                found = self._retrying.call(lambda: self._connector.task_configs(most))
                value = [_texts(one, config, self._outside) for one in found]
        except BaseException as error:  # noqa: BLE001 - plugin code may raise anything
            traceback.print_exc()
            if self._life.stopping.is_set():
                return
            cause = cause_of(error, self._told.who, "task_configs()", self._life.masking)
            self._control.tell(Reply(question.request, failure=cause))
        else:
            self._control.tell(Reply(question.request, msgspec.Raw(orjson.dumps(value))))


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


# What a fork server does once, so that none of its hosts has to.
#
# Hosts share the memory of all that was there when they were forked: what is imported, and what is
# made when something is used for the first time.

_CONVERTERS: tuple[dict[str, str], ...] = (
    {},
    {"value.converter": "json", "value.converter.schemas.enable": "false"},
)


def warm_up() -> None:
    """Look for plugins, import those that come with Headrace, and take records through a chain."""
    Catalog.installed()
    for module in dict.fromkeys(one.target.partition(":")[0] for one in BUILTIN):
        # One whose extra is not installed says so where it is asked for.
        with suppress(ImportError):
            importlib.import_module(module)
    for config in _CONVERTERS:
        _move(config)


def _move(config: dict[str, str]) -> None:
    source = source_chain("warm-up", 0, config, wait=lambda _: False)
    record = SourceRecord(partition={}, offset={}, topic="t", value={"n": 1})
    column = pa.array([record.value])
    batch = SourceBatch(
        partition={}, offset={}, topic="t", value=column, value_schema=schema_of_arrow(column.type)
    )
    sink = sink_chain("warm-up", 0, config, wait=lambda _: False)
    for polled in ([record], batch):
        rows = unpacked(bytearray(packed(source.encode(polled).rows)))
        message = {
            "topic": pc.unique(rows["topic"])[0].as_py(),
            "broker": "b",
            "queue": 0,
            "offset": 0,
            "value": rows["value"][0].as_py(),
        }
        sink.deliver(pa.RecordBatch.from_pylist([message], schema=SINK_SCHEMA), _Discard())


class _Discard(SinkTask):
    """Takes records and does nothing with them."""

    def put(self, records: object) -> None:
        """Let them go."""


# Questions to plugins, each answered in a host that lives for it alone.


def answer_call(told: Told, control: ChildEnd, masking: Masking) -> None:
    """Answer the question; plugin code that raises makes a cause of it."""
    life = Life(control, told.who, masking=masking)
    try:
        value = _QUESTIONS[told.what](told, life)
    except BaseException as error:  # noqa: BLE001 - plugin code may raise anything
        traceback.print_exc()
        control.tell(Reply(0, failure=cause_of(error, told.who, told.what, masking)))
        sys.exit(1)
    control.tell(Reply(0, msgspec.Raw(orjson.dumps(value))))


def _plugins(told: Told, _life: Life) -> list[dict[str, Any]]:
    return _asked_for(told).listing()


def _plugin_names(told: Told, _life: Life) -> list[dict[str, Any]]:
    """Name all plugins without importing any, as they are listed where their import fails."""
    installed = [
        {
            "target": one.target,
            "entry": {
                "class": one.class_name,
                "type": one.known or GROUPS[one.family][0],
                "version": "undefined",
                "aliases": list(one.names[1:]),
            },
        }
        for one in Catalog.installed().plugins
    ]
    return installed + [
        {"target": module, "entry": {"class": module, "type": "source", "version": "undefined"}}
        for module in told.modules
    ]


def _asked_for(told: Told) -> Catalog:
    only = told.arguments.get("only")
    if only is None:
        return catalog(told.modules)
    installed = Catalog.installed().plugins
    found = [one for one in installed if one.target == only]
    if not found and only not in told.modules:
        with contextlib.suppress(PluginError):
            found = [catalog(told.modules).find(only, "connectors")]
    if only in told.modules:
        known = {one.target for one in installed}
        found += [one for one in catalog([only]).plugins if one.target not in known]
    return Catalog(found)


def _describe(told: Told, _life: Life) -> list[dict[str, Any]]:
    return describe(catalog(told.modules), told.connector_class)


def _validate(told: Told, life: Life) -> dict[str, Any]:
    life.masking.learn(references(told.config).values())
    answer = validate(catalog(told.modules), told.connector_class, told.config)
    values = [one["value"] for one in answer["configs"]]
    secret = {
        one["definition"]["name"]
        for one in answer["configs"]
        if one["definition"]["type"] == "PASSWORD"
    }
    life.masking.learn(told.config[name] for name in secret if name in told.config)
    for value in values:
        # A plugin's own check may quote what it was given.
        value["errors"] = [life.masking(problem) for problem in value["errors"]]
    return answer


def _alter_offsets(told: Told, life: Life) -> bool:
    connector, config = _made(told, life)
    offsets = [(one["partition"], one.get("offset")) for one in told.arguments["offsets"]]
    return bool(connector.alter_offsets(config, offsets))


def _made(told: Told, life: Life) -> tuple[Any, Config]:
    """Make the connector that is asked, with its context."""
    texts = _texts_of(told)
    kind = connector_class(texts, told.modules)
    config = config_of(kind, texts, life.masking)
    connector = kind()
    committed = CommittedPositions(told.positions)
    connector.context = HostedConnector(told.connector, config, life.control, life, committed)
    return connector, config


def _texts_of(told: Told) -> dict[str, str]:
    return {"name": told.connector, "connector.class": told.connector_class, **told.config}


_QUESTIONS: Mapping[str, Callable[[Told, Life], Any]] = {
    "plugins": _plugins,
    "plugin_names": _plugin_names,
    "describe": _describe,
    "validate": _validate,
    "alter_offsets": _alter_offsets,
}


#: When the process began that imports this, and forks hosts.
_BEGAN = time.time()
_FORM = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def set_up_logging() -> None:
    """Let what is logged go where the process writes; once for all that are forked from this."""
    logging.basicConfig(format=_FORM, level=logging.INFO)


def run(connected: socket.socket) -> None:
    """Hear over the socket what is to run, and run it."""
    control = ChildEnd(connected, HostCommand)
    control.tell(Born(os.getpid()))
    told = control.hear()
    assert isinstance(told, Told), told
    restrict(told.permits)
    set_up_logging()
    for name, level in told.levels:
        set_level(name, level)
    masking = Masking()
    mask_output(masking)
    sys.path[:0] = told.folders
    add_new_places(site.getsitepackages(), _BEGAN)
    if told.kind == "call":
        answer_call(told, control, masking)
    elif told.kind == "shared":
        _share(connected, control, masking)
    elif _lived(told, control, masking).failed:
        sys.exit(1)


def _lived(told: Told, control: ChildEnd, masking: Masking) -> Life:
    """Take a unit through its life, in this thread."""
    life = Life(control, told.who, told.probe, masking)
    if told.paused:
        life.paused.set()
    life.live(_unit(told, control, life))
    return life


def _share(connected: socket.socket, control: ChildEnd, masking: Masking) -> None:
    """Have connectors live here, each in a thread of its own, until the worker wants none more.

    What one hides in what this process prints, all do.
    """
    for handler in logging.getLogger().handlers:
        handler.setFormatter(
            logging.Formatter(_FORM.replace("%(name)s", "[%(threadName)s] %(name)s"))
        )
    control.tell(Started())
    while True:
        _, handles, _, _ = socket.recv_fds(connected, 1, 1)
        if not handles:
            return
        _take_in(socket.socket(fileno=handles[0]), masking)


def _take_in(channel: socket.socket, masking: Masking) -> None:
    """Have a unit live in a thread of its own, beside others."""
    control = ChildEnd(channel, HostCommand, alone=False)

    def live() -> None:
        control.tell(Born(os.getpid()))
        # Where nothing is told, its launch was given up.
        with contextlib.suppress(EOFError):
            told = control.hear()
            assert isinstance(told, Told), told
            threading.current_thread().name = told.connector
            for name, level in told.levels:
                set_level(name, level)
            _lived(told, control, masking)
        leave()

    def leave(error: BaseException | None = None) -> None:
        if error is not None:
            control.tell(Failed(cause_of(error, "a connector", "its host", masking)))
        control.tell(Left())
        control.close()

    watched_thread(live, name="connector", on_failure=leave).start()


def _unit(told: Told, control: ChildEnd, life: Life) -> RunningUnit:
    if told.kind == "connector":
        return ConnectorUnit(told, control, life)
    kind = SourceUnit if told.role == "source" else SinkUnit
    return kind(told, control, life)
