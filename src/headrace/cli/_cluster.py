"""Options that several commands share, and the way to the cluster that they name."""

from __future__ import annotations

import contextlib
import functools
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import typer

from headrace._setting import Option, options_of
from headrace.settings import ConnectionSettings, JobSettings

if TYPE_CHECKING:
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

    app = typer.Typer(add_completion=False)
    app.command()(signed(command, options))
    return typer.main.get_command(app).params


def _parameter(option: Option, **more: Any) -> inspect.Parameter:
    switch = option.kind is bool
    default = typer.Option(
        None,
        f"{option.flag}/--no-{option.flag[2:]}" if switch else option.flag,
        metavar=None if switch else option.metavar,
        help=option.help.replace("[", r"\["),
        rich_help_panel=option.panel,
        **more,
    )
    return option_parameter(option.name, option.kind | None, default)


# The options of the cluster, which every command that connects has.

_NAMESRV = typer.Option(
    None,
    metavar="HOST:PORT",
    envvar="HEADRACE_NAMESRV",
    help="Name server of a cluster; without it, the embedded broker of the data folder.",
)
_DATA_DIR = typer.Option(
    None, metavar="PATH", help="Folder of the embedded broker's data (default: .headrace)."
)
#: What the command line says of all these, by names of settings.
_NOTHING: dict[str, Any] = {}
_given: ContextVar[dict[str, Any]] = ContextVar("given_options", default=_NOTHING)


def connecting(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a cluster to a command; :func:`settings_from` takes them."""
    place = (
        option_parameter("namesrv", str | None, _NAMESRV),
        option_parameter("data_dir", Path | None, _DATA_DIR),
    )
    return _with_options(command, [*place, *_connection_options()])


def secured(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the connection alone, and not those that name the cluster."""
    return _with_options(command, _connection_options())


def _connection_options() -> list[inspect.Parameter]:
    return [_parameter(option) for option in options_of(ConnectionSettings)]


def _with_options(
    command: Callable[..., None], options: list[inspect.Parameter]
) -> Callable[..., None]:
    @functools.wraps(command)
    def with_options(*args: Any, **given: Any) -> None:
        token = _given.set({one.name: given.pop(one.name, None) for one in options})
        try:
            command(*args, **given)
        finally:
            _given.reset(token)

    own = inspect.signature(command, eval_str=True).parameters.values()
    return signed(with_options, [*own, *options])


def option_parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    """Make the parameter of a command from which typer makes an option."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=annotation)


def signed(
    command: Callable[..., None], parameters: Iterable[inspect.Parameter]
) -> Callable[..., None]:
    """Make typer see these parameters of a command."""
    shown = inspect.Signature(list(parameters))
    command.__signature__ = shown  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in shown.parameters.values()}
    return command


def settings_from(**more: Any) -> JobSettings:
    """Join the options of the command line, and more, with the environment and the defaults."""
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
