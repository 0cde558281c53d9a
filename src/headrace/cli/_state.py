"""``headrace state``: looks into the state of jobs, keeps it in files, and brings it back."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli._cluster import cluster, connecting, settings_from
from headrace.cli._terminal import say

if TYPE_CHECKING:
    from headrace.runtime.state.views import CommittedState
    from headrace.topology import Operator


app = typer.Typer(
    help="Look into the state of a job, as of its last commit, also while it runs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

JobName = Annotated[str, typer.Argument(help="The job's name.")]
OperatorName = Annotated[str, typer.Argument(help="The operator's name, as describe shows it.")]
Program = Annotated[
    Path | None,
    typer.Option(
        "--program", metavar="FILE", help="The job's program: its serdes read the values."
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="The key is JSON, such as 17 or true, not text.")
]


@app.command()
@connecting
def get(
    job: JobName,
    operator: OperatorName,
    key: Annotated[str, typer.Argument(help="The key.")],
    json: AsJson = False,
    program: Program = None,
) -> None:
    """Show what a job keeps for a key; exit status 1 where it keeps nothing."""
    from headrace.runtime.jobs.reset import entry_line
    from headrace.runtime.state.layouts import StateEntry

    wanted = _key(key) if json else key
    with _view(job, operator, program) as view:
        found = view.get(wanted)
    if found is None:
        say(f"{operator} keeps nothing for {wanted!r}.")
        raise typer.Exit(1)
    typer.echo(entry_line(StateEntry(wanted, found)))


@app.command()
@connecting
def scan(
    job: JobName,
    operator: OperatorName,
    prefix: Annotated[str | None, typer.Option(help="Only text keys that begin with this.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many entries.")] = None,
    program: Program = None,
) -> None:
    """Show what a job keeps, a line of JSON per entry."""
    from itertools import islice

    from headrace.runtime.jobs.reset import entry_line
    from headrace.runtime.state.layouts import StateEntry

    with _view(job, operator, program) as view:
        found = (
            view.scan()
            if prefix is None
            else (StateEntry(key, value) for key, value in view.prefix(prefix))
        )
        # The rest of the scan must not outlive the view.
        with contextlib.closing(found) as entries:
            for entry in islice(entries, limit):
                typer.echo(entry_line(entry))


@app.command("export")
@connecting
def export_state(
    job: JobName,
    operator: OperatorName,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Default: the terminal.")
    ] = None,
) -> None:
    """Write the whole state of an operator as lines that import takes."""
    from headrace.runtime.jobs.reset import exported

    count = 0
    with (
        _view(job, operator, None) as view,
        contextlib.nullcontext(sys.stdout) if output is None else output.open("w") as file,
    ):
        for line in exported(view):
            file.write(line + "\n")
            count += 1
    if output is not None:
        say(f"{count:,} entries of {operator} are in {output}.")


@app.command("import")
@connecting
def import_file(
    job: JobName,
    operator: OperatorName,
    file: Annotated[Path, typer.Argument(help="What export wrote.", exists=True, dir_okay=False)],
) -> None:
    """Replace the state of an operator of a stopped job by what a file holds."""
    from headrace.runtime.jobs.reset import import_state
    from headrace.runtime.state.home import StateHome

    with cluster() as client, file.open() as lines:
        count = import_state(StateHome.of(job, client), operator, lines)
    say(f"{operator} of job {job} holds {count:,} entries.")


@contextlib.contextmanager
def _view(job: str, operator: str, program: Path | None) -> Iterator[CommittedState]:
    from headrace.runtime.job_plan import pickle_secret
    from headrace.runtime.state.home import StateHome
    from headrace.runtime.state.views import CommittedState
    from headrace.serdes.base import travelling_with

    known = None if program is None else _operator(program, operator)
    settings = settings_from()
    with (
        travelling_with(partial(pickle_secret, settings, job)),
        cluster() as client,
        CommittedState(StateHome.of(job, client), operator, known) as view,
    ):
        yield view


def _operator(program: Path, name: str) -> Operator | None:
    from headrace.cli.loading import load_program

    operator = load_program(program).operators.get(name)
    return operator if operator is not None and operator.stateful else None


def _key(text: str) -> object:
    import msgspec

    from headrace.errors import ConfigurationError

    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        message = f"the key {text!r} is no JSON: {error}"
        raise ConfigurationError(message, hint="Leave --json out for text.") from None
