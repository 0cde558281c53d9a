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
from pathlib import Path

from headrace.connect.config.keys import ConfigProblem
from headrace.connect.config.permits import check_file, check_variable
from headrace.errors import ConnectorConfigError

__all__ = ["PROVIDERS", "is_reference", "references", "resolve"]

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
    """Give each reference of a config with what it stands for: all that must not be shown of it.

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
        message = f"the worker's environment has no variable {name}"
        raise LookupError(message)
    return os.environ[name]


def _from_file(rest: str) -> str:
    """Read a key of a properties file, or a whole file where no key is named."""
    path, _, name = rest.rpartition(":")
    check_file(path or rest)
    if not path:
        return Path(rest).read_text(encoding="utf-8").strip()
    properties = _properties(Path(path).read_text(encoding="utf-8"))
    if name not in properties:
        message = f"the file {path} has no key {name}"
        raise LookupError(message)
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
