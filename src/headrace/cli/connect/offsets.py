"""``headrace connect offsets``: where a connector is in what it reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli._terminal import say, terminal
from headrace.cli.connect.changes import ConnectorName
from headrace.cli.connect.configs import read_json
from headrace.cli.connect.rest import WorkerApi, asking
from headrace.cli.connect.status import AsJson
from headrace.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["offsets"]


@asking
def offsets(
    worker: WorkerApi,
    name: ConnectorName,
    new: Annotated[
        str | None,
        typer.Option(
            "--set",
            metavar="FILE",
            help="Go on where this JSON file says, which looks as --json does; - is standard input.",
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
