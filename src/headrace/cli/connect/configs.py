"""Configs and offsets as people give them: files of JSON, and ``key=value``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from headrace.errors import ConfigurationError

ConfigOption = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE|KEY=VALUE",
        help="A JSON file with the config (- is standard input), or one key of it; repeatable.",
    ),
]
Pairs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Keys of the config; they win over files."),
]


class GivenConfig(NamedTuple):
    """The config of a connector, as files and pairs give it."""

    config: dict[str, Any]
    #: ``RUNNING``, ``PAUSED`` or ``STOPPED``, where a file has that beside the config.
    initial_state: str | None = None


def read_config(given: Iterable[str], name: str | None = None) -> GivenConfig:
    """Put a config together; what comes later wins.

    A file that has the connector's name beside the config gives it to the config.

    Parameters
    ----------
    given
        Files and pairs.
    name
        Name of the connector; a file that names another one is refused.

    Raises
    ------
    ConfigurationError
        If a file cannot be read, or a text is neither a file nor a pair.

    Examples
    --------
    >>> read_config(["topic=lines", "file=a=b.txt"])
    GivenConfig(config={'topic': 'lines', 'file': 'a=b.txt'}, initial_state=None)
    """
    config: dict[str, Any] = {}
    state = None
    for text in given:
        part = _part(text, name)
        config |= part.config
        state = part.initial_state or state
    if not config:
        raise ConfigurationError(
            "no config is given",
            hint="give --config FILE.json, or keys such as connector.class=file-source",
        )
    return GivenConfig(config, state)


def _part(text: str, name: str | None) -> GivenConfig:
    key, equals, value = text.partition("=")
    if text == "-" or not equals or Path(text).is_file():
        return _unwrapped(read_json(text), text, name)
    return GivenConfig({key.strip(): value})


def _unwrapped(value: Any, file: str, name: str | None) -> GivenConfig:
    """Take the config out of a file that has the connector's name beside it."""
    if not isinstance(value, dict):
        raise ConfigurationError(
            f"{_called(file)} holds no config: it is of type {type(value).__name__}",
            hint='write a JSON object, {"connector.class": "..."}',
        )
    if not isinstance(value.get("config"), dict):
        return GivenConfig(value)
    other = value.get("name", name)
    if name is not None and other != name:
        raise ConfigurationError(
            f"{_called(file)} is the config of connector {other!r}, not of {name!r}",
            hint=f"give the name {other}, or take the name out of the file",
        )
    config: dict[str, Any] = value["config"]
    named = {"name": other, **config} if "name" in value else config
    return GivenConfig(named, value.get("initial_state"))


def read_json(file: str) -> Any:
    """Read a file of JSON; ``-`` is standard input.

    Raises
    ------
    ConfigurationError
        If it is missing, or is not JSON.
    """
    try:
        return json.loads(sys.stdin.read() if file == "-" else Path(file).read_text("utf-8"))
    except OSError as error:
        hint = "keys of a config are written KEY=VALUE" if "." not in Path(file).suffix else None
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}", hint=hint) from error
    except ValueError as error:
        raise ConfigurationError(f"{_called(file)} is no JSON: {error}") from error


def _called(file: str) -> str:
    return "standard input" if file == "-" else file
