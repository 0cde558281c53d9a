"""``headrace describe``: shows what a file builds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["describe"]


def describe(
    file: Annotated[
        Path, typer.Argument(help="The Python file that builds the topology, or FILE:NAME.")
    ],
    dot: Annotated[bool, typer.Option("--dot", help="Write Graphviz DOT.")] = False,
) -> None:
    """Print a pipeline's graph, its stages, its topics and its state stores."""
    from headrace.cli.loading import load_program

    topology = load_program(file).topology
    sys.stdout.write(topology.to_dot() if dot else topology.describe())
