"""Options that several commands share, and the way to the cluster that they name."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headrace.client import AsyncClient, Client
    from headrace.settings import JobSettings


# The options of access control and TLS, which every command that connects has.

_PANEL = "Access control and TLS"

AccessKey = Annotated[
    str | None,
    typer.Option(
        "--access-key",
        envvar="HEADRACE_ACCESS_KEY",
        help="Name of the account that signs requests; its secret: HEADRACE_SECRET_KEY.",
        rich_help_panel=_PANEL,
    ),
]
SecretKey = Annotated[
    str | None,
    typer.Option(
        "--secret-key",
        help="Secret of the account; others on this machine see options, but not variables.",
        rich_help_panel=_PANEL,
    ),
]
Tls = Annotated[
    bool | None,
    typer.Option("--tls/--no-tls", help="Connect by TLS.", rich_help_panel=_PANEL),
]
TlsVerify = Annotated[
    bool | None,
    typer.Option(
        "--tls-verify/--no-tls-verify",
        help="Whether certificates must be trusted (they must).",
        rich_help_panel=_PANEL,
    ),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca", metavar="FILE", help="Certificates to trust, PEM.", rich_help_panel=_PANEL
    ),
]

_OPTIONS: dict[str, Any] = {
    "access_key": AccessKey,
    "secret_key": SecretKey,
    "tls": Tls,
    "tls_verify": TlsVerify,
    "tls_ca": TlsCa,
}
_NOTHING: dict[str, Any] = {}
_given: ContextVar[dict[str, Any]] = ContextVar("given_security", default=_NOTHING)


def given_security() -> dict[str, Any]:
    """Return what the command line says about access control and TLS, by names of settings."""
    return _given.get()


def connecting(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command; its connections take them from :func:`given_security`."""
    signature = inspect.signature(command, eval_str=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    more = [
        inspect.Parameter(name, keyword, default=None, annotation=annotation)
        for name, annotation in _OPTIONS.items()
    ]

    @functools.wraps(command)
    def with_options(*args: Any, **given: Any) -> None:
        token = _given.set({name: given.pop(name, None) for name in _OPTIONS})
        try:
            command(*args, **given)
        finally:
            _given.reset(token)

    parameters = [*signature.parameters.values(), *more]
    with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_options


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
    """Join the options of the command line with the environment and the defaults."""
    from headrace.settings import JobSettings

    return JobSettings.from_env(namesrv=namesrv, data_dir=data_dir, **given_security())


@contextlib.contextmanager
def cluster_address(settings: JobSettings) -> Iterator[str]:
    """Yield the address of the name server: the named one, or the embedded broker's."""
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
    """Connect once more to a client's cluster, for an event loop of the caller's own."""
    from headrace.client import AsyncClient

    return AsyncClient(";".join(client.asynchronous.name_servers), client.settings)
