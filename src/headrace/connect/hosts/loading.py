"""Find and import the class of a connector: in hosts only."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from headrace.connect.plugins import Connector
from headrace.connect.plugins.builtin import BUILTIN
from headrace.errors import ConfigurationError

__all__ = ["connector_class", "load"]


def connector_class(config: Mapping[str, str]) -> type[Connector]:
    """Import the class that ``connector.class`` names.

    Raises
    ------
    ConfigurationError
        There is none, or it is something else.
    """
    name = config.get("connector.class", "")
    found = load(name)
    if not (isinstance(found, type) and issubclass(found, Connector)):
        raise ConfigurationError(
            f"connector.class is {name!r}, which is no connector: {found!r}",
            hint="it must be a subclass of SourceConnector or SinkConnector",
        )
    return found


def load(name: str) -> Any:
    """Import what a name stands for: an alias, ``module:Class`` or ``module.Class``."""
    target = next((one.target for one in BUILTIN if name in {one.target, *one.aliases}), name)
    module, _, attribute = target.partition(":")
    if not attribute:
        module, _, attribute = target.rpartition(".")
    if not module:
        raise ConfigurationError(
            f"there is no plugin {name!r}",
            hint="name one of the list of plugins, or a class as module:Class",
        )
    return getattr(importlib.import_module(module), attribute)
