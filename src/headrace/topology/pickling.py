"""The check that every operator can travel to the processes that run it."""

from __future__ import annotations

import functools
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import TopologyError

if TYPE_CHECKING:
    from types import ModuleType

    from headrace.topology.operators.core import Operator

__all__ = ["check_pickling"]


def check_pickling(operators: tuple[Operator, ...]) -> None:
    """Refuse operators that cannot be sent to Spark's workers.

    Raises
    ------
    TopologyError
        Names the operator, the user's line and the variable that cannot be pickled.
    """
    dumps = _dumps()
    for operator in operators:
        failure = _failure(dumps, operator)
        if failure is not None:
            raise _unpicklable(dumps, operator, failure)


@functools.cache
def _cloudpickle() -> ModuleType | None:
    """Load Spark's copy of cloudpickle, without the rest of PySpark.

    Spark pickles functions by value with a copy of its own; what that cannot do, Spark cannot do.
    """
    package = find_spec("pyspark")
    if package is None or not package.submodule_search_locations:
        return None
    path = Path(package.submodule_search_locations[0], "cloudpickle", "cloudpickle.py")
    spec = spec_from_file_location("headrace.topology._cloudpickle", path)
    if spec is None or spec.loader is None or not path.exists():
        return None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _dumps() -> Callable[[Any], bytes]:
    # What was loaded by others knows which modules they asked to pickle by value.
    module = sys.modules.get("pyspark.cloudpickle") or _cloudpickle() or pickle
    dumps: Callable[[Any], bytes] = module.dumps
    return dumps


def _failure(dumps: Callable[[Any], bytes], value: object) -> Exception | None:
    try:
        dumps(value)
    except Exception as error:  # noqa: BLE001 - __reduce__ of any class may raise anything
        return error
    return None


def _unpicklable(
    dumps: Callable[[Any], bytes], operator: Operator, failure: Exception
) -> TopologyError:
    found = (
        _culprit(dumps, getattr(operator, field.name), f"its {field.name}", set())
        for field in fields(operator)
    )
    what = next(filter(None, found), "something in it")
    return TopologyError(
        f"operator '{operator.name}' (made at {operator.origin}) cannot be sent to Spark's workers:"
        f" {what} cannot be pickled ({type(failure).__name__}: {failure})",
        hint="make such an object inside the function, or in an importable module that the"
        " function imports",
    )


def _culprit(
    dumps: Callable[[Any], bytes], value: object, place: str, seen: set[int]
) -> str | None:
    """Follow what cannot be pickled down to the innermost thing, and say where it is held."""
    if id(value) in seen or _failure(dumps, value) is None:
        return None
    seen.add(id(value))
    for name, held in _held(value):
        # A function's line says more than the way to the function.
        inner = name if isinstance(value, types.FunctionType) else f"{name} of {place}"
        found = _culprit(dumps, held, inner, seen)
        if found is not None:
            return found
    return f"the {type(value).__module__}.{type(value).__qualname__} in {place}"


def _held(value: object) -> Iterator[tuple[str, object]]:
    """Name what a function, method, partial or object holds."""
    if isinstance(value, functools.partial):
        yield "the partial function", value.func
        yield from ((f"argument {i}", item) for i, item in enumerate(value.args))
        yield from ((f"argument '{name}'", item) for name, item in value.keywords.items())
    elif isinstance(value, types.MethodType):
        yield f"the object of method '{value.__func__.__name__}'", value.__self__
    elif isinstance(value, types.FunctionType):
        place = f"{value.__code__.co_filename}:{value.__code__.co_firstlineno}"
        for name, held in _captured(value):
            yield f"{name} of the function at {place}", held
    elif isinstance(value, dict):
        yield from ((f"item {key!r}", item) for key, item in value.items())
    elif isinstance(value, list | tuple | set):
        yield from ((f"item {i}", item) for i, item in enumerate(value))
    elif not isinstance(value, type):
        for name, held in _attributes(value):
            yield f"attribute '{name}'", held


def _captured(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"variable '{name}'", cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    defaults = function.__defaults__ or ()
    named = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    for name, value in [
        *zip(named, defaults, strict=True),
        *(function.__kwdefaults__ or {}).items(),
    ]:
        yield f"the default of parameter '{name}'", value
    for name in _global_names(code):
        if name in function.__globals__:
            yield f"variable '{name}'", function.__globals__[name]


def _global_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if isinstance(name, str) and hasattr(value, name):
                yield name, getattr(value, name)
