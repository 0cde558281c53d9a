"""Options that several commands share, and the way to the cluster that they name."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headrace.client import AsyncClient, Client
    from headrace.settings import JobSettings


# The options of access control and TLS, which every command that connects has.

_PANEL = "Access control and TLS"

_SECURITY: dict[str, Any] = {
    "access_key": Annotated[
        str | None,
        typer.Option(
            envvar="HEADRACE_ACCESS_KEY",
            help="Name of the account that signs requests; its secret: HEADRACE_SECRET_KEY.",
            rich_help_panel=_PANEL,
        ),
    ],
    "secret_key": Annotated[
        str | None,
        typer.Option(
            help="Secret of the account; others on this machine see options, but not variables.",
            rich_help_panel=_PANEL,
        ),
    ],
    "tls": Annotated[bool | None, typer.Option(help="Connect by TLS.", rich_help_panel=_PANEL)],
    "tls_verify": Annotated[
        bool | None,
        typer.Option(
            help="Whether certificates must be trusted (they must).", rich_help_panel=_PANEL
        ),
    ],
    "tls_ca": Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Certificates to trust, PEM.", rich_help_panel=_PANEL),
    ],
}
_PLACE: dict[str, Any] = {
    "namesrv": Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            envvar="HEADRACE_NAMESRV",
            help="Name server of a cluster; without it, the embedded broker of the data folder.",
        ),
    ],
    "data_dir": Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Folder of the embedded broker's data (default: .headrace)."
        ),
    ],
}
#: What the command line says of all these, by names of settings.
_NOTHING: dict[str, Any] = {}
_given: ContextVar[dict[str, Any]] = ContextVar("given_options", default=_NOTHING)


def connecting(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a cluster to a command; :func:`settings_from` takes them."""
    return _with_options(command, _PLACE | _SECURITY)


def secured(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of access control and TLS alone."""
    return _with_options(command, _SECURITY)


def _with_options(command: Callable[..., None], options: dict[str, Any]) -> Callable[..., None]:
    @functools.wraps(command)
    def with_options(*args: Any, **given: Any) -> None:
        token = _given.set({name: given.pop(name, None) for name in options})
        try:
            command(*args, **given)
        finally:
            _given.reset(token)

    own = inspect.signature(command, eval_str=True).parameters.values()
    return signed(with_options, own, {name: (one, None) for name, one in options.items()})


def signed(
    command: Callable[..., None],
    own: Iterable[inspect.Parameter],
    options: Mapping[str, tuple[Any, Any]],
) -> Callable[..., None]:
    """Have typer see parameters of a command, and options by their annotations and defaults."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    more = [
        inspect.Parameter(name, keyword, default=default, annotation=annotation)
        for name, (annotation, default) in options.items()
    ]
    shown = inspect.Signature([*own, *more])
    command.__signature__ = shown  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in shown.parameters.values()}
    return command


def settings_from(**more: Any) -> JobSettings:
    """Join the options of the command line, and more, with the environment and the defaults."""
    from headrace.settings import JobSettings

    return JobSettings.from_env(**(_given.get() | more))


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
def cluster() -> Iterator[Client]:
    """Connect to the cluster that the options of the command line name."""
    from headrace.client import Client, ClientSettings

    settings = settings_from()
    own = ClientSettings(**settings.connection)
    with cluster_address(settings) as address, Client(address, own) as client:
        yield client


def asynchronous(client: Client) -> AsyncClient:
    """Connect once more to a client's cluster, for an event loop of the caller's own."""
    from headrace.client import AsyncClient

    return AsyncClient(";".join(client.asynchronous.name_servers), client.settings)
