"""``headrace broker``: runs the embedded broker in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["broker"]


def broker(
    data_dir: Annotated[
        Path,
        typer.Option("--data-dir", "--data", metavar="PATH", help="Folder of the broker's data."),
    ] = Path(".headrace"),
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0: a free one.")] = 9876,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    flush: Annotated[
        str, typer.Option(metavar="sync|async", help="When an answer means that it is on disk.")
    ] = "sync",
) -> None:
    """Run the embedded broker until Ctrl-C."""
