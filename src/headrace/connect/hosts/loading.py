"""Find and import the class of a connector: in hosts only."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.connect.plugins import Connector
from headrace.connect.plugins.catalog import Catalog
from headrace.errors import PluginError

__all__ = ["connector_class"]


def connector_class(texts: Mapping[str, str]) -> type[Connector]:
    """Import the class that ``connector.class`` names, by any of its names.

    Raises
    ------
    PluginError
        There is none, it cannot be imported, or it is something else.
    """
    name = texts.get("connector.class", "")
    found = Catalog.installed().load(name, "connectors")
    if not issubclass(found, Connector):
        raise PluginError(
            f"connector.class is {name!r}, which is no connector: {found!r}",
            hint="It must be a subclass of SourceConnector or SinkConnector.",
        )
    return found
