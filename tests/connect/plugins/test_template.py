"""The template of a connector's project runs as it is written."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Literal

import pytest

import headrace
from headrace.connect.plugins.template import write_project
from headrace.errors import ConfigurationError

ROLES = pytest.mark.parametrize("role", ["source", "sink"])
Role = Literal["source", "sink"]


def run_in(project: Path, *arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(Path(headrace.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@ROLES
def test_tests_of_a_new_project_pass(tmp_path: Path, role: Role) -> None:
    write_project("my-shop", role, tmp_path)
    printed = run_in(tmp_path / "my-shop", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert "4 passed" in printed


@ROLES
def test_new_project_is_formatted_and_without_complaints(tmp_path: Path, role: Role) -> None:
    write_project("my-shop", role, tmp_path)
    project = tmp_path / "my-shop"
    run_in(
        project,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--select",
        "E,F,I,B,UP",
        "--line-length",
        "100",
        ".",
    )
    run_in(project, "-m", "ruff", "format", "--isolated", "--line-length", "100", "--check", ".")


@ROLES
def test_entry_point_names_the_connector(tmp_path: Path, role: Role) -> None:
    write_project("my-shop", role, tmp_path)
    project = tmp_path / "my-shop"
    described = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    points = described["entry-points"]["headrace.connect.connectors"]
    module, _, name = points[f"my-shop-{role}"].partition(":")
    path = project / "src" / f"{module.replace('.', '/')}.py"
    assert f"class {name}({role.capitalize()}Connector)" in path.read_text()


@pytest.mark.parametrize("name", ["", "My-Shop", "../shop", "shop-", "1shop", "my_shop"])
def test_name_that_cannot_be_a_package_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be called"):
        write_project(name, "source", tmp_path)


def test_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    write_project("my-shop", "source", tmp_path)
    with pytest.raises(ConfigurationError, match="already"):
        write_project("my-shop", "sink", tmp_path)
    assert not (tmp_path / "my-shop" / "src" / "my_shop" / "sink.py").exists()
