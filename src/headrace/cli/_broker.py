"""``headrace broker``: runs the embedded broker in the foreground; ``promote`` and ``replicas``."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from headrace.cli._cluster import DeclaredOptions, given_settings, secured
from headrace.cli._terminal import say, show, terminal

if TYPE_CHECKING:
    from rich.table import Table

    from headrace.broker import BrokerSettings
    from headrace.protocol.frames import Command
    from headrace.protocol.replication import ReplicationInfo


class _BrokerCommands(DeclaredOptions, TyperGroup):
    """The command, and those beside it."""

    declared = "headrace.broker:BrokerSettings"


app = typer.Typer(
    cls=_BrokerCommands,
    help="Run the embedded broker, name server and broker on one port, until Ctrl-C.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
)


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


Address = Annotated[str, typer.Argument(metavar="HOST:PORT", help="The broker's address.")]
#: The last bytes of the old primary may take a while.
_PATIENCE = timedelta(minutes=2)


def promote(
    address: Address,
    force: Annotated[
        bool, typer.Option("--force", help="Even if it lacks data that it should have.")
    ] = False,
) -> None:
    """Make a follower the primary; its old primary takes no more writes, now or when it is back."""
    import msgspec

    from headrace.protocol.codes import RequestCode
    from headrace.protocol.replication import PromoteAnswer

    answer = _ask(address, RequestCode.PROMOTE, {"force": str(force).lower()})
    done = msgspec.json.decode(answer.payload, type=PromoteAnswer)
    say(f"{address} is the primary, epoch {done.epoch}, from position {done.position:,} on.")
    if not done.fenced:
        say("The old primary did not answer; it is told when it is back.")


def replicas(address: Address) -> None:
    """Show a broker's part in replication, and its followers."""
    import msgspec

    from headrace.protocol.codes import RequestCode
    from headrace.protocol.replication import ReplicationInfo

    answer = _ask(address, RequestCode.LIST_REPLICAS, {})
    info = msgspec.json.decode(answer.payload, type=ReplicationInfo)
    show(_sentence(address, info))
    if info.role == "primary":
        terminal().print(_table(info))


def _sentence(address: str, info: ReplicationInfo) -> str:
    text = f"{address}: {info.role}, epoch {info.epoch}, log {info.begin:,} to {info.end:,}"
    if info.role == "follower":
        lag = "unknown" if info.lag is None else f"{info.lag:,} bytes"
        return f"{text}\nfollows {info.primary}, lag {lag}: {info.state}"
    return f"{text}\n{info.primary} was promoted" if info.role == "fenced" else text


def _table(info: ReplicationInfo) -> Table:
    from rich.table import Table

    table = Table("id", "follower", "position", "on disk", "lag bytes", "last heard")
    for column in (table.columns[0], *table.columns[2:]):
        column.justify = "right"
    for row in info.replicas:
        heard = "gone" if row.heard is None else f"{row.heard:.1f} s ago"
        table.add_row(
            str(row.number),
            row.address,
            f"{row.position:,}",
            f"{row.durable:,}",
            f"{row.lag:,}",
            heard,
        )
    return table


def _ask(address: str, code: int, ext: dict[str, str]) -> Command:
    from headrace.cli._cluster import settings_from
    from headrace.client import AsyncClient, ClientSettings
    from headrace.client.settings import parse_addresses
    from headrace.protocol.frames import Command

    async def ask() -> Command:
        target = parse_addresses(address)[0]
        settings = ClientSettings(**settings_from(namesrv=target).connection)
        async with AsyncClient(target, settings) as client:
            return await client.invoke(target, Command(code, ext), timeout=_PATIENCE)

    return asyncio.run(ask())


app.command()(secured(promote))
app.command()(secured(replicas))
