"""``headrace job history``: what a job did, by the records of its commit topic."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli._cluster import DataDir, NameServer, cluster
from headrace.cli._figures import moment, short_driver
from headrace.cli._security import connecting
from headrace.cli._terminal import say, terminal

if TYPE_CHECKING:
    from rich.table import Table

    from headrace.runtime.jobs.history import HistoryEntry

__all__ = ["show_history"]


@connecting
def show_history(
    job: Annotated[str, typer.Argument(help="The job's name.")],
    last: Annotated[int, typer.Option(min=1, help="So many records, the newest.")] = 20,
    everything: Annotated[
        bool, typer.Option("--all", help="All records that the commit topic still has.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    namesrv: NameServer = None,
    data_dir: DataDir = None,
) -> None:
    """Show the starts, commits and ends of a job, oldest first."""
    from headrace.runtime.jobs.history import history

    with cluster(namesrv, data_dir) as client:
        entries = history(client, job, None if everything else last)
    if as_json:
        typer.echo(json.dumps([_as_data(entry) for entry in entries]))
        return
    terminal().print(_table(entries))
    if not everything and len(entries) == last:
        say(f"These are the newest {last}; --last N and --all show more.")


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
