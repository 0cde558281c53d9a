"""``headrace doctor``: says what this machine has and what to do about what is wrong."""

from __future__ import annotations

import typer

from headrace.cli._checks import Finding, find_all
from headrace.cli._cluster import DataDir, NameServer, settings_from
from headrace.cli._terminal import terminal

__all__ = ["doctor"]

_MARKS = {"good": ("✓", "green"), "doubtful": ("!", "yellow"), "wrong": ("✗", "bold red")}


def doctor(namesrv: NameServer = None, data_dir: DataDir = None) -> None:
    """Look at Python, Java, Spark, the broker, ports and disk; exit status 1 when one is wrong."""
    findings = find_all(settings_from(namesrv=namesrv, data_dir=data_dir))
    console = terminal()
    for finding in findings:
        console.print(_line(finding))
    wrong = [finding.subject for finding in findings if finding.verdict == "wrong"]
    if wrong:
        console.print(f"\nTo put right: {', '.join(wrong)}.", style="bold red")
        raise typer.Exit(1)
    console.print("\nReady to run.", style="bold green")


def _line(finding: Finding) -> object:
    from rich.text import Text

    mark, style = _MARKS[finding.verdict]
    text = Text.assemble((mark, style), f" {finding.subject:<10} ", finding.text)
    if finding.hint is not None:
        text.append("\n             → ", "cyan").append(finding.hint)
    return text
