"""``headrace connect plugins``, ``validate`` and ``new``: what connectors are made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli._terminal import say, terminal
from headrace.cli.connect.configs import ConfigOption, Pairs, read_config
from headrace.cli.connect.rest import WorkerApi, asking
from headrace.cli.connect.status import AsJson
from headrace.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["new", "plugins", "validate"]

PluginName = Annotated[
    str, typer.Argument(metavar="CLASS", help="The plugin's class, or a short name of it.")
]


@asking
def plugins(
    worker: WorkerApi,
    name: Annotated[
        str | None, typer.Argument(help="Show the config keys of this plugin; without it, list.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also transforms, converters and predicates.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the plugins of a worker, or the config keys of one."""
    if name is not None:
        found = worker.get("connector-plugins", name, "config")
    else:
        query: dict[str, bool | list[str]] = {"connectorsOnly": ["false"] if everything else False}
        found = worker.get("connector-plugins", **query)
    if as_json:
        typer.echo(json.dumps(found))
    else:
        terminal().print(_plugin_table(found) if name is None else _key_table(found))


@asking
def validate(
    worker: WorkerApi,
    plugin: PluginName,
    pairs: Pairs = None,
    config: ConfigOption = None,
    as_json: AsJson = False,
) -> None:
    """Check a config without making anything; a wrong one ends with status 1."""
    # Both are known here, and need no writing; what is written must still be right.
    known = {"name": "a-connector", "connector.class": plugin}
    given = known | read_config([*(config or ()), *(pairs or ())]).config
    found = worker.ask("PUT", "connector-plugins", plugin, "config", "validate", body=given)
    if as_json:
        typer.echo(json.dumps(found))
    elif found["error_count"]:
        terminal().print(_problem_table(found["configs"]))
        say(f"{plugin} does not take this config: {_problems(found['error_count'])}.")
    else:
        say(f"{plugin} takes this config.")
    if found["error_count"]:
        raise typer.Exit(1)


def new(
    name: Annotated[str, typer.Argument(help="Name of the connector: small letters with hyphens.")],
    folder: Annotated[
        Path | None, typer.Argument(help="Where the project's folder goes (default: here).")
    ] = None,
    source: Annotated[bool, typer.Option("--source", help="It reads.")] = False,
    sink: Annotated[bool, typer.Option("--sink", help="It writes.")] = False,
) -> None:
    """Write the project of a new connector: code, config, tests, packaging."""
    from headrace.connect.plugins.template import write_project

    if source == sink:
        raise ConfigurationError(
            "a connector is a source or a sink", hint="give one of --source and --sink"
        )
    written = write_project(name, "source" if source else "sink", folder or Path())
    for file in written:
        typer.echo(file)
    project = written[0].parent
    say(f"Next: cd {project} && pip install -e '.[dev]' && pytest")


def _plugin_table(found: list[Any]) -> Table:
    from rich.table import Table
    from rich.text import Text

    short = _short_names()
    broken = any(one.get("error") for one in found)
    table = Table("name", "type", "version", "class", *(["cannot be used"] if broken else []))
    for one in sorted(found, key=lambda each: (each["type"], each["class"])):
        cells = [short.get(one["class"], ""), one["type"], one["version"], one["class"]]
        table.add_row(*map(Text, cells), *([Text(one.get("error", ""))] if broken else []))
    return table


def _short_names() -> dict[str, str]:
    """Short names of the plugins that come with Headrace, by their classes."""
    from headrace.connect.plugins.builtin import BUILTIN

    return {
        one.target.replace(":", "."): one.aliases[0]
        for one in BUILTIN
        if one.aliases and "." not in one.aliases[0]
    }


def _key_table(found: list[Any]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table("key", "type", "default", "means", show_lines=False)
    for key in found:
        required = key.get("required")
        default = Text("required", "bold") if required else Text(_plain(key.get("default_value")))
        kind = str(key.get("type", "")).lower()
        table.add_row(Text(key["name"]), kind, default, Text(key.get("documentation") or ""))
    return table


def _plain(value: object) -> str:
    return "" if value is None else str(value)


def _problem_table(configs: list[Any]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table("key", "value", "problem")
    for one in configs:
        value = one["value"]
        for number, problem in enumerate(value["errors"]):
            first = [value["name"], _plain(value["value"])] if not number else ["", ""]
            table.add_row(*map(Text, first), Text(problem))
    return table


def _problems(count: int) -> str:
    return "one problem" if count == 1 else f"{count} problems"
