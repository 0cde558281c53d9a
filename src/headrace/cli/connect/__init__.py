"""``headrace connect``: runs a worker, and looks after its connectors over REST."""

from __future__ import annotations

import typer

from headrace.cli import _cluster
from headrace.cli.connect import status, worker

__all__ = ["app"]

app = typer.Typer(
    help="Move data in and out: run a worker, make connectors and look after them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("worker", cls=worker.WorkerCommand)(_cluster.connecting(worker.worker))
app.command("create")(status.create)
app.command("list")(status.list_connectors)
app.command("status")(status.status)
app.command("restart")(status.restart)
app.command("pause")(status.pause)
app.command("resume")(status.resume)
app.command("stop")(status.stop)
app.command("delete")(status.delete)
app.command("offsets")(status.offsets)
app.command("plugins")(status.plugins)
app.command("validate")(status.validate)
app.command("new")(status.new)
