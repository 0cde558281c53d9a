"""``__all__`` of every public module tells the truth."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType

import pytest

import headrace


def public_modules() -> list[str]:
    names = [module.name for module in pkgutil.walk_packages(headrace.__path__, "headrace.")]
    return ["headrace", *(name for name in names if "._" not in name)]


def defined_in(module: ModuleType) -> set[str]:
    """Public classes and functions whose home is this very module."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    }


@pytest.mark.parametrize("name", public_modules())
def test_all_names_what_the_module_gives(name: str) -> None:
    module = importlib.import_module(name)
    exported: list[str] = module.__all__
    assert len(set(exported)) == len(exported)
    assert [one for one in exported if not hasattr(module, one)] == []
    # A script's main() is found by its name, not by an import.
    assert defined_in(module) - {"main"} <= set(exported)


@pytest.mark.parametrize("name", public_modules())
def test_exported_things_are_described(name: str) -> None:
    module = importlib.import_module(name)
    things = {one: getattr(module, one) for one in module.__all__}
    code = {one: thing for one, thing in things.items() if inspect.isclass(thing)} | {
        one: thing for one, thing in things.items() if inspect.isfunction(thing)
    }
    assert [one for one, thing in code.items() if not inspect.getdoc(thing)] == []
