"""Options that several commands share, and the way to the cluster that they name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli._security import given_security

if TYPE_CHECKING:
    from headrace.client import AsyncClient, Client
    from headrace.settings import JobSettings

__all__ = ["DataDir", "NameServer", "asynchronous", "cluster", "cluster_address", "settings_from"]

NameServer = Annotated[
    str | None,
    typer.Option(
        "--namesrv",
        metavar="HOST:PORT",
        envvar="HEADRACE_NAMESRV",
        help="Name server of a cluster; without it, the embedded broker of the data folder.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="PATH",
        help="Folder of the embedded broker's data (default: .headrace).",
    ),
]


def settings_from(namesrv: str | None, data_dir: Path | None) -> JobSettings:
    """Join what the command line gives with the environment and the defaults."""
    from headrace.settings import JobSettings

    return JobSettings.from_env(namesrv=namesrv, data_dir=data_dir, **given_security())


@contextlib.contextmanager
def cluster_address(settings: JobSettings) -> Iterator[str]:
    """Give the name server: the one that is named, or the embedded broker's."""
    if settings.namesrv is not None:
        yield settings.namesrv
        return
    from headrace.embedded import embedded_broker

    with embedded_broker(settings.data_dir) as address:
        yield address


@contextlib.contextmanager
def cluster(namesrv: str | None, data_dir: Path | None) -> Iterator[Client]:
    """Connect to the cluster that the options name."""
    from headrace.client import Client, ClientSettings

    settings = settings_from(namesrv=namesrv, data_dir=data_dir)
    own = ClientSettings(**settings.connection)
    with cluster_address(settings) as address, Client(address, own) as client:
        yield client


def asynchronous(client: Client) -> AsyncClient:
    """Connect once more to a client's cluster, for a loop of one's own."""
    from headrace.client import AsyncClient

    return AsyncClient(";".join(client.asynchronous.name_servers), client.settings)
