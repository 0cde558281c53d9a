"""The check that every operator can travel to the processes that run it."""

from __future__ import annotations

import functools
import importlib
import pickle
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from headrace.errors import TopologyError

if TYPE_CHECKING:
    from headrace.topology.operators import Operator

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


def _dumps() -> Callable[[Any], bytes]:
    # Spark pickles functions by value with its own copy of cloudpickle; what that cannot do,
    # Spark cannot do.
    for module in ("pyspark.cloudpickle", "cloudpickle"):
        try:
            dumps: Callable[[Any], bytes] = importlib.import_module(module).dumps
            return dumps
        except ImportError:
            continue
    return pickle.dumps


def _failure(dumps: Callable[[Any], bytes], value: object) -> Exception | None:
    try:
        dumps(value)
    except Exception as error:  # noqa: BLE001 - __reduce__ of any class may raise anything
        return error
    return None


def _unpicklable(
    dumps: Callable[[Any], bytes], operator: Operator, failure: Exception
) -> TopologyError:
    places = [
        path
        for name in _fields(operator)
        for path in [_culprit(dumps, getattr(operator, name), f"its {name}", set())]
        if path is not None
    ]
    where = places[0] if places else "something in it"
    return TopologyError(
        f"operator '{operator.name}' (made at {operator.origin}) cannot be sent to Spark's workers:"
        f" {where} cannot be pickled ({type(failure).__name__}: {failure})",
        hint="make such an object inside the function, or in an importable module that the"
        " function imports",
    )


def _fields(operator: Operator) -> list[str]:
    return [name for kind in type(operator).__mro__ for name in getattr(kind, "__slots__", ())]


def _culprit(dumps: Callable[[Any], bytes], value: object, what: str, seen: set[int]) -> str | None:
    """Follow what cannot be pickled down to the variable that holds it."""
    if id(value) in seen or _failure(dumps, value) is None:
        return None
    seen.add(id(value))
    for name, held in _held(value):
        found = _culprit(dumps, held, name, seen)
        if found is not None:
            return found if found.startswith("variable") else f"{found} of {what}"
    if what.startswith("variable"):
        return f"{what}, a {type(value).__module__}.{type(value).__qualname__},"
    return f"{what}, {value!r:.80},"


def _held(value: object) -> Iterator[tuple[str, object]]:
    """Name what a function, method, partial or object holds."""
    if isinstance(value, functools.partial):
        yield "its function", value.func
        yield from ((f"argument {i}", item) for i, item in enumerate(value.args))
        yield from ((f"argument '{name}'", item) for name, item in value.keywords.items())
    elif isinstance(value, types.MethodType):
        yield f"the {type(value.__self__).__name__} of the method", value.__self__
    elif isinstance(value, types.FunctionType):
        place = f"{value.__code__.co_filename}:{value.__code__.co_firstlineno}"
        for name, held in _captured(value):
            yield f"variable '{name}' of the function at {place}", held
    elif isinstance(value, dict):
        yield from ((f"item {key!r}", item) for key, item in value.items())
    elif isinstance(value, list | tuple | set):
        yield from ((f"item {i}", item) for i, item in enumerate(value))
    elif not isinstance(value, type):
        for name, held in _attributes(value):
            yield f"attribute '{name}'", held


def _captured(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    for name, cell in cells:
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue
    yield from ((f"default {i}", item) for i, item in enumerate(function.__defaults__ or ()))
    yield from (function.__kwdefaults__ or {}).items()
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]


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
