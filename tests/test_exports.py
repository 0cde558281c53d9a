"""``__all__`` of every face of a package tells the truth, and stands nowhere else."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType

import headrace
from tests.house.figures import modules_with_names


def public_modules() -> list[str]:
    names = [module.name for module in pkgutil.walk_packages(headrace.__path__, "headrace.")]
    return ["headrace", *(name for name in names if "._" not in name)]


def public_names(module: ModuleType) -> set[str]:
    """What a package's face gives, apart from its submodules."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__.startswith("headrace")
    }


def faces() -> dict[str, ModuleType]:
    found = {name: importlib.import_module(name) for name in public_modules()}
    return {name: module for name, module in found.items() if hasattr(module, "__path__")}


def test_all_names_what_is_there() -> None:
    found = {
        name: missing or "a name stands there twice"
        for name, module in faces().items()
        if (missing := [one for one in module.__all__ if not hasattr(module, one)])
        or len(set(module.__all__)) < len(module.__all__)
    }
    assert found == {}


def test_only_faces_of_packages_say_what_they_give() -> None:
    assert [module.name for module in modules_with_names()] == []


def test_faces_of_packages_name_all_that_they_give() -> None:
    found = {
        name: left_out
        for name, module in faces().items()
        if (left_out := public_names(module) - {*module.__all__})
    }
    assert found == {}


def test_methods_of_the_front_doors_neither_take_nor_give_just_anything() -> None:
    found = [
        f"{name}.{method}"
        for face in ("headrace.client", "headrace.streams")
        for name in importlib.import_module(face).__all__
        if inspect.isclass(kind := getattr(importlib.import_module(face), name))
        for method, function in inspect.getmembers(kind, inspect.isfunction)
        if not method.startswith("_") and "Any" in function.__annotations__.values()
    ]
    assert found == ["Accumulator.restore", "Accumulator.state"]


def test_exported_things_are_described() -> None:
    found = [
        f"{name}.{one}"
        for name, module in faces().items()
        for one in module.__all__
        if inspect.isclass(thing := getattr(module, one)) or inspect.isfunction(thing)
        if not inspect.getdoc(thing)
    ]
    assert found == []
