"""The options of access control and TLS, which every command that connects has."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["connecting", "given_security"]

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
    """What the command line says about access control and TLS, by the names of settings."""
    return _given.get()


def connecting(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options; what it connects to takes them from :func:`given_security`."""
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
