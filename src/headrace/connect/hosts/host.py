"""What a host does: it holds a connector, a task, or connectors of a class, or answers a question."""

from __future__ import annotations

import contextlib
import logging
import os
import site
import socket
import sys
import threading
import time

import msgspec

from headrace.connect.config import Masking
from headrace.connect.config.permits import restrict
from headrace.connect.hosts.calls import answer_call
from headrace.connect.hosts.causes import cause_of
from headrace.connect.hosts.connector_unit import ConnectorUnit
from headrace.connect.hosts.control import Control
from headrace.connect.hosts.life import Life, Unit
from headrace.connect.hosts.loading import add_new_places
from headrace.connect.hosts.output import mask_output
from headrace.connect.hosts.sink_unit import SinkUnit
from headrace.connect.hosts.source_unit import SourceUnit
from headrace.connect.hosts.spec import Told
from headrace.connect.levels import set_level
from headrace.watched import watched_thread

__all__ = ["run", "set_up_logging"]

#: When the process began that imports this, and forks hosts.
_BEGAN = time.time()
_FORM = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def set_up_logging() -> None:
    """Let what is logged go where the process writes; once for all that are forked from this."""
    logging.basicConfig(format=_FORM, level=logging.INFO)


def run(connected: socket.socket) -> None:
    """Hear over the socket what is to run, and run it."""
    control = Control(connected)
    control.tell("born", pid=os.getpid())
    told = msgspec.convert(control.ask(), Told)
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


def _lived(told: Told, control: Control, masking: Masking) -> Life:
    """Take a unit through its life, in this thread."""
    life = Life(control, told.who, told.probe, masking)
    if told.paused:
        life.paused.set()
    life.live(_unit(told, control, life))
    return life


def _share(connected: socket.socket, control: Control, masking: Masking) -> None:
    """Have connectors live here, each in a thread of its own, until the worker wants none more.

    What one hides in what this process prints, all do.
    """
    for handler in logging.getLogger().handlers:
        handler.setFormatter(
            logging.Formatter(_FORM.replace("%(name)s", "[%(threadName)s] %(name)s"))
        )
    control.tell("open")
    while True:
        _, handles, _, _ = socket.recv_fds(connected, 1, 1)
        if not handles:
            return
        _take_in(socket.socket(fileno=handles[0]), masking)


def _take_in(channel: socket.socket, masking: Masking) -> None:
    """Have a unit live in a thread of its own, beside others."""
    control = Control(channel, alone=False)

    def live() -> None:
        control.tell("born", pid=os.getpid())
        # Where nothing is told, its launch was given up.
        with contextlib.suppress(EOFError):
            told = msgspec.convert(control.ask(), Told)
            threading.current_thread().name = told.connector
            for name, level in told.levels:
                set_level(name, level)
            _lived(told, control, masking)
        leave()

    def leave(error: BaseException | None = None) -> None:
        if error is not None:
            control.tell("failed", **cause_of(error, "a connector", "its host", masking))
        control.tell("left")
        control.close()

    watched_thread(live, name="connector", on_failure=leave).start()


def _unit(told: Told, control: Control, life: Life) -> Unit:
    if told.kind == "connector":
        return ConnectorUnit(told, control, life)
    kind = SourceUnit if told.role == "source" else SinkUnit
    return kind(told, control, life)
