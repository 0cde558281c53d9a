"""Questions to plugins, each answered in a host that lives for it alone."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.connect.config.providers import references
from headrace.connect.hosts.causes import cause_of
from headrace.connect.hosts.contexts import Committed, HostedConnector
from headrace.connect.hosts.life import Life
from headrace.connect.hosts.loading import catalog, config_of, connector_class
from headrace.connect.plugins.catalog import GROUPS, Catalog
from headrace.connect.plugins.validation import describe, validate
from headrace.errors import PluginError

if TYPE_CHECKING:
    from headrace.connect.config import Config, Masking
    from headrace.connect.hosts.control import Control
    from headrace.connect.hosts.spec import Told

__all__ = ["answer_call"]


def answer_call(told: Told, control: Control, masking: Masking) -> None:
    """Answer the question; plugin code that raises makes a cause of it."""
    life = Life(control, told.who, masking=masking)
    try:
        value = _QUESTIONS[told.what](told, life)
    except BaseException as error:  # noqa: BLE001 - plugin code may raise anything
        traceback.print_exc()
        control.tell("answer", failure=cause_of(error, told.who, told.what, masking))
        sys.exit(1)
    control.tell("answer", value=value)


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
    committed = Committed(told.positions)
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
