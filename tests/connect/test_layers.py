"""Inside Connect, too, imports point one way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import headrace.connect
from tests.test_imports import imported as names_imported

ROOT = Path(headrace.connect.__file__).parent

#: Parts of the side that runs plugins; none of them knows of the control plane.
PLUGIN_SIDE = {"columns", "config", "numbers", "schema", "values", "records", "plugins"}

#: What each part may import of the others.
MAY_IMPORT: dict[str, set[str]] = {
    "naming": set(),
    "levels": set(),
    "lifecycle": {"naming"},
    "channel": {"config", "lifecycle"},
    "log": {"naming", "lifecycle"},
    "assignment": {"naming", "lifecycle", "log"},
    "coordination": {"naming", "lifecycle", "log", "assignment"},
    # It reads times that connectors declare.
    "worker": {"naming", "levels", "lifecycle", "log", "assignment", "config"},
    "rest": {"naming", "lifecycle", "log", "assignment", "worker"},
    "running": {"naming", "lifecycle", "log", "assignment", "worker", "rest", "hosts"}
    | {"coordination"},
    "columns": set(),
    "numbers": set(),
    "schema": PLUGIN_SIDE,
    "values": PLUGIN_SIDE,
    "records": PLUGIN_SIDE,
    "config": PLUGIN_SIDE,
    "plugins": PLUGIN_SIDE,
    "converters": PLUGIN_SIDE,
    "predicates": PLUGIN_SIDE,
    "transforms": PLUGIN_SIDE | {"predicates", "converters"},
    "handling": PLUGIN_SIDE | {"converters", "predicates", "transforms"},
    "testing": PLUGIN_SIDE | {"converters", "predicates", "transforms", "handling"},
    "connectors": PLUGIN_SIDE | {"testing"},
    "hosts": PLUGIN_SIDE
    | {"converters", "predicates", "transforms", "handling", "levels", "lifecycle", "naming"}
    | {"channel", "worker"},
    "data": PLUGIN_SIDE
    | {"channel", "converters", "handling", "hosts", "levels", "lifecycle", "naming", "worker"},
}

#: What may import PySpark: the supervisor never does, nor does a plugin's process.
MAY_IMPORT_SPARK = {"data"}

#: What may import the runtime.
MAY_IMPORT_RUNTIME = {"data"}

#: What runs in the supervisor.
CONTROL_PLANE = (
    "naming",
    "levels",
    "lifecycle",
    "log",
    "assignment",
    "coordination",
    "worker",
    "rest",
    "running",
)

MODULES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def part_of(module: Path) -> str:
    return module.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(module: Path) -> list[list[str]]:
    return [name.split(".") for name in names_imported(module)]


def parts_imported(module: Path) -> set[str]:
    return {
        name[2]
        for name in imported(module)
        if name[:2] == ["headrace", "connect"] and name[2:] and name[2] in MAY_IMPORT
    }


def test_every_part_has_its_place() -> None:
    assert {part_of(module) for module in MODULES} <= set(MAY_IMPORT)


def test_modules_import_only_what_their_parts_may() -> None:
    found = {
        str(module.relative_to(ROOT)): other
        for module in MODULES
        if (other := parts_imported(module) - MAY_IMPORT[part_of(module)] - {part_of(module)})
    }
    assert found == {}


def test_spark_and_the_runtime_are_imported_by_the_data_plane_only() -> None:
    found = []
    for module in MODULES:
        parts = {name[1] for name in imported(module) if name[0] == "headrace" and name[1:]}
        roots = {name[0] for name in imported(module)}
        part = part_of(module)
        runtime = part not in MAY_IMPORT_RUNTIME and "runtime" in parts
        spark = part not in MAY_IMPORT_SPARK and ("spark" in parts or "pyspark" in roots)
        if runtime or spark:
            found.append(str(module.relative_to(ROOT)))
    assert found == []


@pytest.mark.requirement(19)
@pytest.mark.parametrize("part", CONTROL_PLANE)
def test_control_plane_loads_no_client_library_of_data_no_converter_and_no_spark(
    part: str,
) -> None:
    if not (ROOT / part).exists() and not (ROOT / f"{part}.py").exists():
        return
    program = f"import sys, headrace.connect.{part}\nprint(*sys.modules, sep='\\n')"
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(answer.stdout.split())
    forbidden = ["converters", "transforms", "handling", "connectors", "data"]
    assert not loaded & {f"headrace.connect.{name}" for name in forbidden}
    assert not {name.split(".")[0] for name in loaded} & {"pyspark", "pyarrow", "pandas"}
