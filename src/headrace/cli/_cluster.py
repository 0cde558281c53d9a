"""Options that several commands share, and the way to the cluster that they name."""

from __future__ import annotations

import contextlib
import functools
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from headrace._setting import options_of
from headrace.settings import ConnectionSettings, JobSettings

if TYPE_CHECKING:
    from headrace._setting import Option
    from headrace.client import AsyncClient, Client

_GIVEN = "headrace.given"


# Options that follow from declared settings.


class DeclaredOptions:
    """A part of a command's class: the command has an option for each setting of a kind.

    The options are made when somebody asks for them, as some declarations take long to import.
    What is given comes to the command by :func:`given_settings`.
    """

    #: The class of settings, as ``module:name``.
    declared: ClassVar[str]
    _params: list[Any]
    _whole: bool

    @property
    def params(self) -> list[Any]:
        """The options of the command itself, and those of its settings."""
        if not self._whole:
            self._whole = True
            self._params += _made_options(self.declared)
        return self._params

    @params.setter
    def params(self, own: list[Any]) -> None:
        self._params, self._whole = own, False


def given_settings(context: typer.Context) -> dict[str, Any]:
    """Return the settings that the command line gives, by name: texts, truths, lists of texts."""
    return dict(context.meta.get(_GIVEN, {}))


def _keep(context: typer.Context, parameter: typer.CallbackParam, value: object) -> None:
    if value not in (None, [], ()):
        context.meta.setdefault(_GIVEN, {})[parameter.name] = value


def _made_options(declared: str) -> list[Any]:
    options = [
        _parameter(option, callback=_keep, expose_value=False)
        for option in options_of(pkgutil.resolve_name(declared))
    ]

    def command() -> None:
        """Stand for a command that has these options."""

    command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    command.__annotations__ = {option.name: option.annotation for option in options}
    app = typer.Typer(add_completion=False)
    app.command()(command)
    return typer.main.get_command(app).params


def _parameter(option: Option, **more: Any) -> inspect.Parameter:
    """Make the parameter of a command from which typer makes an option."""
    switch = option.kind is bool
    default = typer.Option(
        None,
        f"{option.flag}/--no-{option.flag[2:]}" if switch else option.flag,
        metavar=None if switch else option.metavar,
        help=option.help.replace("[", r"\["),
        rich_help_panel=option.panel,
        **more,
    )
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(option.name, keyword, default=default, annotation=option.kind | None)


# The options of the connection, which every command that connects has.

_NOTHING: dict[str, Any] = {}
_given: ContextVar[dict[str, Any]] = ContextVar("given_security", default=_NOTHING)


def given_security() -> dict[str, Any]:
    """Return what the command line says about the connection, by names of settings."""
    return _given.get()


def connecting(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command; its connections take them from :func:`given_security`."""
    signature = inspect.signature(command, eval_str=True)
    more = [_parameter(option) for option in options_of(ConnectionSettings)]

    @functools.wraps(command)
    def with_options(*args: Any, **given: Any) -> None:
        token = _given.set({one.name: given.pop(one.name, None) for one in more})
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
