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


def packages() -> list[str]:
    return [name for name in public_modules() if hasattr(importlib.import_module(name), "__path__")]


def public_names(module: ModuleType) -> set[str]:
    """What a package's face gives, apart from its submodules."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__.startswith("headrace")
    }


@pytest.mark.parametrize("name", public_modules())
def test_all_names_what_is_there(name: str) -> None:
    module = importlib.import_module(name)
    exported: list[str] = module.__all__
    assert len(set(exported)) == len(exported)
    assert [one for one in exported if not hasattr(module, one)] == []


@pytest.mark.parametrize("name", packages())
def test_face_of_a_package_names_all_that_it_gives(name: str) -> None:
    module = importlib.import_module(name)
    assert public_names(module) <= set(module.__all__)


@pytest.mark.parametrize("name", public_modules())
def test_exported_things_are_described(name: str) -> None:
    module = importlib.import_module(name)
    things = {one: getattr(module, one) for one in module.__all__}
    code = {one: thing for one, thing in things.items() if inspect.isclass(thing)} | {
        one: thing for one, thing in things.items() if inspect.isfunction(thing)
    }
    assert [one for one, thing in code.items() if not inspect.getdoc(thing)] == []
