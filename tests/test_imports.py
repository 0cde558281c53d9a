"""Imports point one way: see the picture in docs/architecture.md."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import headrace

ROOT = Path(headrace.__file__).parent

# Modules that stand below every package and import nothing of ours but each other.
BOTTOM = {
    "_setting",
    "backoff",
    "columns",
    "durations",
    "encoding",
    "errors",
    "failpoints",
    "java",
    "keys",
    "leases",
    "private",
    "quiet_log",
    "serdes",
    "settings",
    "spelling",
    "user_lines",
    "watched",
}

# What each package may import besides itself and the bottom.
MAY_IMPORT: dict[str, set[str]] = {
    "protocol": set(),
    "store": {"protocol"},
    "broker": {"store", "protocol"},
    "client": {"protocol"},
    "topology": set(),
    "streams": {"topology"},
    "transactions": {"topology"},
    "runtime": {"topology", "client", "protocol"},
    # Finds or starts the broker process of a data folder.
    "embedded": {"broker"},
    "spark": {"runtime", "topology", "transactions", "client", "protocol", "embedded", "packing"},
    "packing": set(),
    "connect": {
        "broker",
        "client",
        "embedded",
        "protocol",
        "runtime",
        "spark",
        "store",
        "streams",
        "topology",
        "transactions",
    },
    "cli": {
        "broker",
        "client",
        "connect",
        "embedded",
        "packing",
        "protocol",
        "runtime",
        "spark",
        "store",
        "streams",
        "topology",
        "transactions",
    },
}

# PySpark is slow to import and must not be needed by what runs without it.
MAY_IMPORT_SPARK = {"spark", "cli"}

MODULES = sorted(ROOT.rglob("*.py"))

#: The classes of one fluent interface, which give each other.
STREAMS = "headrace.streams"


def part_of(module: Path) -> str:
    """The package of a module below ``headrace``, or its own name at the top."""
    return module.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def imported(module: Path) -> list[str]:
    return list(_imported(module))


def _imported(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def parts_imported(module: Path) -> set[str]:
    names = [name.split(".") for name in imported(module)]
    known = BOTTOM | set(MAY_IMPORT)
    return {name[1] for name in names if name[0] == "headrace" and name[1:] and name[1] in known}


def test_every_part_has_its_place() -> None:
    parts = {part_of(module) for module in MODULES} - {"__init__", "__main__"}
    assert parts <= BOTTOM | set(MAY_IMPORT)


def test_modules_import_only_what_stands_below_them() -> None:
    found = {
        str(module.relative_to(ROOT)): above
        for module in MODULES
        if (part := part_of(module)) not in {"__init__", "__main__"}
        and (above := parts_imported(module) - BOTTOM - MAY_IMPORT.get(part, set()) - {part})
    }
    assert found == {}


def test_no_modules_know_each_other_in_a_circle() -> None:
    """Not by types either."""
    names = {name_of(module) for module in MODULES}
    known = {
        node: {node_of(one) for one in modules_imported(module, names)} - {node}
        for module in MODULES
        if (node := node_of(name_of(module))) != STREAMS
    }
    TopologicalSorter(known).prepare()


def modules_imported(module: Path, known: set[str]) -> Iterator[str]:
    """What a module takes its names from: a module of a package is not the package."""
    names = imported(module)
    for name in names:
        if name in known and not any(each.rpartition(".")[0] == name for each in names):
            yield name
        elif name not in known and name.rpartition(".")[0] in known:
            yield name.rpartition(".")[0]


def name_of(module: Path) -> str:
    name = ".".join(("headrace", *module.relative_to(ROOT).with_suffix("").parts))
    return name.removesuffix(".__init__")


def node_of(name: str) -> str:
    return STREAMS if name.startswith(STREAMS) else name


def test_spark_is_imported_by_the_spark_package_only() -> None:
    found = [
        str(module.relative_to(ROOT))
        for module in MODULES
        if part_of(module) not in MAY_IMPORT_SPARK
        and "pyspark" in {name.split(".")[0] for name in imported(module)}
    ]
    assert found == []


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_package_imports_alone(package: str) -> None:
    program = (
        f"import json, sys\nfrom headrace.{package} import *\n"
        "print(json.dumps(sorted(name for name in sys.modules)))"
    )
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    loaded = json.loads(answer.stdout)
    parts = {name.split(".")[1] for name in loaded if name.startswith("headrace.")}
    assert parts <= BOTTOM | MAY_IMPORT[package] | {package}
    assert "pyspark" not in loaded or package == "spark"
