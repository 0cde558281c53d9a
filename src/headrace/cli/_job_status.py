"""``headrace job status``: where a job stands, operator by operator."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli._cluster import DataDir, NameServer, cluster
from headrace.cli._security import connecting
from headrace.cli._terminal import say, terminal

if TYPE_CHECKING:
    from rich.table import Table

    from headrace.protocol.transactions import CommitRecord
    from headrace.runtime.standing import OperatorStatistics

__all__ = ["status"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@connecting
def status(
    job: Annotated[str, typer.Argument(help="The job's name.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    namesrv: NameServer = None,
    data_dir: DataDir = None,
) -> None:
    """Show where a job stands as of its last commit, also while it runs elsewhere."""
    from headrace.runtime.standing import standing_of
    from headrace.runtime.state.home import StateHome

    with cluster(namesrv, data_dir) as client:
        record, operators = standing_of(StateHome.of(job, client))
    if as_json:
        typer.echo(json.dumps(_document(record, operators)))
        return
    moment = datetime.fromtimestamp(record.timestamp / 1000).astimezone()
    say(
        f"Job {job}: epoch {record.epoch}, batch {record.batch} of {moment:%Y-%m-%d %H:%M:%S},"
        f" {record.partitions} partitions."
    )
    terminal().print(_table(operators))


def _document(record: CommitRecord, operators: dict[str, OperatorStatistics]) -> dict[str, Any]:
    return {
        "job": record.job,
        "epoch": record.epoch,
        "batch": record.batch,
        "partitions": record.partitions,
        "committed": datetime.fromtimestamp(record.timestamp / 1000, UTC).isoformat(),
        "operators": {name: _as_data(told) for name, told in operators.items()},
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


def _table(operators: dict[str, OperatorStatistics]) -> Table:
    from rich.table import Table

    table = Table("operator")
    for column in ("in", "out", "late", "dropped", "watermark", "lag", "behind", "keys", "state"):
        table.add_column(column, justify="right")
    table.add_column("restored", justify="right")
    for name, told in operators.items():
        table.add_row(
            name,
            f"{told.records_in:,}",
            f"{told.records_out:,}",
            _number(told.late),
            _number(told.dropped),
            "" if told.watermark is None else f"{told.watermark:%Y-%m-%d %H:%M:%S}",
            "–" if told.lag is None else f"{told.lag:,}",
            _length(told.behind),
            _number(told.state_keys),
            _size(told.state_bytes),
            _length(told.restore_time),
        )
    return table


def _number(number: int) -> str:
    return f"{number:,}" if number else ""


def _length(length: timedelta | None) -> str:
    if not length:
        return ""
    if length < timedelta(minutes=1):
        return f"{length.total_seconds():.1f} s"
    return str(timedelta(seconds=round(length.total_seconds())))


def _size(size: float) -> str:
    """Write a number of bytes for people.

    >>> _size(0), _size(20), _size(3 << 20)
    ('', '20 B', '3.0 MiB')
    """
    if not size:
        return ""
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
