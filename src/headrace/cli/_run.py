"""``headrace run``: runs the pipeline of a file on Spark."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand

from headrace.cli._cluster import DeclaredOptions, given_settings
from headrace.cli._terminal import say
from headrace.cli.supervision import (
    Channel,
    Supervisor,
    hand_over,
    stand_by,
    taken_over,
    telling_of,
    without_secrets,
)
from headrace.durations import read_duration
from headrace.errors import (
    ConfigurationError,
    RequestTimeoutError,
)
from headrace.settings import JobSettings

if TYPE_CHECKING:
    from headrace.cli.loading import Program
    from headrace.spark import StreamJob, TransactionJob


class RunCommand(DeclaredOptions, TyperCommand):
    """The command, with the settings of a job."""

    declared = "headrace.settings:JobSettings"


def run(
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(help="The Python file that builds the topology, or FILE:NAME.")
    ],
    until_caught_up: Annotated[
        bool,
        typer.Option("--until-caught-up", help="Stop when everything that was there is done."),
    ] = False,
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Give up --until-caught-up this long after the command began."
        ),
    ] = None,
    supervise: Annotated[
        bool,
        typer.Option(
            "--supervise/--no-supervise",
            help="Run the driver in a process of its own, and replace it when it dies.",
        ),
    ] = True,
    standby: Annotated[
        bool,
        typer.Option("--standby", help="Keep a second driver warm, which takes over in seconds."),
    ] = False,
    create_topics: Annotated[
        bool,
        typer.Option("--create-topics", help="Make the topics that are missing, then start."),
    ] = False,
    queues: Annotated[
        int,
        typer.Option(
            min=0, help="Queues of topics that are made; 0: as many as the job has partitions."
        ),
    ] = 0,
    channel: Annotated[int | None, typer.Option(hidden=True)] = None,
    again: Annotated[bool, typer.Option("--again", hidden=True)] = False,
    began: Annotated[float | None, typer.Option(hidden=True)] = None,
    at_least_once: Annotated[
        bool, typer.Option("--at-least-once", help="Short for --guarantee at_least_once.")
    ] = False,
) -> None:
    """Run the pipeline of a file until Ctrl-C, or until it has caught up."""
    from headrace.cli.loading import load_program

    given = given_settings(context)
    if channel is not None:
        given |= taken_over()
    if at_least_once:
        given["guarantee"] = "at_least_once"
    settings = JobSettings.from_env(**given)
    began = time.time() if began is None else began
    limit = None if timeout is None else read_duration("--timeout", timeout)
    if standby and (until_caught_up or not supervise):
        other = "--until-caught-up" if until_caught_up else "--no-supervise"
        message = f"--standby and {other} exclude each other."
        raise ConfigurationError(message, hint="A standby is for jobs that run on and on.")
    if supervise and channel is None:
        arguments = without_secrets(context.find_root().obj or sys.argv[1:])
        command = [sys.executable, "-m", "headrace", *arguments, "--began", str(began)]
        limit_of_silence = settings.driver_timeout.total_seconds()
        raise typer.Exit(
            Supervisor(
                command,
                settings.data_dir,
                hand_over(given),
                standby=standby,
                driver_timeout=limit_of_silence,
            ).run()
        )
    if standby:
        from headrace.spark.cluster import holding_no_cores

        settings = holding_no_cores(settings)
    supervisor = None if channel is None else Channel(channel)
    program = load_program(file)
    if until_caught_up:
        _check_has_end(program)
    new_topics = queues if create_topics else None
    with _stopped_by_signals(), _job(program, settings, supervisor, new_topics) as job:
        if supervisor is not None and standby:
            again |= stand_by(job, supervisor)
        if again:
            _go_on(job)
        _follow(
            job,
            program.topology.name,
            supervisor,
            until_caught_up=until_caught_up,
            limit=_Limit(began, limit),
        )


def _go_on(job: StreamJob | TransactionJob) -> None:
    """Let a start that follows a crash go on, even where the first one was to begin anew."""
    from headrace.spark import TransactionJob

    if isinstance(job, TransactionJob):
        job.resets = False


def _check_has_end(program: Program) -> None:
    from headrace.topology import Spout

    for operator in program.operators.values():
        if isinstance(operator, Spout):
            message = f"--until-caught-up: nobody knows the end of spout '{operator.name}'."
            raise ConfigurationError(
                message, hint="Leave the option out; topics that are spouts have an end."
            )


@contextlib.contextmanager
def _job(
    program: Program, settings: JobSettings, supervisor: Channel | None, new_topics: int | None
) -> Iterator[StreamJob | TransactionJob]:
    from headrace.cli._cluster import cluster_address
    from headrace.spark import StreamJob, TransactionJob
    from headrace.topology import Topology

    if supervisor is not None and settings.namesrv is None:
        supervisor.await_broker()
    with cluster_address(settings) as address:
        if settings.namesrv is None:
            say(f"Embedded broker at {address}, data in {settings.data_dir}")
        topology = program.topology
        with (
            StreamJob(topology, settings)
            if isinstance(topology, Topology)
            else TransactionJob(topology, settings) as job
        ):
            if new_topics is not None:
                for topic in job.create_topics(new_topics or None):
                    say(f"Topic {topic} was missing and is made.")
            say(f"Starting {topology.name} on Spark ...")
            if supervisor is not None:
                supervisor.watch(job.stalled)
            yield job


@dataclasses.dataclass(frozen=True)
class _Limit:
    """The time that a job may take to catch up, from the beginning of the command on."""

    #: When the command began, s since 1970: its first driver, where others came after it.
    began: float
    whole: timedelta | None

    def rest(self) -> timedelta | None:
        """Return the time that is left; None if there is no limit."""
        if self.whole is None:
            return None
        return max(timedelta(0), self.whole - timedelta(seconds=time.time() - self.began))

    @contextlib.contextmanager
    def told(self, name: str) -> Iterator[None]:
        """Report the whole limit where the rest of it was not enough."""
        try:
            yield
        except RequestTimeoutError as error:
            if self.rest():
                # It is the job's failure: a broker that did not answer.
                raise
            raise RequestTimeoutError(
                f"job '{name}' has not caught up {self.whole} after its start", hint=error.hint
            ) from error


def _follow(
    job: StreamJob | TransactionJob,
    name: str,
    supervisor: Channel | None,
    *,
    until_caught_up: bool,
    limit: _Limit,
) -> None:
    from headrace.cli.progress import ending_of, shown

    try:
        with (
            shown(job.statistics, name, to_the_end=until_caught_up),
            telling_of(job, supervisor) as begun,
        ):
            job.start()
            begun()
            if until_caught_up:
                with limit.told(name):
                    job.await_caught_up(timeout=limit.rest())
                    job.await_batches(timeout=limit.rest())
            else:
                job.await_termination()
    except KeyboardInterrupt:
        job.stop()
        say(ending_of(job.statistics()))
        return
    done = job.statistics()
    say(f"Caught up: {done.records_in:,} records in, {done.records_out:,} results out.")


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does, so that a supervisor stops a job cleanly."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        # While it connects, starts Spark or stands by; a job that has begun says more.
        say("Stopped before it began.")
    finally:
        signal.signal(signal.SIGTERM, before)
