"""What is in the bodies of requests, checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from headrace.connect.lifecycle import Target
from headrace.connect.worker.reporting import OffsetEntry
from headrace.errors import ConnectRequestError


class CreateBody(msgspec.Struct, frozen=True):
    """A connector that is to be made."""

    name: str
    config: dict[str, str]
    target: Target


def create_body(body: Mapping[str, Any]) -> CreateBody:
    """Read the body of ``POST /connectors``.

    Examples
    --------
    >>> create_body({"name": "a", "config": {"tasks.max": 2}, "initial_state": "paused"})
    CreateBody(name='a', config={'tasks.max': '2'}, target=<Target.PAUSED: 'PAUSED'>)
    """
    _only(body, {"name", "config", "initial_state"})
    name, config = body.get("name"), body.get("config")
    if not isinstance(name, str):
        raise ConnectRequestError(
            "the body has no name", hint='send {"name": ..., "config": {...}}'
        )
    if not isinstance(config, dict):
        raise ConnectRequestError(
            "the body has no config", hint='send {"name": ..., "config": {...}}'
        )
    # Kafka Connect takes spaces off, too.
    return CreateBody(name.strip(), config_of(config), _target(body.get("initial_state")))


def config_of(body: Mapping[str, Any]) -> dict[str, str]:
    """Read a config: texts stay, numbers and truths become texts.

    Examples
    --------
    >>> config_of({"tasks.max": 2, "x.flag": True})
    {'tasks.max': '2', 'x.flag': 'true'}
    """
    return {key: _text(key, value) for key, value in body.items()}


def patch_of(body: Mapping[str, Any]) -> dict[str, str | None]:
    """Read what is to change in a config; None takes a key out."""
    return {key: None if value is None else _text(key, value) for key, value in body.items()}


def offsets_of(body: Mapping[str, Any]) -> list[OffsetEntry]:
    """Read the body of ``PATCH /connectors/{connector}/offsets``.

    Examples
    --------
    >>> offsets_of({"offsets": [{"partition": {"file": "a"}, "offset": None}]})
    [OffsetEntry(partition={'file': 'a'}, offset=None)]
    """
    _only(body, {"offsets"})
    given = body.get("offsets")
    if not isinstance(given, list) or not given:
        raise ConnectRequestError(
            "Partitions / offsets need to be provided for an alter offsets request",
            hint='send {"offsets": [{"partition": {...}, "offset": {...}}]}',
        )
    try:
        return msgspec.convert(given, list[OffsetEntry])
    except msgspec.ValidationError as error:
        raise ConnectRequestError(f"the offsets are not right: {error}") from None


def level_of(body: Mapping[str, Any]) -> str:
    """Read the body of ``PUT /admin/loggers/{logger}``."""
    _only(body, {"level"})
    level = body.get("level")
    if not isinstance(level, str):
        raise ConnectRequestError(
            "Desired 'level' parameter was not specified in request.",
            hint='send {"level": "DEBUG"}',
        )
    return level


def _text(key: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if value is None:
        raise ConnectRequestError(f"the value of {key} is null", hint="leave the key out")
    kind = "an object" if isinstance(value, dict) else "an array"
    raise ConnectRequestError(f"the value of {key} is {kind}", hint="values are texts or numbers")


def _target(given: object) -> Target:
    if given is None:
        return Target.RUNNING
    if isinstance(given, str) and given.upper() in Target.__members__:
        return Target[given.upper()]
    raise ConnectRequestError(
        f"the initial_state is {given!r}", hint=f"use {', '.join(Target.__members__)}"
    )


def _only(body: Mapping[str, Any], known: Collection[str]) -> None:
    if unknown := sorted(set(body).difference(known)):
        raise ConnectRequestError(
            f"the body has the unknown field '{unknown[0]}'",
            hint=f"known are {', '.join(sorted(known))}",
        )
