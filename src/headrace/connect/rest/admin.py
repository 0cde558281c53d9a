"""Handlers about the worker itself: who it is, how it is, what it runs, what it logs."""

from __future__ import annotations

from headrace.connect.rest.bodies import level_of
from headrace.connect.rest.calls import Answer, RestCall

__all__ = [
    "config_log",
    "get_logger",
    "health",
    "life",
    "list_loggers",
    "readiness",
    "root",
    "set_logger",
    "tasks",
]

_HEALTH = {"healthy": 200, "starting": 503, "stopping": 503}


async def root(call: RestCall) -> Answer:
    """Who answers."""
    return Answer(value=call.connect.cluster())


async def health(call: RestCall) -> Answer:
    """Whether the worker can do its work."""
    found = call.connect.health()
    return Answer(status=_HEALTH.get(found.status, 500), value=found)


async def life(call: RestCall) -> Answer:
    """Whether the worker goes on: one that does not must be started again."""
    found = call.connect.life()
    return Answer(status=200 if found.status == "alive" else 500, value=found)


async def readiness(call: RestCall) -> Answer:
    """Whether the worker takes requests and runs what is its own; what is not there yet."""
    found = call.connect.readiness()
    return Answer(status=200 if found.status == "healthy" else 503, value=found)


async def tasks(call: RestCall) -> Answer:
    """Every copy of a connector or task on this worker, in full."""
    return Answer(value=call.connect.units())


async def config_log(call: RestCall) -> Answer:
    """The config log key by key, with what is deleted."""
    return Answer(value=call.connect.config_log(call.request.query_params.get("key")))


async def list_loggers(call: RestCall) -> Answer:
    """The loggers of the worker, and those of plugins whose level was set."""
    return Answer(value=call.connect.loggers.levels())


async def get_logger(call: RestCall) -> Answer:
    """The level of a logger."""
    return Answer(value=call.connect.loggers.level(call.path("logger")))


async def set_logger(call: RestCall) -> Answer:
    """Set the level of a logger and of all below it, here or on every worker."""
    scope = call.choices("scope", "worker", "cluster")
    name, level = call.path("logger"), level_of(await call.object())
    if "cluster" not in scope:
        return Answer(value=call.connect.loggers.set(name, level))
    await call.connect.set_level(name, level)
    return Answer(status=204)
