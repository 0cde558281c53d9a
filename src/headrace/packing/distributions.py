"""Finds which distributions an archive needs, and which of their files."""

from __future__ import annotations

import importlib.util
import json
import posixpath
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import cache, cached_property
from importlib.metadata import (
    Distribution,
    PackageNotFoundError,
    PathDistribution,
    distribution,
    distributions,
    packages_distributions,
)
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit
from urllib.request import url2pathname

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import headrace
from headrace.errors import ConfigurationError

# Builds a wheel of a project folder: calls the hook of PEP 517, in the environment as it is.
_BUILD = """\
import functools, importlib, sys
module, _, path = sys.argv[1].partition(":")
backend = functools.reduce(getattr, filter(None, path.split(".")), importlib.import_module(module))
backend.build_wheel(sys.argv[2])
"""
_PIP = ("-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps")


def build_wheel(sources: Path, into: Path) -> Path:
    """Build a wheel of a project in a folder, and return its path.

    The project's backend is asked where it is installed here; else pip, which fetches it.

    Raises
    ------
    ConfigurationError
        When the project cannot be built, or neither is here.
    """
    backend = _backend(sources)
    ways = []
    if _is_importable(backend):
        ways.append([sys.executable, "-P", "-c", _BUILD, backend, str(into)])
    if _is_importable("pip"):
        ways.append([sys.executable, *_PIP, "--wheel-dir", str(into), str(sources)])
    if not ways:
        name = backend.partition(".")[0]
        message = f"No wheel can be built of {sources}: neither {name} nor pip is installed here."
        raise ConfigurationError(message, hint=f"Install {name}, which builds it.")
    reasons = []
    for way in ways:
        answer = subprocess.run(way, cwd=sources, capture_output=True, text=True, check=False)
        if answer.returncode == 0 and (wheels := list(into.glob("*.whl"))):
            return wheels[0]
        reasons += (answer.stderr.strip() or answer.stdout.strip() or "no reason").splitlines()[-1:]
    message = f"No wheel can be built of {sources}: {reasons[0]}"
    raise ConfigurationError(message, hint=f"Try it: python -m pip wheel --no-deps {sources}")


def _backend(sources: Path) -> str:
    project = sources / "pyproject.toml"
    text = project.read_text(encoding="utf-8") if project.is_file() else ""
    system = tomllib.loads(text).get("build-system", {})
    return str(system.get("build-backend", "setuptools.build_meta:__legacy__"))


def _is_importable(name: str) -> bool:
    """Return whether a module's package is installed; one that only the project has is not."""
    return importlib.util.find_spec(name.partition(":")[0].partition(".")[0]) is not None


SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
"""Where distributions lie in an archive."""

# What Python never loads at run time, and what Spark has on the worker anyway.
_LEFT_OUT = re.compile(
    r"""
    (.*/)?__pycache__/
    | .*\.py[co]$
    | [^/]+\.dist-info/(direct_url\.json|INSTALLER|REQUESTED)$
    | pyspark/(bin|data|examples|jars|licenses|python|sbin)/
    | pyarrow/(include|includes|src|tests)/
    | pyarrow/_pyarrow_cpp_tests
    | pyarrow/libarrow_python\w*\.so(\.\d+\.\d+\.\d+)?$  # copies of the one that is loaded, .so.N
    | pandas/tests/
    | numpy/(.*/)?(include|tests)/
    | (numpy|pandas|pyarrow)/.*\.(a|h|pxd|pxi|pyx)$
    """,
    re.VERBOSE,
)
# Folders beside lib that hold nothing which runs inside of Python.
_NOT_LOADED = ("bin/", "include/", "share/doc/", "share/man/", "../")


def place_of(file: str) -> str | None:
    """Return where a distribution's file lies in an archive, or nothing if it is left out.

    >>> place_of("pyarrow/lib.py").partition("/site-packages/")[2]
    'pyarrow/lib.py'
    >>> place_of("pyspark/jars/spark-core.jar"), place_of("../../../bin/headrace")
    (None, None)
    >>> place_of("../../../share/zones/paris")
    'share/zones/paris'
    """
    if _LEFT_OUT.match(file):
        return None
    first, *rest = PurePosixPath(file).parts
    if first.endswith(".data") and len(rest) > 1:
        scheme, *rest = rest
        base = {"purelib": SITE, "platlib": SITE, "data": "."}.get(scheme)
        if base is None:
            return None
        place = posixpath.normpath(posixpath.join(base, *rest))
    else:
        place = posixpath.normpath(posixpath.join(SITE, file))
    return None if place.startswith(("/", *_NOT_LOADED)) else place


def files_of(found: Distribution) -> dict[str, Path]:
    """Return the files of a distribution that are packed, by their place in the archive.

    Raises
    ------
    ConfigurationError
        When nobody wrote down which files it has.
    """
    if found.read_text("RECORD") is None:
        message = (
            f"{found.name} {found.version} was installed without a list of its files (RECORD)."
        )
        hint = "Install it with pip in a virtual environment, and pack from there."
        raise ConfigurationError(message, hint=hint)
    placed = {}
    for file in found.files or ():
        place = place_of(file.as_posix())
        if place is not None and (source := Path(str(found.locate_file(file)))).is_file():
            placed[place] = source
    return placed


def modules_of(found: Distribution) -> set[str]:
    """Return the names by which a distribution's modules and packages are imported."""
    names = set()
    for place in files_of(found):
        first, slash, rest = place.removeprefix(f"{SITE}/").partition("/")
        name = first.partition(".")[0]
        is_module = rest.endswith((".py", ".so")) if slash else first.endswith((".py", ".so"))
        if is_module and name.isidentifier() and (not slash or name == first):
            names.add(name)
    return names


def requirement_closure(
    names: Iterable[str], find: Callable[[str], Distribution | None]
) -> dict[str, Distribution]:
    """Return the distributions of these names and of all that they require.

    Parameters
    ----------
    names
        Distributions, with extras where they are wanted: ``httpx[http2]``.
    find
        Returns the installed distribution of a name.

    Raises
    ------
    ConfigurationError
        When one is not installed.
    """
    closure: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(Requirement(name), "") for name in names]
    while waiting:
        wanted, by = waiting.pop()
        name = canonicalize_name(wanted.name)
        found = closure.get(name) or find(name)
        if found is None:
            message = f"{wanted.name} is not installed here" + (
                f", and {by} requires it." if by else "."
            )
            raise ConfigurationError(message, hint=f"Install it: pip install '{wanted}'")
        closure[name] = found
        extras = {extra for extra in ("", *wanted.extras) if (name, extra) not in seen}
        seen |= {(name, extra) for extra in extras}
        waiting += [(required, name) for required in _required(found, extras)]
    return dict(sorted(closure.items()))


def _required(found: Distribution, extras: Iterable[str]) -> Iterator[Requirement]:
    for line in found.requires or ():
        required = Requirement(line)
        marker = required.marker
        if any(marker is None or marker.evaluate({"extra": extra}) for extra in extras):
            yield required


class Distributions:
    """What is installed here, in the form in which it can be packed.

    Of a development install a wheel is built, and of Headrace where it runs from a folder of
    sources.  Wheels lie in a temporary folder until the context ends.

    Parameters
    ----------
    tell
        Is called with a line about what takes a while.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._resources = ExitStack()
        self._found: dict[str, Distribution | None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._resources.close()

    def find(self, name: str) -> Distribution | None:
        """Return the distribution of a name, if it is installed.

        Raises
        ------
        ConfigurationError
            When it is a development install, and no wheel can be built of it.
        """
        name = canonicalize_name(name)
        if name not in self._found:
            try:
                installed: Distribution | None = distribution(name)
            except PackageNotFoundError:
                installed = None
            sources = _sources_of_headrace(installed) if name == "headrace" else _sources(installed)
            self._found[name] = installed if sources is None else self._built(name, sources)
        return self._found[name]

    def owner_of(self, module: str, file: Path) -> str | None:
        """Return the name of the distribution that a module was imported from, if it is of one."""
        top = module.partition(".")[0]
        if top == "headrace":
            return top
        for name in sorted(set(self._by_package.get(top, ()))):
            if file.is_relative_to(_root_of(name)) and (
                len(set(self._by_package[top])) == 1
                or file in files_of(distribution(name)).values()
            ):
                return canonicalize_name(name)
        for name, folder in self._developed.items():
            if file.is_relative_to(folder) and (built := self.find(name)) is not None:
                path = f"{SITE}/{module.replace('.', '/')}"
                if files_of(built).keys() & {f"{path}.py", f"{path}/__init__.py"}:
                    return name
        return None

    def named(self, given: str) -> str:
        """Return the distribution that somebody means by its name, or by that of its module.

        Raises
        ------
        ConfigurationError
            When nothing of that name is installed.
        """
        name = Requirement(given).name if re.match(r"[\w.-]+(\[.*\])?$", given) else given
        if self.find(name) is not None:
            return given
        if owners := self._by_package.get(name):
            return owners[0]
        message = f"--with {given}: no distribution or module of this name is installed here."
        raise ConfigurationError(message, hint=f"Install it: pip install {name}")

    @cached_property
    def _by_package(self) -> dict[str, list[str]]:
        return dict(packages_distributions())

    @cached_property
    def _developed(self) -> dict[str, Path]:
        found = {each.name: _sources(each) for each in distributions()}
        return {
            canonicalize_name(name): folder.resolve()
            for name, folder in found.items()
            if folder is not None
        }

    def _built(self, name: str, sources: Path) -> Distribution:
        self._tell(f"{name} runs from {sources}: building a wheel of it ...")
        folder = Path(
            self._resources.enter_context(tempfile.TemporaryDirectory(prefix="headrace-"))
        )
        tree = folder / "tree"
        with zipfile.ZipFile(build_wheel(sources, folder)) as wheel:
            wheel.extractall(tree)
        return PathDistribution(next(tree.glob("*.dist-info")))


@cache
def _root_of(name: str) -> Path:
    return Path(str(distribution(name).locate_file("")))


def _sources(installed: Distribution | None) -> Path | None:
    """Return the project folder of a development install."""
    text = None if installed is None else installed.read_text("direct_url.json")
    origin = json.loads(text) if text else {}
    if not origin.get("dir_info", {}).get("editable"):
        return None
    return Path(url2pathname(urlsplit(origin["url"]).path))


def _sources_of_headrace(installed: Distribution | None) -> Path | None:
    """Return the project folder of the Headrace that runs, where it is not an installed copy."""
    running = Path(headrace.__file__)
    if installed is not None and running in files_of(installed).values():
        return None
    for folder in running.resolve().parents:
        if (folder / "pyproject.toml").is_file():
            return folder
    message = f"Headrace runs from {running.parent}, which is neither installed nor a project."
    raise ConfigurationError(message, hint="Install it (pip install headrace), and run that.")
