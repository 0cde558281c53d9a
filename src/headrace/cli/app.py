"""The commands in one tree, and the one place where errors end.

Command modules import what they run inside their functions, so that ``headrace --help`` answers
at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from headrace.cli import (
    _broker,
    _doctor,
    _groups,
    _jobs,
    _messages,
    _pack,
    _run,
    _state,
    _store,
    _topics,
    connect,
    loading,
)
from headrace.cli._cluster import connecting
from headrace.cli._terminal import debug_wanted, flush_output, report, status_of


@dataclass(slots=True)
class _Switches:
    debug: bool = False


_switches = _Switches()

app = typer.Typer(
    name="headrace",
    help="Exactly-once stream processing over RocketMQ topics, run by Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run", cls=_run.RunCommand)(_run.run)
app.command("describe")(loading.describe)
app.command("produce")(connecting(_messages.produce))
app.command("consume")(connecting(_messages.consume))
app.command("doctor")(connecting(_doctor.doctor))
app.command("prepare")(_pack.prepare)
app.command("pack")(_pack.pack)
app.command("table")(connecting(_topics.table))
app.command("message")(connecting(_topics.message))
app.add_typer(_broker.app, name="broker")
app.add_typer(_topics.app, name="topic")
app.add_typer(_groups.app, name="group")
app.add_typer(_jobs.app, name="job")
app.add_typer(_state.app, name="state")
app.add_typer(_store.app, name="store")
app.add_typer(connect.app, name="connect")


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"headrace {version('headrace')}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of failures.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    _switches.debug = debug or debug_wanted()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; every failure ends as one message and an exit status that is not 0.

    Parameters
    ----------
    arguments
        The command line without the program's name; ``sys.argv`` by default.
    """
    _switches.debug = debug_wanted()
    try:
        given = sys.argv[1:] if arguments is None else list(arguments)
        # A command that runs itself in another process asks for its own arguments.
        try:
            app(args=given, prog_name="headrace", obj=given)
        finally:
            flush_output()
    except Exception as error:  # noqa: BLE001  the last line of defence: nobody is shown a traceback
        report(error, debug=_switches.debug)
        sys.exit(status_of(error))
