"""``headrace job reset``, ``abort`` and ``give``: set a job back, end it, give it to another account."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headrace.cli._cluster import DataDir, NameServer, cluster, connecting, settings_from
from headrace.cli._terminal import say, short_driver, size, terminal
from headrace.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.table import Table

    from headrace.runtime.jobs.journal import Aborted
    from headrace.runtime.jobs.reset import Place, ResetPlan

__all__ = ["abort_job", "give_job", "reset_job"]

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
    namesrv: NameServer = None,
    data_dir: DataDir = None,
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
    with cluster(namesrv, data_dir) as client:
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
    namesrv: NameServer = None,
    data_dir: DataDir = None,
) -> None:
    """End a job from outside: fence off its driver, drop what is staged, finish what is committed."""
    from headrace.runtime.commit.journal.lease import LeaseTimes
    from headrace.runtime.jobs.journal import abort, standing_of_job

    with cluster(namesrv, data_dir) as client:
        standing = standing_of_job(client, job)
        if not as_json:
            state = "runs" if standing.holder else "does not run"
            say(f"Job {job} {state}, in epoch {standing.record.epoch}.")
        _ask(f"Abort job {job}?", yes=yes)
        expiry = settings_from(namesrv, data_dir).lease_expiry
        done = abort(client, job, times=LeaseTimes.of(expiry))
    if as_json:
        typer.echo(json.dumps(_abort_data(done)))
        return
    for line in _told(done):
        say(line)


@connecting
def give_job(
    job: JobName,
    account: Annotated[str, typer.Argument(help="The access key of its new owner.")],
    namesrv: NameServer = None,
    data_dir: DataDir = None,
) -> None:
    """Give a job to another account; what runs it now is fenced off. Only an admin can."""
    from headrace.client import Jobs
    from headrace.protocol.transactions import COMMIT_TOPIC_SUFFIX, OpenRequest
    from headrace.runtime.jobs.journal import standing_of_job

    with cluster(namesrv, data_dir) as client:
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
        out.print(_table(plan))
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


def _table(plan: ResetPlan) -> Table:
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
