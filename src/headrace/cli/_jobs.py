"""``headrace job``: where jobs stand, what they did, and how to set one back, move or end it."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli._cluster import DataDir, NameServer, cluster
from headrace.cli._job_changes import abort_job, give_job, reset_job
from headrace.cli._job_history import show_history
from headrace.cli._job_status import list_jobs, status
from headrace.cli._security import connecting
from headrace.cli._terminal import say, terminal

__all__ = ["app"]

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

JobName = Annotated[str, typer.Argument(help="The job's name.")]


@app.command()
@connecting
def rescale(
    job: JobName,
    partitions: Annotated[int, typer.Option(min=1, help="The new number of partitions.")],
    namesrv: NameServer = None,
    data_dir: DataDir = None,
) -> None:
    """Move the state of a job that is stopped to another number of partitions."""
    from rich.progress import Progress

    from headrace.runtime.jobs.standings import standing_of_job
    from headrace.runtime.state.home import StateHome
    from headrace.runtime.state.rescaling import rescale as move

    with (
        cluster(namesrv, data_dir) as client,
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
