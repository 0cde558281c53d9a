"""``headrace broker``: runs the embedded broker in the foreground."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from headrace.cli import _replicas
from headrace.cli._cluster import DeclaredOptions, given_settings, secured

if TYPE_CHECKING:
    from headrace.broker import BrokerSettings


class _BrokerCommands(DeclaredOptions, TyperGroup):
    """The command, and those beside it."""

    declared = "headrace.broker:BrokerSettings"


app = typer.Typer(
    cls=_BrokerCommands,
    help="Run the embedded broker, name server and broker on one port, until Ctrl-C.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
)
app.command()(secured(_replicas.promote))
app.command()(secured(_replicas.replicas))


@app.callback()
def broker(
    context: typer.Context,
    data_dir: Annotated[
        Path,
        typer.Option(
            "--data-dir",
            "--data",
            metavar="PATH",
            envvar="HEADRACE_DATA_DIR",
            help="Data folder, as of headrace run; the broker's files are in its folder broker.",
        ),
    ] = Path(".headrace"),
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0: a free one.")] = 9876,
    tls_only: Annotated[
        bool, typer.Option("--tls-only", help="Short for --tls --tls-mode enforcing.")
    ] = False,
) -> None:
    """Run the embedded broker, name server and broker on one port, until Ctrl-C."""
    if context.invoked_subcommand is not None:
        return
    from headrace.broker import BrokerSettings, PeerSecurity
    from headrace.broker.network.listener import raise_limit

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level="WARNING")
    only = {"tls": True, "tls_mode": "enforcing"} if tls_only else {}
    given = given_settings(context) | only
    settings = BrokerSettings.from_env(**given, peers=PeerSecurity.from_env())
    raise_limit()
    asyncio.run(_serve(data_dir, port, settings))


async def _serve(data_dir: Path, port: int, settings: BrokerSettings) -> None:
    from headrace.broker import BrokerServer
    from headrace.embedded import address_published, broker_folder

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with BrokerServer(broker_folder(data_dir), port, settings) as server:
        with address_published(data_dir, server.address, os.getpid()):
            sys.stdout.write(f"headrace broker listening on {server.address}, data in {data_dir}\n")
            sys.stdout.flush()
            await server.serve_until(stop)
