"""``headrace connect create``, ``restart``, ``pause``, ``resume``, ``stop`` and ``delete``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from headrace.cli._terminal import say
from headrace.cli.connect.configs import ConfigOption, Given, Pairs, read_config
from headrace.cli.connect.rest import WorkerApi, asking
from headrace.errors import ConfigurationError, ConnectConflictError, ConnectRequestError

__all__ = ["ConnectorName", "create", "delete", "pause", "restart", "resume", "stop"]

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
            help="How one that is made begins; by default as its file says, else RUNNING.",
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


def _wanted(name: str | None, config: list[str], pairs: list[str]) -> tuple[str, Given]:
    """Tell the name of a connector, its config and how it begins."""
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
    """Start a connector anew, with its tasks or a task alone."""
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
    """Say what restarts; without a plan it is the connector alone."""
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
    """Let a connector rest; its processes stay."""
    worker.ask("PUT", "connectors", name, "pause")
    say(f"Connector {name} pauses.")


@asking
def resume(worker: WorkerApi, name: ConnectorName) -> None:
    """Let a connector go on that is paused or stopped."""
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
    """Delete a connector; its tasks stop, and where it was is forgotten."""
    worker.ask("DELETE", "connectors", name, query={"force": force, "keepOffsets": keep_offsets})
    say(f"Connector {name} is deleted.")
