"""Whether a config can be: what everybody can see, and what its plugin says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.errors import ConnectRequestError

if TYPE_CHECKING:
    from headrace.connect.worker.catalog import Catalog

__all__ = ["check_config", "named"]

_ALSO = (
    "You can also find the above list of errors at the endpoint"
    " `/connector-plugins/{connectorType}/config/validate`"
)


def named(name: str, config: Mapping[str, str]) -> dict[str, str]:
    """Give a config with its connector's name in it.

    Raises
    ------
    ConnectRequestError
        It has the name of another one.

    Examples
    --------
    >>> named("orders", {"tasks.max": "1"})
    {'tasks.max': '1', 'name': 'orders'}
    """
    given = config.get("name", name)
    if given != name:
        raise ConnectRequestError(
            f"Connector name configuration ({given}) doesn't match connector name in the URL ({name})"
        )
    return {**config, "name": name}


async def check_config(catalog: Catalog, config: Mapping[str, str]) -> None:
    """Have the plugin check a config, in a process of its own.

    Raises
    ------
    ConnectRequestError
        The plugin is broken, or refuses the config: the message has every problem.
    """
    plugin = await catalog.of(config)
    if plugin.error:
        raise ConnectRequestError(f"the plugin {plugin.class_name} is broken: {plugin.error}")
    answer = await catalog.validate(plugin, config)
    if answer.get("error_count"):
        raise ConnectRequestError(_problems(answer))


def _problems(answer: Mapping[str, Any]) -> str:
    count = answer["error_count"]
    lines = [f"Connector configuration is invalid and contains the following {count} error(s):"]
    for one in answer.get("configs", ()):
        value = one.get("value", {})
        for problem in value.get("errors", ()):
            key = value.get("name", "")
            lines.append(problem if key in problem else f"{key}: {problem}")
    return "\n".join([*lines, _ALSO])
