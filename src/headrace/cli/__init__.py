"""The command line: ``headrace --help`` lists the commands."""

from __future__ import annotations

from headrace.cli.app import main

__all__ = ["main"]
