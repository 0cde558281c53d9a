"""``headrace prepare``: makes what Spark starts faster with."""

from __future__ import annotations

import time

import typer

from headrace.cli._terminal import say

__all__ = ["prepare"]

_MIB = 1024 * 1024


def prepare() -> None:
    """Let Java keep Spark's classes in a form that it starts with in half the time.

    Once for each release of Java and Spark on a machine; it takes a minute or two.
    """
    from headrace.java import use_java
    from headrace.spark.class_archive import make_archive

    java = use_java()
    say(f"Running a small job on Spark with Java {java.version} ({java.home}) ...")
    begin = time.monotonic()
    path = make_archive()
    size = path.stat().st_size // _MIB
    typer.echo(f"{path}: {size:,} MiB, made in {time.monotonic() - begin:.0f} s.")
