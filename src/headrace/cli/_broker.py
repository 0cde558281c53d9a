"""``headrace broker``: runs the embedded broker in the foreground."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.cli import _replicas
from headrace.cli._cluster import secured

if TYPE_CHECKING:
    from headrace.broker import BrokerSettings


app = typer.Typer(
    help="Run the embedded broker, name server and broker on one port, until Ctrl-C.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
)
app.command()(secured(_replicas.promote))
app.command()(secured(_replicas.replicas))


class Flush(StrEnum):
    """Says when the answer to a message means that it is on disk."""

    sync = "sync"
    async_ = "async"


class FollowFrom(StrEnum):
    """Says where a follower that has nothing begins."""

    oldest = "oldest"
    newest = "newest"


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
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    flush: Annotated[
        Flush, typer.Option(help="sync: an answer means on disk; async: on disk soon after.")
    ] = Flush.sync,
    retention: Annotated[
        str,
        typer.Option(metavar="DURATION", help="How long messages are kept, or: forever."),
    ] = "72 h",
    retention_size: Annotated[
        str | None,
        typer.Option(metavar="BYTES", help="The oldest are deleted beyond this size, e.g. 100GiB."),
    ] = None,
    disk_watermark: Annotated[
        float,
        typer.Option(
            metavar="SHARE", help="The oldest are deleted while the disk is fuller than this."
        ),
    ] = 0.9,
    compaction: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="A compaction setting, e.g. dirty_ratio=0.3; repeatable."
        ),
    ] = None,
    broker_name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the broker, unique in its cluster.")
    ] = "broker-a",
    register_with: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="Another name server to register with; repeatable."),
    ] = None,
    acl: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="HEADRACE_ACL",
            help="Accounts and what each may do, such as RocketMQ's plain_acl.yml.",
        ),
    ] = None,
    allow_anyone: Annotated[
        bool,
        typer.Option(
            "--allow-anyone",
            help="Listen on addresses other than loopback without accounts: anyone who reaches them"
            " may do everything.",
        ),
    ] = False,
    tls: Annotated[
        bool,
        typer.Option("--tls", help="Take TLS, too; without a certificate, a self-made one."),
    ] = False,
    tls_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate and its chain, PEM.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Key of the certificate, PEM.")
    ] = None,
    tls_only: Annotated[bool, typer.Option("--tls-only", help="Refuse plain connections.")] = False,
    follow: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Broker to follow: copy its log, serve reads only."),
    ] = None,
    follow_from: Annotated[
        FollowFrom, typer.Option(help="File of its log that an empty follower begins with.")
    ] = FollowFrom.oldest,
    min_replicas: Annotated[
        int, typer.Option(min=0, help="Followers that must have a message before it is answered.")
    ] = 0,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A bound on what clients may take; repeatable."),
    ] = None,
) -> None:
    """Run the embedded broker, name server and broker on one port, until Ctrl-C."""
    if context.invoked_subcommand is not None:
        return
    from headrace.broker import BrokerSettings, Limits, PeerSecurity
    from headrace.broker.network.listener import raise_limit
    from headrace.broker.topics import parse_compaction, parse_retention, parse_size

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level="WARNING")
    mode: Literal["sync", "async"] = "sync" if flush is Flush.sync else "async"
    settings = BrokerSettings(
        host=host,
        flush=mode,
        retention=parse_retention(retention),
        retention_size=None if retention_size is None else parse_size(retention_size),
        disk_watermark=disk_watermark,
        compaction=parse_compaction(compaction or ()),
        broker_name=broker_name,
        name_servers=tuple(register_with or ()),
        acl=acl,
        allow_anyone=allow_anyone,
        tls=tls or tls_only,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        tls_mode="enforcing" if tls_only else "permissive",
        follow=follow,
        follow_from=follow_from.value,
        min_replicas=min_replicas,
        limits=Limits.parse(limit or ()),
        peers=PeerSecurity.from_environment(),
    )
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
