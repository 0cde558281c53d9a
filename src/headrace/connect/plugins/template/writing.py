"""Writing the project of a new connector out of the files of the template."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Literal

from headrace.errors import ConfigurationError

Role = Literal["source", "sink"]

# The file of the template, and where it goes.
_FILES = {
    "pyproject.toml.template": "pyproject.toml",
    "README.md.{role}.template": "README.md",
    "package.py.template": "src/$module/__init__.py",
    "{role}.py.template": "src/$module/$role.py",
    "test_{role}.py.template": "tests/test_$role.py",
}


def write_project(name: str, role: Role, folder: Path) -> list[Path]:
    """Write a project of a connector that runs: code, declared config, tests, entry point.

    Parameters
    ----------
    name
        What the connector is called, in small letters with hyphens: ``my-shop``.
    role
        Whether it is a source or a sink.
    folder
        Where the project's folder goes; it is called like the connector.

    Returns
    -------
    list[Path]
        The files that were written.

    Raises
    ------
    ConfigurationError
        When the name does not do, or the project's folder is there already.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = write_project("my-shop", "source", Path(folder))
    ...     [path.relative_to(folder).as_posix() for path in written][:2]
    ['my-shop/pyproject.toml', 'my-shop/README.md']
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        message = f"A connector cannot be called {name!r}."
        hint = "Use small letters, digits and hyphens, and begin with a letter: my-shop."
        raise ConfigurationError(message, hint=hint)
    project = folder / name
    if project.exists():
        message = f"There is a {project} already."
        raise ConfigurationError(message, hint="Choose another name, or remove it first.")
    words = {
        "name": name,
        "module": name.replace("-", "_"),
        "cls": "".join(part.capitalize() for part in name.split("-")),
        "role": role,
        "Role": role.capitalize(),
    }
    return [
        _write(project, source.format(role=role), target, words)
        for source, target in _FILES.items()
    ]


def _write(project: Path, source: str, target: str, words: dict[str, str]) -> Path:
    template = files("headrace.connect.plugins.template").joinpath("files", source)
    path = project / Template(target).substitute(words)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(Template(template.read_text("utf-8")).substitute(words), "utf-8")
    return path
