"""What a host is told about the unit that it holds."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.connect.config.permits import Permits

__all__ = ["Told"]


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """The first message of the worker."""

    #: ``connector``, ``task``, ``call``, or ``shared``: a host for connectors of one class.
    kind: str
    connector: str = ""
    task: int = 0
    generation: int = 0
    role: str = "source"
    config: dict[str, str] = {}
    paused: bool = False
    #: Where the data channel of a task listens.
    address: str = ""
    #: Committed positions of a source connector: partition and offset.
    positions: list[tuple[dict[str, Any], dict[str, Any]]] = []
    #: Seconds between two health probes; 0: none.
    probe: float = 0.0
    #: Seconds between two looks at values from outside; 0: none.
    outside: float = 0.0
    #: Most records and bytes that a source polls ahead.
    ahead_records: int = 50_000
    ahead_bytes: int = 16 << 20
    #: Folders that plugins are imported from, before all others.
    folders: list[str] = []
    #: Modules with plugins that no entry point names.
    modules: list[str] = []
    #: What its config may take from outside.
    permits: Permits = Permits()
    #: The question of a call, with the connector's class and what more it needs.
    what: str = ""
    connector_class: str = ""
    arguments: dict[str, Any] = {}
    #: Levels of loggers, in the order in which they were set.
    levels: list[tuple[str, int]] = []

    @property
    def who(self) -> str:
        """Names the unit in causes.

        >>> Told(kind="task", connector="orders", task=2).who
        "task 2 of connector 'orders'"
        """
        unit = f"connector '{self.connector}'"
        if self.kind == "call":
            return f"connector '{self.connector or self.connector_class}'"
        return unit if self.kind == "connector" else f"task {self.task} of {unit}"
