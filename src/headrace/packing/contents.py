"""Gathers what an archive for a user's file holds."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from headrace.errors import ConfigurationError
from headrace.packing.distributions import (
    Distributions,
    files_of,
    modules_of,
    requirement_closure,
)
from headrace.packing.interpreter import interpreter_files, libraries_of

__all__ = ["MANIFEST", "Contents", "contents_of", "platform_of"]

MANIFEST = "headrace-pack.json"
"""The file in an archive that tells what is in it."""

# What a worker imports whatever the job is.
_ALWAYS = ("headrace.spark", "headrace.cli.app", "pyspark.daemon", "pyspark.worker")
_SHARED_OBJECT = re.compile(r".*\.so(\.\d+)*$")


@dataclass(frozen=True, slots=True)
class Contents:
    """What goes into an archive."""

    #: Each file by its place in the archive; the text of those that are made for it.
    files: dict[str, Path | bytes]
    #: The version of each distribution, by its name.
    versions: dict[str, str]
    #: The modules that must import where the archive is unpacked.
    modules: tuple[str, ...]


def contents_of(
    program: Path,
    loaded: Mapping[str, ModuleType],
    found: Distributions,
    *,
    extra: Iterable[str] = (),
) -> Contents:
    """Gather what a user's file needs.

    Parameters
    ----------
    program
        The user's file.
    loaded
        The modules that loading it has imported, by name.
    found
        What is installed here.
    extra
        More distributions, or modules of them, that are imported only while the job runs.

    Raises
    ------
    ConfigurationError
        When something is missing here, or cannot be packed.
    """
    if sys.platform != "linux":
        message = f"An archive is for Linux, and cannot be packed on {platform.system()}."
        raise ConfigurationError(message, hint="Pack on a machine like those of the cluster.")
    app = {f"app/{program.name}": program}
    owners: set[str] = set()
    imported: set[str] = set()
    for name, module in loaded.items():
        file = Path(getattr(module, "__file__", None) or "")
        top = name.partition(".")[0]
        if not file.is_file() or file.samefile(program) or _is_of_python(top, file):
            continue
        if (owner := found.owner_of(name, file)) is None:
            app[_place_of_module(name, file)] = file
        else:
            owners.add(owner)
            imported.add(top)
    named = [found.named(name) for name in extra]
    packed = requirement_closure(["headrace", *sorted(owners), *named], found.find)
    for name in requirement_closure(named, found.find) if named else ():
        imported |= {each for each in modules_of(packed[name]) if not each.startswith("_")}
    site: dict[str, Path] = {}
    for distribution in packed.values():
        site |= files_of(distribution)
    versions = {each.name: each.version for each in packed.values()}
    roots = {Path(str(each.locate_file(""))).resolve() for each in packed.values()}
    binaries = [path for place, path in site.items() if _SHARED_OBJECT.match(place)]
    files = {**libraries_of(binaries, roots), **interpreter_files(), **site, **app}
    files[MANIFEST] = _manifest(program, versions)
    return Contents(files, versions, (*_ALWAYS, *sorted(imported)))


def platform_of() -> dict[str, str]:
    """Return what a worker's machine must be like: its processor and its C library."""
    libc = " ".join(platform.libc_ver())
    if "CS_GNU_LIBC_VERSION" in os.confstr_names:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or libc
    return {"machine": platform.machine(), "libc": libc, "python": platform.python_version()}


def _is_of_python(name: str, file: Path) -> bool:
    """Tell whether a module is of the standard library, which has some whose names it hides."""
    return name in sys.stdlib_module_names or file.parent == Path(sysconfig.get_path("stdlib"))


def _place_of_module(name: str, file: Path) -> str:
    """Give the place at which a module is found by its name, below ``app``."""
    parents = name.split(".")
    if file.name.partition(".")[0] != "__init__":
        parents.pop()
    return "/".join(("app", *parents, file.name))


def _manifest(program: Path, versions: Mapping[str, str]) -> bytes:
    told = {
        "headrace": versions["headrace"],
        "platform": platform_of(),
        "program": f"app/{program.name}",
        "distributions": dict(sorted(versions.items())),
    }
    return f"{json.dumps(told, indent=2)}\n".encode()
