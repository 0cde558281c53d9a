"""The REST API of a worker, as commands call it, and their options for it."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from headrace.cli._cluster import option_parameter, signed
from headrace.errors import (
    ConfigurationError,
    ConnectConflictError,
    ConnectError,
    ConnectionFailedError,
    ConnectNotFoundError,
    ConnectRequestError,
    HeadraceError,
    PluginFailedError,
    ProtocolError,
    RequestTimeoutError,
    WorkerStoppingError,
)
from headrace.spelling import did_you_mean

if TYPE_CHECKING:
    import httpx


#: A plugin has 10 s to answer a question about its config, and may be listed before.
_PATIENCE = 60.0
_PANEL = "The worker"

Url = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="HEADRACE_CONNECT_URL",
        help="REST API of any worker of the cluster.",
        rich_help_panel=_PANEL,
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="HEADRACE_CONNECT_TOKEN",
        help="The worker's token; others on this machine see options, but not variables.",
        rich_help_panel=_PANEL,
    ),
]
Certificates = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca", metavar="FILE", help="Certificates to trust, PEM.", rich_help_panel=_PANEL
    ),
]

_OPTIONS: dict[str, tuple[Any, Any]] = {
    "url": (Url, "http://127.0.0.1:8083"),
    "token": (Token, None),
    "tls_ca": (Certificates, None),
}

_ERRORS: dict[int, type[HeadraceError]] = {
    400: ConnectRequestError,
    404: ConnectNotFoundError,
    409: ConnectConflictError,
    413: ConnectRequestError,
    500: PluginFailedError,
    503: WorkerStoppingError,
}

#: REST advises requests; users of a terminal have commands.
_COMMANDS = (
    (r"GET /connector-plugins lists", "`headrace connect plugins` lists"),
    (
        r"PUT /connectors/(.+)/stop, then wait",
        r"`headrace connect stop \1`, then wait until `headrace connect status \1` says STOPPED",
    ),
    (r"^resume it instead$", "resume it instead, by `headrace connect resume`"),
)


class WorkerApi:
    """A client of a worker's REST API, which raises refusals as Headrace's errors.

    Parameters
    ----------
    url
        Where the worker's REST API is.
    token
        The token without which the worker does not answer.
    tls_ca
        File of the certificates to trust; those of the system by default.
    """

    def __init__(self, url: str, token: str | None = None, tls_ca: Path | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            message = f"the worker's address is {url!r}, which begins with neither http nor https"
            raise ConfigurationError(message, hint="give --url such as http://127.0.0.1:8083")
        self.url = url.rstrip("/")
        self._token = token
        self._tls_ca = tls_ca

    def get(self, *path: str, **query: bool | list[str]) -> Any:
        """Return what the worker answers to a GET request."""
        return self.ask("GET", *path, query=query)

    def ask(
        self,
        method: str,
        *path: str,
        body: object = None,
        query: dict[str, bool | list[str]] | None = None,
    ) -> Any:
        """Send a request, and return what its answer holds.

        Parameters
        ----------
        method, path
            What is asked: parts of the path, not yet quoted.
        body
            What is sent along as JSON.
        query
            Parameters; false ones are left out.

        Raises
        ------
        HeadraceError
            If nobody answers, or the worker refuses.
        """
        place = "/" + "/".join(quote(part, safe="") for part in path)
        given = {name: value for name, value in (query or {}).items() if value}
        with self._failures(f"{method} {place}"), self._client() as client:
            answer = client.request(method, place, json=body, params=given)
        if answer.is_success:
            return self._read(answer) if answer.content else None
        raise self._refusal(answer, path)

    def _client(self) -> httpx.Client:
        import httpx

        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        verify: Any = True
        if self._tls_ca is not None:
            import ssl

            verify = ssl.create_default_context(cafile=self._tls_ca)
        return httpx.Client(base_url=self.url, headers=headers, timeout=_PATIENCE, verify=verify)

    @contextlib.contextmanager
    def _failures(self, what: str) -> Iterator[None]:
        """Raise failures on the way to the worker as errors that say what to do."""
        import httpx

        try:
            yield
        except httpx.ConnectError as error:
            raise ConnectionFailedError(
                f"no Connect worker answers at {self.url}: {error}", hint=_way_in(str(error))
            ) from error
        except httpx.TimeoutException as error:
            raise RequestTimeoutError(
                f"the worker at {self.url} did not answer {what} within {_PATIENCE:g} s",
                hint="its log tells what holds it up",
            ) from error
        except httpx.InvalidURL as error:
            raise ConfigurationError(
                f"the worker's address {self.url!r} cannot be: {error}",
                hint="give --url such as http://127.0.0.1:8083",
            ) from error
        except httpx.HTTPError as error:
            raise ConnectionFailedError(
                f"the worker at {self.url} broke off {what}: {error}",
                hint="a worker that has a certificate is found by https://",
            ) from error

    def _read(self, answer: httpx.Response) -> Any:
        try:
            return answer.json()
        except ValueError as error:
            raise ProtocolError(
                f"what answers at {self.url} is no Connect worker: it sends no JSON",
                hint="give --url, or set HEADRACE_CONNECT_URL",
            ) from error

    def _refusal(self, answer: httpx.Response, path: tuple[str, ...]) -> HeadraceError:
        if answer.status_code == 401:
            wrong = "does not know this token" if self._token else "wants a token"
            return ConnectError(
                f"the worker at {self.url} {wrong}",
                hint="give its token as HEADRACE_CONNECT_TOKEN, or by --token",
            )
        value = self._read(answer)
        told = value.get("message") if isinstance(value, dict) else None
        if not isinstance(told, str):
            return ProtocolError(
                f"what answers at {self.url} is no Connect worker: it says {answer.status_code}",
                hint="give --url, or set HEADRACE_CONNECT_URL",
            )
        message, _, hint = told.partition("\n  → ")
        kind = _ERRORS.get(answer.status_code, ConnectError)
        if not hint and kind is ConnectNotFoundError:
            hint = self._meant(path)
        return kind(message, hint=_as_command(hint) or None)

    def _meant(self, path: tuple[str, ...]) -> str:
        """Return a suggestion of which connector was perhaps meant."""
        if path[:1] != ("connectors",) or len(path) < 2:
            return ""
        names = self.get("connectors")
        return did_you_mean(path[1], names, "`headrace connect list` names those that there are")


def asking(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a worker to a command; its first parameter becomes the worker's API."""
    _, *own = inspect.signature(command, eval_str=True).parameters.values()

    @functools.wraps(command)
    def with_worker(*args: Any, **given: Any) -> None:
        require_packages("httpx")
        api = WorkerApi(**{name: given.pop(name) for name in _OPTIONS})
        command(api, *args, **given)

    options = (option_parameter(name, kind, default) for name, (kind, default) in _OPTIONS.items())
    return signed(with_worker, [*own, *options])


def require_packages(*packages: str) -> None:
    """Raise an error that names the extra to install, where a package of it is missing.

    Raises
    ------
    ConfigurationError
        If one of the packages is not installed.
    """
    missing = [one for one in packages if importlib.util.find_spec(one) is None]
    if missing:
        raise ConfigurationError(
            f"headrace connect needs {', '.join(missing)}, which is not installed",
            hint='pip install "headrace[connect]"',
        )


def _way_in(reason: str) -> str:
    if "certificate" in reason.lower():
        return "give the file of a self-made certificate by --tls-ca"
    return (
        "start one by `headrace connect worker`, or say where it is by --url or"
        " HEADRACE_CONNECT_URL"
    )


def _as_command(hint: str) -> str:
    for pattern, replacement in _COMMANDS:
        hint = re.sub(pattern, replacement, hint)
    return hint
