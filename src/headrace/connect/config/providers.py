"""Values from outside: ``${env:NAME}`` and ``${file:PATH:KEY}`` in a config.

They are read in the processes that run plugins, each time one starts, and only those that the
worker's operator has listed.  The config that is stored, and that REST shows, holds the reference
alone.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from headrace.connect.config.declaration import ConfigProblem
from headrace.errors import ConnectorConfigError

# What configs of connectors may take from the machine of a worker: what its operator has listed.
#
# Whoever may call REST writes configs.  In the processes that run plugins nothing is taken from outside
# that is not listed; a program that makes chains of its own is its own operator.


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


_REFERENCE = re.compile(r"\$\{(?P<provider>\w+):(?P<rest>[^}]*)\}")


def resolve(texts: Mapping[str, str]) -> dict[str, str]:
    """Put the values from outside in place of their references.

    What looks like a reference to no provider, such as ``${topic}``, stays as it is.

    Raises
    ------
    ConnectorConfigError
        Naming every key whose value cannot be had; never the value of another one.

    Examples
    --------
    >>> import os
    >>> os.environ["HEADRACE_EXAMPLE_PASSWORD"] = "swordfish"
    >>> resolve({"password": "${env:HEADRACE_EXAMPLE_PASSWORD}", "topic": "${topic}"})
    {'password': 'swordfish', 'topic': '${topic}'}
    """
    resolved: dict[str, str] = {}
    problems: list[ConfigProblem] = []
    for name, text in texts.items():
        try:
            resolved[name] = _REFERENCE.sub(_value, text)
        except (LookupError, OSError, ValueError) as error:
            resolved[name] = text
            message = f"The key {name} is {text!r}, which cannot be read: {_why(error)}."
            problems.append(ConfigProblem(name, message))
    if problems:
        raise ConnectorConfigError.of((one.key, one.message) for one in problems)
    return resolved


def is_reference(text: str) -> bool:
    """Whether a text takes something from outside.

    >>> is_reference("${env:PASSWORD}"), is_reference("${topic}"), is_reference("plain")
    (True, False, False)
    """
    return any(match["provider"] in PROVIDERS for match in _REFERENCE.finditer(text))


def references(texts: Mapping[str, str]) -> dict[str, str]:
    """Return each reference of a config with what it stands for: all that must not be shown of it.

    One that cannot be read stands for nothing here; :func:`resolve` says why.

    >>> import os
    >>> os.environ["HEADRACE_EXAMPLE_PASSWORD"] = "swordfish"
    >>> references({"url": "db:${env:HEADRACE_EXAMPLE_PASSWORD}", "topic": "${topic}"})
    {'${env:HEADRACE_EXAMPLE_PASSWORD}': 'swordfish'}
    """
    found = {}
    for match in (one for text in texts.values() for one in _REFERENCE.finditer(text)):
        if match["provider"] in PROVIDERS:
            with contextlib.suppress(LookupError, OSError, ValueError):
                found[match[0]] = _value(match)
    return found


def _value(match: re.Match[str]) -> str:
    provider = PROVIDERS.get(match["provider"])
    return match[0] if provider is None else provider(match["rest"])


def _why(error: Exception) -> str:
    # The text of a KeyError is the repr of its argument.
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return str(error.args[0] if error.args else error)


def _from_environment(name: str) -> str:
    check_variable(name)
    if name not in os.environ:
        raise LookupError(f"the worker's environment has no variable {name}")
    return os.environ[name]


def _from_file(rest: str) -> str:
    """Read a key of a properties file, or a whole file where no key is named."""
    path, _, name = rest.rpartition(":")
    check_file(path or rest)
    if not path:
        return Path(rest).read_text(encoding="utf-8").strip()
    properties = _properties(Path(path).read_text(encoding="utf-8"))
    if name not in properties:
        raise LookupError(f"the file {path} has no key {name}")
    return properties[name]


def _properties(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith(("#", "!")):
            name, _, value = re.sub(r"\s*[=:]\s*", "=", line.strip(), count=1).partition("=")
            found[name] = value
    return found


PROVIDERS: Mapping[str, Callable[[str], str]] = {"env": _from_environment, "file": _from_file}
"""What can be read from outside, by the word before the colon."""
