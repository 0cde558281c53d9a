"""``headrace connect list`` and ``status``: connectors and tasks, once or as they change."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headrace.cli._terminal import say, terminal
from headrace.cli.connect.configs import ConfigOption, GivenConfig, Pairs, read_config, read_json
from headrace.cli.connect.rest import WorkerApi, asking
from headrace.durations import read_duration
from headrace.errors import (
    ConfigurationError,
    ConnectConflictError,
    ConnectionFailedError,
    ConnectRequestError,
)

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


# ``headrace connect create``, ``restart``, ``pause``, ``resume``, ``stop`` and ``delete``.

ConnectorName = Annotated[str, typer.Argument(help="The connector's name.")]
_BEGINS = {
    "RUNNING": "its tasks start",
    "PAUSED": "its tasks start, and rest until it is resumed",
    "STOPPED": "nothing starts until it is resumed",
}
KeepOffsets = Annotated[
    bool,
    typer.Option(
        "--keep-offsets", help="Let a connector that gets its name later go on where it was."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Kill its processes, without asking first.")]


@asking
def create(
    worker: WorkerApi,
    name: Annotated[
        str | None, typer.Argument(help="The connector's name; by default that in the config.")
    ] = None,
    pairs: Pairs = None,
    config: ConfigOption = None,
    update: Annotated[
        bool, typer.Option("--update", help="Replace the config, if there is such a connector.")
    ] = False,
    initial_state: Annotated[
        Literal["RUNNING", "PAUSED", "STOPPED"] | None,
        typer.Option(
            case_sensitive=False,
            help="How a new connector begins; by default as its file says, or RUNNING.",
        ),
    ] = None,
) -> None:
    """Make a connector, or replace its config."""
    name, wanted = _wanted(name, config or [], pairs or [])
    there = update and name in worker.get("connectors")
    state = initial_state or wanted.initial_state
    body = {"name": name, "config": wanted.config}
    try:
        if there:
            info = worker.ask("PUT", "connectors", name, "config", body=wanted.config)
        else:
            beside = {} if state is None else {"initial_state": state}
            info = worker.ask("POST", "connectors", body=body | beside)
    except ConnectConflictError as error:
        error.hint = error.hint or "--update replaces its config"
        raise
    except ConnectRequestError as error:
        error.hint = error.hint or _describing(wanted.config)
        raise
    if there:
        say(f"Connector {name} ({info['type']}) has a new config.")
    else:
        does = _BEGINS[(state or "RUNNING").upper()]
        say(f"Connector {name} ({info['type']}) is made: {does}.")


def _wanted(name: str | None, config: list[str], pairs: list[str]) -> tuple[str, GivenConfig]:
    """Return the name of a connector, its config and how it begins."""
    if name is not None and "=" in name:
        # Without a name, the first key comes in its place.
        pairs = [name, *pairs]
        name = None
    wanted = read_config([*config, *pairs], name)
    name = name or wanted.config.get("name")
    if not isinstance(name, str) or not name:
        raise ConfigurationError(
            "the connector has no name",
            hint='give one before the keys of its config, or "name" in its file',
        )
    return name, wanted


def _describing(config: dict[str, Any]) -> str | None:
    plugin = config.get("connector.class")
    return plugin and f"`headrace connect plugins {plugin}` describes the keys"


@asking
def restart(
    worker: WorkerApi,
    name: ConnectorName,
    task: Annotated[int | None, typer.Option(min=0, help="This task only.")] = None,
    include_tasks: Annotated[
        bool, typer.Option("--include-tasks", help="The connector and all of its tasks.")
    ] = False,
    only_failed: Annotated[
        bool, typer.Option("--only-failed", help="Only what has failed.")
    ] = False,
    force: Force = False,
) -> None:
    """Restart a connector, alone or with its tasks, or one task."""
    if task is not None:
        if include_tasks or only_failed:
            raise ConfigurationError(
                "--task restarts one task, whatever its state",
                hint="leave out --include-tasks and --only-failed",
            )
        place = ("connectors", name, "tasks", str(task), "restart")
        worker.ask("POST", *place, query={"force": force})
        say(f"Task {task} of connector {name} restarts.")
        return
    query: dict[str, bool | list[str]] = {
        "includeTasks": include_tasks,
        "onlyFailed": only_failed,
        "force": force,
    }
    plan = worker.ask("POST", "connectors", name, "restart", query=query)
    say(_restarting(name, plan))


def _restarting(name: str, plan: Any) -> str:
    """Return a sentence about what restarts; without a plan it is the connector alone."""
    if plan is None:
        return f"Connector {name} restarts."
    tasks = [str(task["id"]) for task in plan["tasks"] if task["state"] == "RESTARTING"]
    which = "task" if len(tasks) == 1 else "tasks"
    parts = [f"connector {name}"] if plan["connector"]["state"] == "RESTARTING" else []
    parts += [f"{which} {', '.join(tasks)}"] if tasks else []
    if not parts:
        return f"Nothing of connector {name} has failed: nothing restarts."
    return f"These restart: {', '.join(parts)}."


@asking
def pause(worker: WorkerApi, name: ConnectorName) -> None:
    """Pause a connector; its processes stay."""
    worker.ask("PUT", "connectors", name, "pause")
    say(f"Connector {name} pauses.")


@asking
def resume(worker: WorkerApi, name: ConnectorName) -> None:
    """Resume a paused or stopped connector."""
    worker.ask("PUT", "connectors", name, "resume")
    say(f"Connector {name} goes on.")


@asking
def stop(worker: WorkerApi, name: ConnectorName, force: Force = False) -> None:
    """End a connector's processes; its config and offsets stay."""
    worker.ask("PUT", "connectors", name, "stop", query={"force": force})
    say(f"Connector {name} stops.")


@asking
def delete(
    worker: WorkerApi, name: ConnectorName, force: Force = False, keep_offsets: KeepOffsets = False
) -> None:
    """Delete a connector; its tasks stop, and its offsets are forgotten."""
    worker.ask("DELETE", "connectors", name, query={"force": force, "keepOffsets": keep_offsets})
    say(f"Connector {name} is deleted.")


AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]

_LONGEST = 120
#: A worker is asked no more often.
_SHORTEST = timedelta(milliseconds=100)
_COLOURS = {"RUNNING": "green", "FAILED": "bold red", "PAUSED": "yellow", "UNASSIGNED": "dim"}


@asking
def list_connectors(worker: WorkerApi, as_json: AsJson = False) -> None:
    """List all connectors, with what each is and whether its tasks run."""
    found = worker.get("connectors", expand=["info", "status"])
    if as_json:
        typer.echo(json.dumps([_overview(found[name]) for name in sorted(found)]))
    elif found:
        terminal().print(_list_table([_overview(found[name]) for name in sorted(found)]))
    else:
        say("There is no connector yet; `headrace connect create` makes one.")


@asking
def status(
    worker: WorkerApi,
    name: Annotated[
        str | None, typer.Argument(help="The connector's name; without it, all.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Go on as it changes, until Ctrl-C.")
    ] = False,
    interval: Annotated[
        str, typer.Option(metavar="DURATION", help="Time between two looks, at least 100 ms.")
    ] = "1 s",
    as_json: AsJson = False,
) -> None:
    """Show how connectors and their tasks are doing."""
    if watch:
        pause = max(read_duration("--interval", interval), _SHORTEST).total_seconds()
        with contextlib.suppress(KeyboardInterrupt):
            _watch(lambda: _statuses(worker, name), pause, as_json=as_json)
        return
    found = _statuses(worker, name)
    if as_json:
        typer.echo(json.dumps(found if name is None else found[0]))
    elif found:
        terminal().print(_status_table(found))
    else:
        say("There is no connector yet; `headrace connect create` makes one.")


def _statuses(worker: WorkerApi, name: str | None) -> list[Any]:
    if name is not None:
        found = [worker.get("connectors", name, "status")]
    else:
        every = worker.get("connectors", expand=["status"])
        found = [every[one]["status"] for one in sorted(every)]
    phases = _phases(worker)
    for one in found:
        for task, unit in [(None, one["connector"]), *((t["id"], t) for t in one["tasks"])]:
            if phase := phases.get((one["name"], task)):
                unit["phase"] = phase
    return found


def _phases(worker: WorkerApi) -> dict[tuple[str, int | None], str]:
    """Return the phases behind Kafka Connect's words for what runs on the asked worker."""
    units = sorted(worker.get("admin", "tasks"), key=lambda unit: int(unit["generation"]))
    return {(unit["connector"], unit["task"]): unit["phase"] for unit in units}


def _overview(found: Any) -> dict[str, Any]:
    info, told = found["info"], found["status"]
    states = Counter(task["state"] for task in told["tasks"])
    return {
        "name": info["name"],
        "type": info["type"],
        "class": info["config"].get("connector.class", ""),
        "state": told["connector"]["state"],
        "tasks": dict(states),
        "worker_id": told["connector"]["worker_id"],
    }


def _list_table(rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table("connector", "type", "class", "state", "tasks", "worker")
    for row in rows:
        counts = [
            Text(f"{n} {state}", _COLOURS.get(state, "")) for state, n in row["tasks"].items()
        ]
        tasks = Text(", ").join(counts)
        simple = row["class"].replace(":", ".").rpartition(".")[2]
        # Names come from users: they are not markup.
        cells = [Text(row["name"]), Text(row["type"]), Text(simple), _state(row["state"])]
        table.add_row(*cells, tasks, Text(row["worker_id"]))
    return table


def _status_table(found: list[Any]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table()
    table.add_column("connector", no_wrap=True)
    for column in ("type", "task", "state", "phase", "worker", "error"):
        table.add_column(column)
    for one in found:
        units = [("", one["connector"]), *((str(task["id"]), task) for task in one["tasks"])]
        for task, unit in units:
            table.add_row(
                Text(one["name"] if not task else ""),
                Text(one["type"] if not task else ""),
                task,
                _state(unit["state"]),
                unit.get("phase", "").lower(),
                Text(unit["worker_id"]),
                Text(_short(unit.get("trace", "")) or _waits(unit)),
            )
        table.add_section()
    return table


def _state(state: str) -> Text:
    from rich.text import Text

    return Text(state, _COLOURS.get(state, ""))


def _short(trace: str) -> str:
    r"""Return what failed and what to do about it, without the frames in between.

    >>> _short("task 0 failed: no such file\nTraceback ...\n  → make it")
    'task 0 failed: no such file\n→ make it'
    """
    first, *others = trace.strip().splitlines() or [""]
    hints = [line.strip() for line in others if line.lstrip().startswith("→")]
    return "\n".join(_cut(line) for line in (first, *hints[:1]))


def _waits(unit: Mapping[str, str]) -> str:
    """Return what a task that has not failed waits for."""
    what = unit.get("waits_for", "").partition("\n")[0]
    return _cut(f"waits for {what}") if what else ""


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _watch(look: Callable[[], list[Any]], interval: float, *, as_json: bool) -> None:
    """Show each change; on a terminal, in place of what was there before."""
    out = terminal()
    if as_json:
        for found, _ in _changes(look, interval):
            typer.echo(json.dumps(found))
    elif not out.is_terminal:
        for found, trouble in _changes(look, interval):
            out.print(_shown(found, trouble))
    else:
        from rich.live import Live

        with Live(console=out, auto_refresh=False) as live:
            for found, trouble in _changes(look, interval):
                live.update(_shown(found, trouble), refresh=True)


def _shown(found: list[Any], trouble: str) -> Table:
    table = _status_table(found)
    if trouble:
        table.caption = trouble
        table.caption_justify = "left"
    return table


def _changes(look: Callable[[], list[Any]], interval: float) -> Iterator[tuple[list[Any], str]]:
    """Yield what there is whenever it changes, and wait for a worker that restarts."""
    last = found, trouble = look(), ""
    yield last
    while True:
        time.sleep(interval)
        try:
            found, trouble = look(), ""
        except ConnectionFailedError as error:
            trouble = error.message
        if (found, trouble) != last:
            last = found, trouble
            yield last


# ``headrace connect offsets``: where a connector is in what it reads.


@asking
def offsets(
    worker: WorkerApi,
    name: ConnectorName,
    new: Annotated[
        str | None,
        typer.Option(
            "--set",
            metavar="FILE",
            help="Go on where this JSON file says, in the form of --json; - is standard input.",
        ),
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Begin anew.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show where a connector is in what it reads, or set that while it is stopped."""
    if new is not None and reset:
        raise ConfigurationError(
            "--set and --reset exclude each other", hint="give the one that is meant"
        )
    if new is not None:
        answer = worker.ask("PATCH", "connectors", name, "offsets", body=_body(read_json(new)))
        say(_sentence(answer))
    elif reset:
        say(_sentence(worker.ask("DELETE", "connectors", name, "offsets")))
    else:
        _show(name, worker.get("connectors", name, "offsets"), as_json=as_json)


def _body(value: Any) -> Any:
    return {"offsets": value} if isinstance(value, list) else value


def _sentence(answer: Any) -> str:
    message: str = answer["message"]
    return f"{message[:1].upper()}{message[1:]}."


def _show(name: str, found: Any, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found))
    elif found["offsets"]:
        terminal().print(_table(found["offsets"]))
    else:
        say(f"Connector {name} has committed nothing yet.")


def _table(entries: list[Any]) -> Table:
    from rich.table import Table

    table = Table("partition", "offset")
    for entry in entries:
        table.add_row(_pairs(entry["partition"]), _pairs(entry["offset"] or {}))
    return table


def _pairs(fields: dict[str, Any]) -> Any:
    from rich.text import Text

    return Text(", ".join(f"{name} {value}" for name, value in fields.items()))


# ``headrace connect plugins``, ``validate`` and ``new``: what connectors are made of.

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
    # Users need not write these two keys; if they do, the values must still be right.
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
    name: Annotated[str, typer.Argument(help="Name of the connector: lower case with hyphens.")],
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
    """Return short names of the plugins that come with Headrace, by their classes."""
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
