"""``headrace job``: where jobs stand, what they did, and how to set one back, move or end it."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headrace.cli._cluster import cluster, connecting, settings_from
from headrace.cli._terminal import ago, length, moment, number, say, short_driver, size, terminal
from headrace.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.table import Table

    from headrace.protocol.transactions import StagedBatch
    from headrace.runtime.jobs.journal import Aborted, HistoryEntry, JobLook, StoreSnapshot
    from headrace.runtime.jobs.reset import Place, ResetPlan
    from headrace.runtime.standing import OperatorStatistics


# ``headrace job reset``, ``abort`` and ``give``: set a job back, end it, give it to another account.

JobName = Annotated[str, typer.Argument(help="The job's name.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]


@connecting
def reset_job(
    job: JobName,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help='Where it goes on: "first", "last", a time (2026-11-21T08:00), an age ("30 min"),'
            ' or offsets as JSON ({"lines:0": 120}).',
        ),
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option(help="Only this topic; several are possible.")
    ] = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="Forget all state, and without --to all offsets.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Set a job that is stopped to other offsets, or to before its first batch."""
    from headrace.runtime.jobs.journal import standing_of_job
    from headrace.runtime.jobs.reset import plan_reset, reset
    from headrace.runtime.state.home import StateHome

    if to is None and not forget:
        raise ConfigurationError(
            "a reset needs --to, --forget, or both",
            hint="--to first reads everything again into the state that is there; --forget begins"
            " as if the job had never run",
        )
    place = None if to is None else _place(to)
    with cluster() as client:
        standing_of_job(client, job)
        home = StateHome.of(job, client)
        plan = plan_reset(home, place, topics=topic or (), forget=forget)
        if not as_json:
            _show(job, plan, forget=forget)
        if dry_run:
            record = None
        else:
            _ask(f"Reset job {job}?", yes=yes)
            record = reset(home, plan, forget=forget)
    if as_json:
        typer.echo(json.dumps(_plan_data(plan, None if record is None else record.batch)))
    elif record is None:
        say("Nothing was changed.")
    else:
        say(f"Job {job} is reset, as batch {record.batch:,}; its next start goes on there.")


@connecting
def abort_job(
    job: JobName,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """End a job from outside: fence off its driver, drop staged records, finish committed ones."""
    from headrace.runtime.commit.journal.lease import LeaseTimes
    from headrace.runtime.jobs.journal import abort, standing_of_job

    with cluster() as client:
        standing = standing_of_job(client, job)
        if not as_json:
            state = "runs" if standing.holder else "does not run"
            say(f"Job {job} {state}, in epoch {standing.record.epoch}.")
        _ask(f"Abort job {job}?", yes=yes)
        expiry = settings_from().lease_expiry
        done = abort(client, job, times=LeaseTimes(expiry.total_seconds()))
    if as_json:
        typer.echo(json.dumps(_abort_data(done)))
        return
    for line in _told(done):
        say(line)


@connecting
def give_job(
    job: JobName,
    account: Annotated[str, typer.Argument(help="The access key of its new owner.")],
) -> None:
    """Hand a job over to another account, and fence off its driver. Only an admin can do this."""
    from headrace.client import Jobs
    from headrace.protocol.transactions import COMMIT_TOPIC_SUFFIX, OpenRequest
    from headrace.runtime.jobs.journal import standing_of_job

    with cluster() as client:
        standing_of_job(client, job)
        topic = f"{job}{COMMIT_TOPIC_SUFFIX}"
        request = OpenRequest(job=job, commit_topic=topic, driver="job give", owner=account)
        answer = Jobs(client, topic).open(request)
    say(f"Job {job} belongs to the account {account}, from epoch {answer.epoch} on.")


def _place(text: str) -> Place:
    from headrace.cli._groups import parse_place

    if not text.lstrip().startswith("{"):
        found: datetime | Literal["first", "last"] = parse_place(text)
        return found
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"--to {text!r} is no JSON: {error}") from None
    if not all(type(at) is int for at in given.values()):
        raise ConfigurationError(
            f"--to {text!r} has offsets that are no numbers",
            hint='write offsets by queue: {"lines:0": 120, "lines:1": 98}',
        )
    return dict(given)


def _ask(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError(
            f"{question} Nobody is there to answer: this is no terminal",
            hint="add --yes once you are sure; nothing was changed",
        )
    if not typer.confirm(question, err=True):
        say("Nothing was changed.")
        raise typer.Exit(1)


def _show(job: str, plan: ResetPlan, *, forget: bool) -> None:
    out = terminal()
    say(f"Job {job} stands at batch {plan.batch:,}.")
    if plan.offsets:
        out.print(_changes_table(plan))
    if plan.forgotten:
        which = "other offsets" if plan.offsets else "offsets"
        say(f"Its {which} are forgotten: its sources begin where they say, as at a first start.")
    if forget:
        entries = sum(plan.dropped.values())
        say(f"All its state is dropped: {entries:,} entries; event time and counters begin anew.")
    elif plan.rewinds:
        say(
            "Its state stays: what is read again counts again. Event time begins anew."
            " --forget drops the state, too."
        )


def _changes_table(plan: ResetPlan) -> Table:
    from rich.table import Table

    table = Table("queue")
    for column in ("stands at", "goes on at", "moves by"):
        table.add_column(column, justify="right")
    for queue, (old, new) in sorted(plan.offsets.items()):
        moved = "" if old is None else f"{new - old:+,}"
        table.add_row(queue, "–" if old is None else f"{old:,}", f"{new:,}", moved)
    return table


def _plan_data(plan: ResetPlan, batch: int | None) -> dict[str, Any]:
    return {
        "stands_at_batch": plan.batch,
        "batch": batch,
        "offsets": {queue: {"from": old, "to": new} for queue, (old, new) in plan.offsets.items()},
        "forgotten": plan.forgotten,
        "dropped_entries": plan.dropped,
    }


def _abort_data(done: Aborted) -> dict[str, Any]:
    return {
        "was_running": done.was_running,
        "fenced_epoch": done.epoch,
        "fenced_driver": done.driver,
        "epoch": done.record.epoch,
        "batch": done.record.batch,
        "published": done.published,
        "dropped": [
            {"epoch": each.epoch, "batch": each.batch, "records": each.records}
            for each in done.dropped
        ],
    }


def _told(done: Aborted) -> list[str]:
    who = short_driver(done.driver) or "unknown"
    lines = [
        f"Epoch {done.record.epoch} is open: the driver of epoch {done.epoch} ({who}) is fenced"
        " off, and ends at its next request."
        if done.was_running
        else f"No driver ran; epoch {done.record.epoch} is open, so none of an older one returns."
    ]
    lines += [
        f"Dropped: {each.records:,} records in {each.parts} parts ({size(each.size)}), staged for"
        f" batch {each.batch:,} and never committed."
        for each in done.dropped
    ]
    if not done.dropped:
        lines.append("Nothing was staged.")
    if not done.record.batch:
        lines.append("Nothing is committed.")
    elif done.published:
        lines.append(f"Batch {done.record.batch:,} was committed; the rest of it is published now.")
    else:
        lines.append(f"Batch {done.record.batch:,} is committed and published.")
    return lines


# ``headrace job status`` and ``job list``: where jobs stand, operator by operator.

_COLUMNS = (
    *("in", "out", "late", "dropped", "watermark"),
    *("lag", "behind", "keys", "state", "restored"),
)


@connecting
def list_jobs(as_json: AsJson = False) -> None:
    """List all jobs of the cluster, with what each has done and whether it runs."""
    from headrace.runtime.jobs.journal import look_at, standings

    with cluster() as client:
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
) -> None:
    """Show where a job stands as of its last commit, also while it runs elsewhere."""
    from headrace.runtime.jobs.journal import look_at, standing_of_job

    with cluster() as client:
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
    # A column that is empty everywhere would only take room from the names.
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


# ``headrace job history``: what a job did, by the records of its commit topic.

#: Records that are shown by default, and rows of one table.
_USUAL, _PAGE = 20, 1000


@connecting
def show_history(
    job: Annotated[str, typer.Argument(help="The job's name.")],
    last: Annotated[
        int | None,
        typer.Option("--last", "--limit", min=1, help="Number of newest records (default: 20)."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help='Since a time (2026-11-21T08:00), or an age ("30 min").'),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All records that the commit topic still has.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Show the starts, commits and ends of a job, oldest first."""
    from headrace.runtime.jobs.journal import history

    if everything and (last is not None or since is not None):
        message = "--all and --last or --since exclude each other."
        raise ConfigurationError(message, hint="Leave --all out, or the others.")
    if last is None and since is None and not everything:
        last = _USUAL
    begin = None if since is None else _time(since)
    with cluster() as client:
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
    """Write one list, as it is read; return its length."""
    count = 0
    for count, entry in enumerate(entries, 1):
        typer.echo(("[" if count == 1 else ",\n ") + json.dumps(_history_as_data(entry)), nl=False)
    typer.echo("]" if count else "[]")
    return count


def _show_tables(entries: Iterator[HistoryEntry]) -> int:
    """Write a table, or several of a page each, as they are read; return the number of rows."""
    count = 0
    while page := list(itertools.islice(entries, _PAGE)):
        terminal().print(_table(page))
        count += len(page)
    return count


def _history_as_data(entry: HistoryEntry) -> dict[str, Any]:
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


app = typer.Typer(
    help="Show where jobs stand and what they did; reset, rescale or abort one.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

app.command("list")(list_jobs)
app.command()(status)
app.command("history")(show_history)
app.command("reset")(reset_job)
app.command("abort")(abort_job)
app.command("give")(give_job)


@app.command()
@connecting
def rescale(
    job: JobName,
    partitions: Annotated[int, typer.Option(min=1, help="The new number of partitions.")],
) -> None:
    """Move the state of a job that is stopped to another number of partitions."""
    from rich.progress import Progress

    from headrace.runtime.jobs.journal import standing_of_job
    from headrace.runtime.jobs.reset import rescale as move
    from headrace.runtime.state.home import StateHome

    with (
        cluster() as client,
        Progress(console=terminal(error=True), transient=True) as progress,
    ):
        standing_of_job(client, job)
        task = progress.add_task(f"moving the state of {job}", total=None)
        record = move(
            StateHome.of(job, client),
            partitions,
            lambda done, total: progress.update(task, completed=done, total=total),
        )
    entries = sum(state.count for state in record.states)
    say(f"Job {job} has {partitions} partitions, with {entries:,} entries of state.")
    say(f"Start it with --partitions {partitions}.")
