"""Hosts: the processes in which plugins run, and everything that is said to them.

``ProcessLauncher`` is what a worker starts them by, ``TaskChannel`` what the engine moves the
records of a task by.  Names are imported at first use, as a worker needs no Arrow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.connect.hosts.channel import Asked, PolledBatch, TaskChannel
    from headrace.connect.hosts.launcher import HostSettings, ProcessLauncher

_HOME_OF = {
    "Asked": "channel",
    "HostSettings": "launcher",
    "PolledBatch": "channel",
    "ProcessLauncher": "launcher",
    "TaskChannel": "channel",
}

__all__ = ["Asked", "HostSettings", "PolledBatch", "ProcessLauncher", "TaskChannel"]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        message = f"module 'headrace.connect.hosts' has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(f"headrace.connect.hosts.{_HOME_OF[name]}"), name)
