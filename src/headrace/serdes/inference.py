"""Serdes from types: what annotations say about a value, and which serde follows."""

from __future__ import annotations

import functools
import types
import typing
from collections import abc
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from headrace.encoding import PLAIN_TYPES
from headrace.serdes._documents import PlainSerde
from headrace.serdes._scalars import BytesSerde, FloatSerde, IntSerde, StringSerde

if TYPE_CHECKING:
    from headrace.serdes.base import Serde

__all__ = ["hint_name", "item_hint", "pair_hints", "result_hint", "serde_for", "type_arguments"]

_PLAIN: Final = PlainSerde()
_BY_TYPE: Final[dict[Any, Serde[Any]]] = {
    bytes: BytesSerde(),
    str: StringSerde(),
    int: IntSerde(),
    float: FloatSerde(),
}
#: Annotations that leave the type open.
_OPEN_MODULES = frozenset({"typing", "typing_extensions", "collections.abc"})


def serde_for(hint: Any) -> Serde[Any] | None:
    """Choose the serde for a type; None when the type is known and no serde is.

    Examples
    --------
    >>> serde_for(str), serde_for(dict[str, int]), serde_for(Any)
    (string, plain, plain)
    >>> serde_for(range) is None
    True
    """
    try:
        known = _BY_TYPE.get(hint)
    except TypeError:
        known = None
    if known is not None:
        return known
    return _PLAIN if _is_plain(hint) else None


def _is_plain(hint: Any) -> bool:
    if hint is None or hint is Any or hint is object or isinstance(hint, TypeVar | str):
        return True
    if isinstance(hint, typing.NewType):
        return _is_plain(hint.__supertype__)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return True
    if origin is typing.Annotated:
        return _is_plain(arguments[0])
    if origin in (typing.Union, types.UnionType) or origin in PLAIN_TYPES:
        return all(_is_plain(argument) for argument in arguments if argument is not Ellipsis)
    return _is_plain_class(hint if origin is None else origin)


def _is_plain_class(kind: Any) -> bool:
    if not isinstance(kind, type) or kind in PLAIN_TYPES:
        return True
    if typing.is_typeddict(kind):
        return all(map(_is_plain, typing.get_type_hints(kind).values()))
    return kind.__module__ in _OPEN_MODULES or bool(getattr(kind, "_is_protocol", False))


def result_hint(function: Callable[..., Any], names: Mapping[str, Any] | None = None) -> Any:
    """Give the type that a callable's annotations promise, ``Any`` where they say nothing.

    Parameters
    ----------
    function
        A function, a class, a partial, or an object that can be called.
    names
        Local names that the annotations may use besides the module's.

    Examples
    --------
    >>> def length(word: str) -> int:
    ...     return len(word)
    >>> result_hint(length), result_hint(str), result_hint(lambda word: word)
    (<class 'int'>, <class 'str'>, typing.Any)
    """
    if isinstance(function, type):
        return function
    while isinstance(function, functools.partial):
        function = function.func
    if not isinstance(function, types.FunctionType | types.MethodType | types.BuiltinFunctionType):
        function = getattr(type(function), "__call__", function)  # noqa: B004 - the method itself
    try:
        hints = typing.get_type_hints(function, localns=dict(names or {}))
    except Exception:  # noqa: BLE001 - annotations are the user's code: any may fail, none matters
        return Any
    return hints.get("return", Any)


def type_arguments(hint: Any, kind: type) -> tuple[Any, ...] | None:
    """Give the arguments of ``kind[...]``, none for ``kind`` alone, None for another type."""
    if hint is kind:
        return ()
    return typing.get_args(hint) if typing.get_origin(hint) is kind else None


def item_hint(hint: Any) -> Any:
    """Give the type of what an iterable of this type yields.

    Examples
    --------
    >>> item_hint(list[int]), item_hint(dict[str, int]), item_hint(Any)
    (<class 'int'>, <class 'str'>, typing.Any)
    """
    if hint is str:
        return str
    if hint is bytes:
        return int
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        present = [argument for argument in arguments if argument is not type(None)]
        return item_hint(present[0]) if len(present) == 1 else Any
    if not arguments or not isinstance(origin, type) or not issubclass(origin, abc.Iterable):
        return Any
    if origin is tuple and Ellipsis not in arguments:
        return functools.reduce(lambda left, right: left | right, arguments)
    return arguments[0]


def pair_hints(hint: Any) -> tuple[Any, Any]:
    """Give the types of key and value of a pair.

    Examples
    --------
    >>> pair_hints(tuple[str, int]), pair_hints(Any)
    ((<class 'str'>, <class 'int'>), (typing.Any, typing.Any))
    """
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple and len(arguments) == 2 and Ellipsis not in arguments:
        return arguments[0], arguments[1]
    return Any, Any


def hint_name(hint: Any) -> str:
    """Name a type as a reader knows it.

    Examples
    --------
    >>> hint_name(int), hint_name(list[int]), hint_name(Any)
    ('int', 'list[int]', 'unknown')
    """
    if hint is Any:
        return "unknown"
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__qualname__.rpartition("<locals>.")[2]
    return str(hint).replace("typing.", "")
