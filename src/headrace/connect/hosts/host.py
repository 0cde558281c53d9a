"""What a host does: it holds one connector or one task, or answers one question."""

from __future__ import annotations

import logging
import os
import site
import socket
import sys
import time

import msgspec

from headrace.connect.config import Masking
from headrace.connect.config.permits import restrict
from headrace.connect.hosts.calls import answer_call
from headrace.connect.hosts.connector_unit import ConnectorUnit
from headrace.connect.hosts.control import Control
from headrace.connect.hosts.life import Life, Unit
from headrace.connect.hosts.loading import add_new_places
from headrace.connect.hosts.output import mask_output
from headrace.connect.hosts.sink_unit import SinkUnit
from headrace.connect.hosts.source_unit import SourceUnit
from headrace.connect.hosts.spec import Told
from headrace.connect.levels import set_level

__all__ = ["run", "set_up_logging"]

#: When the process began that imports this, and forks hosts.
_BEGAN = time.time()


def set_up_logging() -> None:
    """Let what is logged go where the process writes; once for all that are forked from this."""
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO
    )


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
        return
    life = Life(control, told.who, told.probe, masking)
    if told.paused:
        life.paused.set()
    life.live(_unit(told, control, life))


def _unit(told: Told, control: Control, life: Life) -> Unit:
    if told.kind == "connector":
        return ConnectorUnit(told, control, life)
    kind = SourceUnit if told.role == "source" else SinkUnit
    return kind(told, control, life)
