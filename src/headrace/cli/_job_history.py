"""``headrace job history``: what a job did, by the records of its commit topic."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli._cluster import DataDir, NameServer, cluster
from headrace.cli._figures import moment, short_driver
from headrace.cli._security import connecting
from headrace.cli._terminal import say, terminal
from headrace.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.table import Table

    from headrace.runtime.jobs.history import HistoryEntry

__all__ = ["show_history"]

#: Records that are shown where nobody says how many, and rows of one table.
_USUAL, _PAGE = 20, 1000


@connecting
def show_history(
    job: Annotated[str, typer.Argument(help="The job's name.")],
    last: Annotated[
        int | None,
        typer.Option("--last", "--limit", min=1, help="So many records, the newest (default: 20)."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help='Since a time (2026-11-21T08:00), or an age ("30 min").'),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All records that the commit topic still has.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    namesrv: NameServer = None,
    data_dir: DataDir = None,
) -> None:
    """Show the starts, commits and ends of a job, oldest first."""
    from headrace.runtime.jobs.history import history

    if everything and (last is not None or since is not None):
        message = "--all and --last or --since exclude each other."
        raise ConfigurationError(message, hint="Leave --all out, or the others.")
    if last is None and since is None and not everything:
        last = _USUAL
    begin = None if since is None else _time(since)
    with cluster(namesrv, data_dir) as client:
        shown = (_show_data if as_json else _show_tables)(
            history(client, job, last=last, since=begin)
        )
    if shown == last and not as_json:
        say(f"These are the newest {last}; --last N, --since TIME and --all show more.")
    elif not shown and not as_json:
        say(f"Nothing since {since}.")


def _time(text: str) -> datetime:
    from headrace.cli._groups import parse_place

    try:
        place = parse_place(text)
    except ConfigurationError:
        place = "first"
    if isinstance(place, str):
        message = f"--since is {text!r}, which is no time."
        raise ConfigurationError(message, hint='Write 2026-11-21T08:00, or an age such as "1 h".')
    return place


def _show_data(entries: Iterator[HistoryEntry]) -> int:
    """Write one list, as it is read; give its length."""
    count = 0
    for count, entry in enumerate(entries, 1):
        typer.echo(("[" if count == 1 else ",\n ") + json.dumps(_as_data(entry)), nl=False)
    typer.echo("]" if count else "[]")
    return count


def _show_tables(entries: Iterator[HistoryEntry]) -> int:
    """Write a table, or several of a page each, as they are read; give the number of rows."""
    count = 0
    while page := list(itertools.islice(entries, _PAGE)):
        terminal().print(_table(page))
        count += len(page)
    return count


def _as_data(entry: HistoryEntry) -> dict[str, Any]:
    return {
        "offset": entry.offset,
        "time": entry.at.isoformat(),
        "kind": entry.kind,
        "verdict": entry.verdict.value,
        "epoch": entry.epoch,
        "batch": entry.batch,
        "batches": entry.batches,
        "records_in": entry.records_in,
        "records_out": entry.records_out,
        "driver": entry.driver,
    }


def _table(entries: list[HistoryEntry]) -> Table:
    from rich.table import Table

    table = Table("time", "what")
    for column in ("epoch", "batch", "in", "out"):
        table.add_column(column, justify="right")
    table.add_column("driver")
    table.add_column("counts")
    opened: tuple[int, str] | None = None
    for entry in entries:
        # A driver is named once, where it opens its epoch.
        named = opened != (entry.epoch, entry.driver)
        opened = (entry.epoch, entry.driver)
        table.add_row(
            moment(entry.at.timestamp() * 1000),
            entry.kind,
            str(entry.epoch),
            _batches(entry),
            "" if entry.records_in is None else f"{entry.records_in:,}",
            "" if entry.records_out is None else f"{entry.records_out:,}",
            short_driver(entry.driver) if named else "",
            {"valid": "", "repeated": "no: repeated", "void": "no: void"}[entry.verdict.value],
            style="" if entry.verdict.value == "valid" else "dim",
        )
    return table


def _batches(entry: HistoryEntry) -> str:
    if entry.kind != "commit":
        return ""
    if entry.batches > 1:
        return f"{entry.batch - entry.batches + 1:,} to {entry.batch:,}"
    return f"{entry.batch:,}"
