"""Questions to plugins, each answered in a host that lives for it alone."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.connect.hosts.causes import cause_of
from headrace.connect.hosts.contexts import Committed, HostedConnector
from headrace.connect.hosts.life import Life
from headrace.connect.hosts.loading import catalog, connector_class
from headrace.connect.plugins.catalog import GROUPS, Catalog
from headrace.connect.plugins.validation import describe, read_config, validate
from headrace.errors import ConfigurationError

if TYPE_CHECKING:
    from headrace.connect.hosts.control import Control
    from headrace.connect.hosts.spec import Told

__all__ = ["answer_call"]


def answer_call(told: Told, control: Control) -> None:
    """Answer the question; plugin code that raises makes a cause of it."""
    try:
        value = _QUESTIONS[told.what](told, control)
    except BaseException as error:  # noqa: BLE001 - plugin code may raise anything
        traceback.print_exc()
        control.tell("answer", failure=cause_of(error, told.who, told.what))
        sys.exit(1)
    control.tell("answer", value=value)


def _plugins(told: Told, _control: Control) -> list[dict[str, Any]]:
    return _asked_for(told).listing()


def _plugin_names(told: Told, _control: Control) -> list[dict[str, Any]]:
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
    if only in told.modules:
        known = {one.target for one in installed}
        found += [one for one in catalog([only]).plugins if one.target not in known]
    return Catalog(found)


def _describe(told: Told, _control: Control) -> list[dict[str, Any]]:
    return describe(catalog(told.modules), told.connector_class)


def _validate(told: Told, _control: Control) -> dict[str, Any]:
    return validate(catalog(told.modules), told.connector_class, told.config)


def _task_configs(told: Told, control: Control) -> list[dict[str, str]]:
    kind = connector_class(_texts_of(told), told.modules)
    config = read_config(kind, _texts_of(told))
    connector = kind()
    life = Life(control, told.who)
    committed = Committed(told.positions)
    connector.context = HostedConnector(told.connector, config, control, life, committed)
    connector.start(config)
    try:
        configs = connector.task_configs(told.arguments["max_tasks"])
        return [_texts(one) for one in configs]
    finally:
        life.stopping.set()
        connector.stop()


def _texts(config: Any) -> dict[str, str]:
    wrong = [name for name, value in config.items() if not isinstance(value, str)]
    if wrong:
        raise ConfigurationError(
            f"task_configs() gave values that are no texts, for {', '.join(map(repr, wrong))}",
            hint="write each value as the text that a person would write into the config",
        )
    return dict(config)


def _alter_offsets(told: Told, control: Control) -> bool:
    kind: Any = connector_class(_texts_of(told), told.modules)
    config = read_config(kind, _texts_of(told))
    offsets = [(one["partition"], one.get("offset")) for one in told.arguments["offsets"]]
    connector = kind()
    life, committed = Life(control, told.who), Committed(told.positions)
    connector.context = HostedConnector(told.connector, config, control, life, committed)
    return bool(connector.alter_offsets(config, offsets))


def _texts_of(told: Told) -> dict[str, str]:
    return {"name": told.connector, "connector.class": told.connector_class, **told.config}


_QUESTIONS: Mapping[str, Callable[[Told, Control], Any]] = {
    "plugins": _plugins,
    "plugin_names": _plugin_names,
    "describe": _describe,
    "validate": _validate,
    "task_configs": _task_configs,
    "alter_offsets": _alter_offsets,
}
