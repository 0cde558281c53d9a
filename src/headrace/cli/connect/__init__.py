"""``headrace connect``: runs a worker, and looks after its connectors over REST."""

from __future__ import annotations

import typer

from headrace.cli import _security
from headrace.cli.connect import changes, offsets, plugins, status, worker

__all__ = ["app"]

app = typer.Typer(
    help="Move data in and out: run a worker, make connectors and look after them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("worker")(_security.connecting(worker.worker))
app.command("create")(changes.create)
app.command("list")(status.list_connectors)
app.command("status")(status.status)
app.command("restart")(changes.restart)
app.command("pause")(changes.pause)
app.command("resume")(changes.resume)
app.command("stop")(changes.stop)
app.command("delete")(changes.delete)
app.command("offsets")(offsets.offsets)
app.command("plugins")(plugins.plugins)
app.command("validate")(plugins.validate)
app.command("new")(plugins.new)
