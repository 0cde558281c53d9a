"""Calling ``headrace connect`` as a person does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.cli import main

__all__ = ["Commands"]


class Commands:
    """Calls commands, and gives what they print."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def _call(self, arguments: tuple[str, ...], status: int) -> tuple[str, str]:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main(["connect", *arguments])
        printed = self._capsys.readouterr()
        assert (stopped.value.code or 0) == status, printed.err
        return printed.out, printed.err

    def __call__(self, *arguments: str) -> str:
        """Give what a command prints as its result."""
        return self._call(arguments, 0)[0]

    def said(self, *arguments: str) -> str:
        """Give what a command says of what it did."""
        return self._call(arguments, 0)[1].rstrip("\n")

    def data(self, *arguments: str) -> Any:
        """Give the JSON that a command prints."""
        return json.loads(self(*arguments, "--json"))

    def refused(self, *arguments: str) -> str:
        """Give the message of a command that fails."""
        return self._call(arguments, 1)[1].rstrip("\n")
