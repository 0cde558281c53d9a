"""``headrace pack``: makes an archive that runs a job where there is only Java."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli._terminal import say, show, size

# ``headrace prepare``: makes an archive of classes with which Spark starts faster.

_MIB = 1024 * 1024


def prepare() -> None:
    """Store Spark's classes in a form with which it starts in half the time.

    Run it once for each release of Java and Spark on a machine; it takes a minute or two.
    """
    from headrace.java import use_java
    from headrace.spark.job import make_archive

    java = use_java()
    say(f"Running a small job on Spark with Java {java.version} ({java.home}) ...")
    begin = time.monotonic()
    path = make_archive()
    size = path.stat().st_size // _MIB
    typer.echo(f"{path}: {size:,} MiB, made in {time.monotonic() - begin:.0f} s.")


def pack(
    file: Annotated[
        Path, typer.Argument(help="The Python file that builds the topology, or FILE:NAME.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The archive that is made.")
    ] = Path("env.tar.gz"),
    extra: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="NAME",
            help="A package that is imported only while the job runs; once per package.",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check/--no-check", help="Unpack the archive and try to import from it."),
    ] = True,
) -> None:
    """Pack Python, Headrace and a file into an archive for Spark's workers."""
    from headrace.cli.loading import load_program, parted

    begin = time.monotonic()
    before = set(sys.modules)
    program = load_program(file)
    loaded = {name: module for name, module in sys.modules.items() if name not in before}

    from headrace import packing

    machine = packing.platform_of()
    say(
        f"Packing {program.topology.name} for Python {machine['python']} on "
        f"{machine['machine']} with {machine['libc']} ..."
    )
    with packing.Distributions(say) as found:
        contents = packing.contents_of(parted(file)[0], loaded, found, extra=extra or ())
        versions = [f"{name} {version}" for name, version in contents.versions.items()]
        say(f"{len(versions)} packages: {', '.join(versions)}")

        def tried(archive: Path) -> None:
            if check:
                say("Trying it: each package is imported in an empty environment ...")
                packing.check(archive, contents.modules)

        archive = packing.write_archive(contents.files, output, before=tried)
    show(
        f"{output}: {size(archive.size)}, {len(contents.files):,} files, "
        f"made in {time.monotonic() - begin:.0f} s."
    )
    show(f"sha256: {archive.digest}")
    say(f"Use it: headrace run {file} --archive {output} --master spark://HOST:7077")
