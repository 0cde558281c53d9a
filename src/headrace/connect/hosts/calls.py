"""Questions to plugins, each answered in a host that lives for it alone."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.connect.config import Secret
from headrace.connect.config.providers import references
from headrace.connect.hosts.causes import cause_of
from headrace.connect.hosts.contexts import Committed, HostedConnector
from headrace.connect.hosts.life import Life
from headrace.connect.hosts.loading import catalog, config_of, connector_class
from headrace.connect.plugins.catalog import GROUPS, Catalog
from headrace.connect.plugins.validation import describe, validate
from headrace.errors import ConfigurationError, PluginError

if TYPE_CHECKING:
    from headrace.connect.config import Config, Masking
    from headrace.connect.hosts.control import Control
    from headrace.connect.hosts.spec import Told

__all__ = ["answer_call"]

#: A shorter value says nothing, and would be found in many texts by chance.
_WORTH_HIDING = 4


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


def _task_configs(told: Told, life: Life) -> list[dict[str, str]]:
    connector, config = _made(told, life)
    connector.start(config)
    try:
        configs = connector.task_configs(told.arguments["max_tasks"])
        outside = references(told.config)
        return [_texts(one, config, outside) for one in configs]
    finally:
        life.stopping.set()
        connector.stop()


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
    "task_configs": _task_configs,
    "alter_offsets": _alter_offsets,
}
