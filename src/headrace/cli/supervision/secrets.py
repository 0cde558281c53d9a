"""How secrets reach a driver: by a variable, as all users of a machine see command lines."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.settings import JobSettings

__all__ = ["hand_over", "taken_over", "without_secrets"]

_SECRETS = [field.name for field in dataclasses.fields(JobSettings) if field.metadata["secret"]]
_OPTIONS = {f"--{name.replace('_', '-')}" for name in _SECRETS}
_VARIABLE = "_HEADRACE_SECRETS"


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """Give a command line without the options whose values are secrets.

    >>> without_secrets(["run", "--secret-key", "a", "--partitions", "2", "--secret-key=b", "job.py"])
    ['run', '--partitions', '2', 'job.py']
    """
    kept = []
    rest = iter(arguments)
    for argument in rest:
        option, equals, _ = argument.partition("=")
        if option not in _OPTIONS:
            kept.append(argument)
        elif not equals:
            next(rest, None)
    return kept


def hand_over(given: Mapping[str, Any]) -> dict[str, str]:
    """Give the variable that tells a driver those options, from settings by name."""
    secrets = {name: given[name] for name in _SECRETS if given.get(name) is not None}
    return {_VARIABLE: json.dumps(secrets)} if secrets else {}


def taken_over() -> dict[str, Any]:
    """Take what the supervisor has handed over, by name; what this process starts has it not."""
    secrets: dict[str, Any] = json.loads(os.environ.pop(_VARIABLE, "{}"))
    return secrets
