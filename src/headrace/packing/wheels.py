"""Builds a wheel of a project folder."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

from headrace.errors import ConfigurationError

__all__ = ["build_wheel"]

# Calls the hook of PEP 517, in the environment as it is.
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
    """Tell whether a module's package is installed; one that only the project has is not."""
    return importlib.util.find_spec(name.partition(":")[0].partition(".")[0]) is not None
