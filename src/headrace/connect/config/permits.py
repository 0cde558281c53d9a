"""What configs of connectors may take from the machine of a worker: what its operator has listed.

Whoever may call REST writes configs.  In the processes that run plugins nothing is taken from outside
that is not listed; a program that makes chains of its own is its own operator.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

__all__ = ["Permits", "check_file", "check_function", "check_variable", "restrict"]


class Permits(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator has listed; nothing, where nobody has.

    Examples
    --------
    >>> permits = Permits(env=["DB_*"], files=["/run/secrets"], functions=["shop"])
    >>> permits.has_variable("DB_PASSWORD"), permits.has_variable("HOME")
    (True, False)
    >>> permits.has_file("/run/secrets/db"), permits.has_file("/run/secrets/../passwd")
    (True, False)
    >>> permits.has_function("shop.records"), permits.has_function("os")
    (True, False)
    """

    #: Names of variables; ``*`` stands for any signs.
    env: list[str] = []
    #: Files, and folders with all that is in them.
    files: list[str] = []
    #: Modules with all that is in them.
    functions: list[str] = []

    def has_variable(self, name: str) -> bool:
        """Whether a variable of the environment is listed."""
        return any(fnmatchcase(name, pattern) for pattern in self.env)

    def has_file(self, path: str) -> bool:
        """Whether a file is listed, or lies in a folder that is; links count as what they lead to."""
        found = Path(path).resolve()
        return any(found.is_relative_to(Path(each).resolve()) for each in self.files)

    def has_function(self, module: str) -> bool:
        """Whether a module is listed, or lies in a package that is."""
        return any(f"{module}.".startswith(f"{each}.") for each in self.functions)


#: None: this process runs no configs of others.
_permits: Permits | None = None


def restrict(permits: Permits | None) -> None:
    """Let this process take from outside what is listed, and no more. Caller: a host, at its start."""
    global _permits
    _permits = permits


def check_variable(name: str) -> None:
    """Refuse a variable that is not listed.

    Raises
    ------
    LookupError
        It is not.
    """
    _require(
        f"the variable {name}", f"--allow-env {name}", lambda listed: listed.has_variable(name)
    )


def check_file(path: str) -> None:
    """Refuse a file that is not listed, as :func:`check_variable` does."""
    _require(f"the file {path}", f"--allow-file {path}", lambda listed: listed.has_file(path))


def check_function(module: str) -> None:
    """Refuse a module that is not listed, as :func:`check_variable` does."""
    _require(
        f"the module {module}",
        f"--allow-function {module}",
        lambda listed: listed.has_function(module),
    )


def _require(what: str, option: str, has: Callable[[Permits], bool]) -> None:
    if _permits is not None and not has(_permits):
        message = f"the operator of this worker has not allowed {what}"
        raise LookupError(f"{message} (headrace connect worker {option})")
