"""What a host is to run, put together from what the log says of its connector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.connect.lifecycle import Target
from headrace.connect.worker.launching import HostSpec
from headrace.connect.worker.settings import MEMORY_KEY, memory_of

if TYPE_CHECKING:
    from headrace.connect.log import ConnectorEntry
    from headrace.connect.naming import UnitId
    from headrace.connect.worker.catalog import Plugin
    from headrace.connect.worker.settings import WorkerSettings

__all__ = ["host_spec"]


def host_spec(
    unit: UnitId, entry: ConnectorEntry, plugin: Plugin, settings: WorkerSettings
) -> HostSpec:
    """Say what the host of a copy is to run.

    A connector whose config limits its own memory has a host of its own: a limit bounds a process.

    Examples
    --------
    >>> from headrace.connect.log import ClusterView, ConnectorPut, fold
    >>> from headrace.connect.worker import WorkerSettings
    >>> from headrace.connect.worker.catalog import Plugin
    >>> put = ConnectorPut(request="a", name="orders", config={"connector.class": "datagen"})
    >>> view, _ = fold(ClusterView(), put, 0)
    >>> (unit,) = view.units()
    >>> plugin = Plugin(class_name="shop.DataGen", type="source")
    >>> host_spec(unit, view.entries["orders"], plugin, WorkerSettings(share_hosts=True)).shares
    'shop.DataGen'
    """
    config = dict(entry.config)
    if unit.task is not None:
        # A task gets all that its connector was told, too: converters, error handling ...
        config |= entry.tasks[unit.task].config
    shares = settings.share_hosts and unit.task is None and not entry.config.get(MEMORY_KEY)
    return HostSpec(
        kind="connector" if unit.task is None else "task",
        connector=unit.connector,
        kept_as=entry.kept_as,
        task=unit.task,
        tasks=max(1, len(entry.tasks)),
        generation=unit.generation,
        config=config,
        memory_mb=memory_of(entry.config, settings),
        role=plugin.role,
        paused=entry.target is Target.PAUSED,
        shares=plugin.class_name if shares else "",
    )
