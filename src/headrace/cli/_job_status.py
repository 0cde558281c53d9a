"""``headrace job status`` and ``job list``: where jobs stand, operator by operator."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli._cluster import DataDir, NameServer, cluster
from headrace.cli._figures import ago, length, moment, number, short_driver, size
from headrace.cli._security import connecting
from headrace.cli._terminal import say, terminal

if TYPE_CHECKING:
    from rich.table import Table

    from headrace.protocol.transactions import StagedBatch
    from headrace.runtime.jobs.looks import JobLook, StoreSnapshot
    from headrace.runtime.standing import OperatorStatistics

__all__ = ["list_jobs", "status"]

_COLUMNS = (
    *("in", "out", "late", "dropped", "watermark"),
    *("lag", "behind", "keys", "state", "restored"),
)

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]


@connecting
def list_jobs(
    as_json: AsJson = False, namesrv: NameServer = None, data_dir: DataDir = None
) -> None:
    """List all jobs of the cluster, with what each has done and whether it runs."""
    from headrace.runtime.jobs.looks import look_at
    from headrace.runtime.jobs.standings import standings

    with cluster(namesrv, data_dir) as client:
        looks = [look_at(client, standing) for standing in standings(client)]
    if as_json:
        typer.echo(json.dumps([_overview(look) for look in looks]))
    elif looks:
        terminal().print(_list_table(looks))
    else:
        say("No job was ever started on this cluster.")


@connecting
def status(
    job: Annotated[str, typer.Argument(help="The job's name.")],
    as_json: AsJson = False,
    namesrv: NameServer = None,
    data_dir: DataDir = None,
) -> None:
    """Show where a job stands as of its last commit, also while it runs elsewhere."""
    from headrace.runtime.jobs.looks import look_at
    from headrace.runtime.jobs.standings import standing_of_job

    with cluster(namesrv, data_dir) as client:
        look = look_at(client, standing_of_job(client, job), closely=True)
    if as_json:
        typer.echo(json.dumps(_document(look)))
        return
    out = terminal()
    for line in _headline(look):
        out.print(line)
    if look.operators:
        out.print(_operators(look.operators))
    if look.stores:
        out.print(_stores(look.stores))


def _overview(look: JobLook) -> dict[str, Any]:
    record = look.record
    return {
        "job": record.job,
        "running": look.running,
        "driver": look.driver,
        "epoch": record.epoch,
        "batch": record.batch,
        "partitions": record.partitions,
        "committed": _committed(look),
        "lag": look.lag,
        "behind_seconds": None if look.behind is None else round(look.behind.total_seconds(), 3),
        "state_entries": sum(store.entries for store in look.stores.values()),
        "state_bytes": sum(store.size for store in look.stores.values()),
    }


def _committed(look: JobLook) -> str | None:
    if not look.record.batch:
        return None
    return datetime.fromtimestamp(look.record.timestamp / 1000, UTC).isoformat()


def _document(look: JobLook) -> dict[str, Any]:
    return _overview(look) | {
        "published": look.published,
        "staged": [_staged_data(staged) for staged in look.staged],
        "operators": {name: _as_data(told) for name, told in look.operators.items()},
        "stores": {
            name: {
                "partitions": store.partitions,
                "entries": store.entries,
                "bytes": store.size,
                "largest_partition": store.largest,
                "changed_in_batch": store.batch,
            }
            for name, store in look.stores.items()
        },
    }


def _staged_data(staged: StagedBatch) -> dict[str, int]:
    return {
        "epoch": staged.epoch,
        "batch": staged.batch,
        "parts": staged.parts,
        "records": staged.records,
        "bytes": staged.size,
    }


def _as_data(told: OperatorStatistics) -> dict[str, object]:
    return {
        "records_in": told.records_in,
        "records_out": told.records_out,
        "late": told.late,
        "dropped": told.dropped,
        "watermark": None if told.watermark is None else told.watermark.isoformat(),
        "lag": told.lag,
        "behind_seconds": None if told.behind is None else round(told.behind.total_seconds(), 3),
        "state_keys": told.state_keys,
        "state_bytes": told.state_bytes,
        "restored": told.restored,
        "restore_seconds": round(told.restore_time.total_seconds(), 3),
    }


def _list_table(looks: list[JobLook]) -> Table:
    from rich.table import Table

    now = datetime.now(UTC)
    table = Table("job", "driver")
    for column in ("epoch", "batch", "committed", "lag", "behind", "entries", "state"):
        table.add_column(column, justify="right")
    for look in looks:
        record = look.record
        at = datetime.fromtimestamp(record.timestamp / 1000, UTC)
        table.add_row(
            record.job,
            "runs" if look.running else "stopped",
            str(record.epoch),
            number(record.batch) or "none",
            ago(at, now) if record.batch else "never",
            "–" if look.lag is None else f"{look.lag:,}",
            length(look.behind),
            number(sum(store.entries for store in look.stores.values())),
            size(sum(store.size for store in look.stores.values())),
        )
    return table


def _headline(look: JobLook) -> list[str]:
    record = look.record
    runs = "runs" if look.running else "is stopped"
    who = f" by {short_driver(look.driver)}" if look.driver else ""
    lines = [f"Job {record.job} {runs}; epoch {record.epoch} was opened{who}."]
    if record.batch:
        lines.append(
            f"Batch {record.batch:,} was committed at {moment(record.timestamp)},"
            f" in {record.partitions} partitions."
        )
    else:
        lines.append("Nothing is committed yet.")
    if look.published is False:
        lines.append("It is not wholly published: its driver, or the next start, does the rest.")
    lines += [
        f"Staged for batch {staged.batch:,} in epoch {staged.epoch}, waiting for its commit:"
        f" {staged.records:,} records in {staged.parts} parts, {size(staged.size)}."
        for staged in look.staged
    ]
    return lines


def _operators(operators: dict[str, OperatorStatistics]) -> Table:
    from rich.table import Table

    rows = {name: _cells(told) for name, told in operators.items()}
    table = Table()
    table.add_column("operator", no_wrap=True)
    # What is empty everywhere would only take room from the names.
    shown = [column for column in _COLUMNS if any(cells[column] for cells in rows.values())]
    for column in shown:
        table.add_column(column, justify="right")
    for name, cells in rows.items():
        table.add_row(name, *(cells[column] for column in shown))
    return table


def _cells(told: OperatorStatistics) -> dict[str, str]:
    cells = (
        f"{told.records_in:,}",
        f"{told.records_out:,}",
        number(told.late),
        number(told.dropped),
        "" if told.watermark is None else f"{told.watermark:%Y-%m-%d %H:%M:%S}",
        "–" if told.lag is None else f"{told.lag:,}",
        length(told.behind),
        number(told.state_keys),
        size(told.state_bytes),
        length(told.restore_time),
    )
    return dict(zip(_COLUMNS, cells, strict=True))


def _stores(stores: dict[str, StoreSnapshot]) -> Table:
    from rich.table import Table

    table = Table("state of")
    for column in ("partitions", "entries", "in the largest", "size", "changed in batch"):
        table.add_column(column, justify="right")
    for name, store in stores.items():
        table.add_row(
            name,
            str(store.partitions),
            f"{store.entries:,}",
            f"{store.largest:,}",
            size(store.size) or "0 B",
            f"{store.batch:,}",
        )
    return table
