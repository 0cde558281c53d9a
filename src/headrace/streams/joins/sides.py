"""What joins ask of their sides: keys that can be equal, and a function that takes both."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace import serdes
from headrace.errors import TopologyError
from headrace.serdes.inference import hint_name, result_hint
from headrace.streams._calls import accepts, check_function
from headrace.topology import KeyBy

if TYPE_CHECKING:
    from headrace.streams._calls import Caller
    from headrace.streams._flow import Flow
    from headrace.topology import ErrorPolicy, Origin

__all__ = [
    "check_joiner",
    "check_key_types",
    "check_keyed",
    "check_one_builder",
    "check_stream",
    "keyed_side",
    "may_be_equal",
    "same_function",
]


def check_joiner(label: str, joiner: object, origin: Origin) -> bool:
    """Refuse what cannot be called with both sides; tell whether it takes the key too."""
    if callable(joiner) and accepts(joiner, 3) and not accepts(joiner, 2):
        check_function(label, joiner, ("key", "left", "right"), origin)
        return True
    check_function(label, joiner, ("left", "right"), origin)
    return False


def keyed_side(
    flow: Flow,
    selector: Callable[[Any], Any] | None,
    made_by: Caller,
    on_error: ErrorPolicy = "fail",
) -> Flow:
    """Give the place behind the operator that sets the side's key.

    Two joins that go by the same function share it.
    """
    if selector is None:
        flow.key.check_key("join")
        check_keyed(flow, "the join", made_by.origin)
        return flow
    check_function("join", selector, ("value",), made_by.origin)
    for known in flow.builder.operators:
        if (
            isinstance(known, KeyBy)
            and known.parents == (flow.operator,)
            and not (known.output or known.takes_key)
            and known.on_error == on_error
            and same_function(known.selector, selector)
        ):
            key = _known_key(flow, known.name, selector, made_by)
            return replace(flow, operator=known.name, key=key)
    step = flow.begin("key_by", None, made_by, on_error=on_error)
    key = _known_key(flow, step.name, selector, made_by)
    key.check_key(step.name)
    return step.add(KeyBy(**step.fields, selector=selector, key_serde=serdes.key), key=key)


def check_keyed(flow: Flow, what: str, origin: Origin) -> None:
    """Refuse records of which it is known that they have no keys.

    Raises
    ------
    TopologyError
        None of them has one.
    """
    if flow.key.hint is type(None):
        raise TopologyError(
            f"{what} at {origin} needs records with keys, and '{flow.operator}' gives none",
            hint="name the key with key_by(...), or in a join with where and equal_to; keys of"
            " messages are read by serdes.with_key(...)",
        )


def check_stream(what: str, given: object, origin: Origin, *kinds: type) -> None:
    """Refuse what is no stream, or of none of these other kinds.

    Raises
    ------
    TopologyError
        It is something else.
    """
    from headrace.streams.stream import Stream

    if isinstance(given, (Stream, *kinds)):
        return
    names = " or ".join(kind.__name__ for kind in (Stream, *kinds))
    hint = "a table becomes a stream with to_stream()" if hasattr(given, "to_stream") else None
    raise TopologyError(
        f"{what} at {origin} takes a {names}, not {given!r:.100}",
        hint=hint or "for example what builder.source(topic, serde) gives",
    )


def _known_key(flow: Flow, name: str, selector: Callable[[Any], Any], made_by: Caller) -> Any:
    hint = result_hint(selector, made_by.names)
    return replace(flow.key, hint=hint, serde=None, operator=name, origin=made_by.origin)


def check_key_types(left: Flow, right: Flow, origin: Origin) -> None:
    """Refuse sides whose keys can never be equal.

    Raises
    ------
    TopologyError
        Their types are known and differ.
    """
    if not may_be_equal(left.key.hint, right.key.hint):
        raise TopologyError(
            f"the join at {origin} can find no pair: '{left.operator}' gives keys of type"
            f" {hint_name(left.key.hint)}, '{right.operator}' of type {hint_name(right.key.hint)}",
            hint="1, 1.0, True and '1' are four keys: let both sides give one type, for example"
            " by where(...).equal_to(...)",
        )


def check_one_builder(left: Flow, right: Flow, origin: Origin) -> None:
    """Refuse sides that no job could have together.

    Raises
    ------
    TopologyError
        They belong to different builders.
    """
    if left.builder is not right.builder:
        raise TopologyError(
            f"the join at {origin} takes sides of two builders, '{left.builder.name}' and"
            f" '{right.builder.name}'",
            hint="a job reads all its topics through one StreamBuilder",
        )


def may_be_equal(left: Any, right: Any) -> bool:
    """Tell whether keys of two types can be the same key.

    Examples
    --------
    >>> may_be_equal(int, str), may_be_equal(int, bool), may_be_equal(str | None, str)
    (False, False, True)
    >>> may_be_equal(tuple[str, int], tuple[str, str]), may_be_equal(int, Any)
    (False, True)
    """
    lefts, rights = _members(left), _members(right)
    return any(_same_kind(one, other) for one in lefts for other in rights)


def _members(hint: Any) -> list[Any]:
    while isinstance(hint, typing.NewType):
        hint = hint.__supertype__
    if typing.get_origin(hint) is typing.Annotated:
        return _members(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        present = [member for member in typing.get_args(hint) if member is not type(None)]
        return [each for member in present for each in _members(member)]
    if typing.get_origin(hint) is typing.Literal:
        return [type(value) for value in typing.get_args(hint)]
    return [hint]


def _same_kind(left: Any, right: Any) -> bool:
    kinds = typing.get_origin(left) or left, typing.get_origin(right) or right
    if any(not isinstance(kind, type) or kind in (Any, object) for kind in kinds):
        return True
    if kinds[0] is not kinds[1]:
        return False
    ours, theirs = typing.get_args(left), typing.get_args(right)
    if kinds[0] is not tuple or not ours or not theirs or Ellipsis in (*ours, *theirs):
        return True
    return len(ours) == len(theirs) and all(map(may_be_equal, ours, theirs))


def same_function(one: object, other: object) -> bool:
    """Tell whether two functions do the same, as two equal lambdas on two lines do.

    Examples
    --------
    >>> same_function(lambda x: x["id"], lambda x: x["id"])
    True
    >>> same_function(lambda x: x["id"], lambda x: x["name"])
    False
    """
    if one is other:
        return True
    if not isinstance(one, types.FunctionType) or not isinstance(other, types.FunctionType):
        return False
    return (
        one.__globals__ is other.__globals__
        and _same_code(one.__code__, other.__code__)
        and not any(map(_remembers, (one, other)))
    )


def _remembers(function: types.FunctionType) -> bool:
    return bool(function.__defaults__ or function.__kwdefaults__ or function.__closure__)


def _same_code(one: types.CodeType, other: types.CodeType) -> bool:
    names = ("co_code", "co_names", "co_varnames", "co_argcount", "co_flags", "co_kwonlyargcount")
    return (
        all(getattr(one, name) == getattr(other, name) for name in names)
        and len(one.co_consts) == len(other.co_consts)
        and all(map(_same_constant, one.co_consts, other.co_consts))
    )


def _same_constant(one: object, other: object) -> bool:
    return type(one) is type(other) and repr(one) == repr(other) and one == other
