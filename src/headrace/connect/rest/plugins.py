"""Handlers of ``/connector-plugins``."""

from __future__ import annotations

from headrace.connect.rest.bodies import config_of
from headrace.connect.rest.calls import Answer, RestCall

__all__ = ["describe", "list_all", "validate"]


async def list_all(call: RestCall) -> Answer:
    """Connectors that can be made; with ``connectorsOnly=false`` all other plugins too."""
    given = call.request.query_params.get("connectorsOnly")
    connectors_only = given is None or call.flag("connectorsOnly")
    return Answer(value=await call.connect.plugins(connectors_only=connectors_only))


async def describe(call: RestCall) -> Answer:
    """The config keys of a plugin."""
    return Answer(value=await call.connect.describe(call.path("plugin")))


async def validate(call: RestCall) -> Answer:
    """Check a config without making a connector."""
    config = config_of(await call.object())
    return Answer(value=await call.connect.validate(call.path("plugin"), config))
