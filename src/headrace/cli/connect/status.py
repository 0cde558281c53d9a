"""``headrace connect list`` and ``status``: connectors and tasks, once or as they change."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli._terminal import say, terminal
from headrace.cli.connect.rest import WorkerApi, asking
from headrace.errors import ConnectionFailedError

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

__all__ = ["AsJson", "list_connectors", "status"]

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]

_LONGEST = 120
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
        float, typer.Option(min=0.1, metavar="SECONDS", help="Time between two looks of --watch.")
    ] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Show how connectors and their tasks are doing."""
    if watch:
        with contextlib.suppress(KeyboardInterrupt):
            _watch(lambda: _statuses(worker, name), interval, as_json=as_json)
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
    """Give the phases behind Kafka Connect's words, of what runs on the worker that is asked."""
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
        # Names come from users: they are no markup.
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
    r"""Give what failed and what to do about it, without the frames in between.

    >>> _short("task 0 failed: no such file\nTraceback ...\n  → make it")
    'task 0 failed: no such file\n→ make it'
    """
    first, *others = trace.strip().splitlines() or [""]
    hints = [line.strip() for line in others if line.lstrip().startswith("→")]
    return "\n".join(_cut(line) for line in (first, *hints[:1]))


def _waits(unit: Mapping[str, str]) -> str:
    """Say what a task waits for that has not failed."""
    what = unit.get("waits_for", "").partition("\n")[0]
    return _cut(f"waits for {what}") if what else ""


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _watch(look: Callable[[], list[Any]], interval: float, *, as_json: bool) -> None:
    """Show each change; on a terminal in the place of what was there before."""
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
    """Give what there is whenever it changes; a worker that restarts is waited for."""
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
