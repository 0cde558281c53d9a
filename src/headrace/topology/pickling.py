"""The check that every operator can be sent to the processes that run it."""

from __future__ import annotations

import functools
import pickle
import struct
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from headrace.errors import TopologyError, refuse
from headrace.serdes import Serde

if TYPE_CHECKING:
    from types import ModuleType

    from headrace.topology.operators.core import Operator


# How aggregates that keep records write them: each after its mark.

V = TypeVar("V")

_HEAD = struct.Struct("<qI")


class EntriesSerde(Serde[list[tuple[int, V]]]):
    """Writes numbered values: for each its number (i64), its size (u32) and its bytes.

    Parameters
    ----------
    values
        Writes the values.
    """

    def __init__(self, values: Serde[V]) -> None:
        self._values = values

    def __repr__(self) -> str:
        return f"entries of {self._values!r}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EntriesSerde) and repr(other) == repr(self)

    def __hash__(self) -> int:
        return hash(repr(self))

    def serialize(self, value: list[tuple[int, V]]) -> bytes:
        """Write one list."""
        parts: list[bytes] = []
        for number, item in value:
            body = self._values.serialize(item)
            parts += (_HEAD.pack(number, len(body)), body)
        return b"".join(parts)

    def deserialize(self, data: bytes) -> list[tuple[int, V]]:
        """Read one list."""
        numbers, bodies = _split(data)
        return list(zip(numbers, map(self._values.deserialize, bodies), strict=True))

    def serialize_many(self, values: list[list[tuple[int, V]]]) -> pa.BinaryArray:
        """Write many lists, their values all at once."""
        bodies = self._values.serialize_many([item for entries in values for _, item in entries])
        return pa.array(_joined(values, bodies.to_pylist()), pa.binary())

    def deserialize_many(self, data: pa.BinaryArray) -> list[list[tuple[int, V]]]:
        """Read many lists, their values all at once."""
        lists = [_split(each) for each in data.to_pylist()]
        bodies = [body for _, found in lists for body in found]
        items = iter(self._values.deserialize_many(pa.array(bodies, pa.binary())))
        return [[(number, next(items)) for number in numbers] for numbers, _ in lists]


def _joined(lists: Sequence[Sequence[tuple[int, Any]]], bodies: list[bytes]) -> list[bytes]:
    joined: list[bytes] = []
    at = 0
    for entries in lists:
        parts: list[bytes] = []
        for number, _ in entries:
            body = bodies[at]
            at += 1
            parts += (_HEAD.pack(number, len(body)), body)
        joined.append(b"".join(parts))
    return joined


def _split(data: bytes) -> tuple[list[int], list[bytes]]:
    numbers: list[int] = []
    bodies: list[bytes] = []
    at = 0
    while at < len(data):
        number, size = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if at + size > len(data):
            message = f"an entry of {size} bytes is cut off after {len(data) - at}"
            raise ValueError(message)
        numbers.append(number)
        bodies.append(data[at : at + size])
        at += size
    return numbers, bodies


def check_pickling(operators: tuple[Operator, ...]) -> None:
    """Refuse operators that cannot be sent to Spark's workers.

    Raises
    ------
    TopologyError
        An operator cannot be sent; the error names each one, its line and the variable at fault.
    """
    dumps = _dumps()
    failures = [(operator, _failure(dumps, operator)) for operator in operators]
    refuse(
        "the topology cannot be sent to Spark's workers",
        [_unpicklable(dumps, each, why) for each, why in failures if why is not None],
    )


@functools.cache
def _cloudpickle() -> ModuleType | None:
    """Load Spark's copy of cloudpickle, without the rest of PySpark.

    Spark pickles functions by value with this copy, so what it cannot pickle, Spark cannot send.
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
    # A copy that is already loaded knows which modules the program asked to pickle by value.
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
    """Find the innermost object that cannot be pickled; return its type and where it is held."""
    if id(value) in seen or _failure(dumps, value) is None:
        return None
    seen.add(id(value))
    for name, held in _held(value):
        # The line of a function says more than the path to the function.
        inner = name if isinstance(value, types.FunctionType) else f"{name} of {place}"
        found = _culprit(dumps, held, inner, seen)
        if found is not None:
            return found
    return f"the {type(value).__module__}.{type(value).__qualname__} in {place}"


def _held(value: object) -> Iterator[tuple[str, object]]:
    """Yield what a function, method, partial or object holds, with its name."""
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
