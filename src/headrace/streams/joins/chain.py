"""Joins of two streams, and checks that all joins share."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, Unpack, overload

from headrace import serdes, topology
from headrace.columns.schema import members_of
from headrace.errors import TopologyError
from headrace.serdes.inference import hint_name, result_hint
from headrace.streams.flow import (
    Flow,
    NextOperator,
    ValueOptions,
    accepts,
    check_function,
    no_method,
)
from headrace.topology.callers import Caller, caller
from headrace.topology.windows import SessionWindows, TimeWindows, Windows, length_of

if TYPE_CHECKING:
    from headrace.serdes import Serde
    from headrace.streams.joins.results import JoinedStream


#: Why values of both sides need a serde.
KEPT = "keeps them in its state"


# Checks of the two sides of a join, and of the function that joins them.


def check_joiner(label: str, joiner: object, origin: topology.Origin) -> bool:
    """Check that a joiner can be called with both sides; return whether it takes the key too."""
    if callable(joiner) and accepts(joiner, 3) and not accepts(joiner, 2):
        check_function(label, joiner, ("key", "left", "right"), origin)
        return True
    check_function(label, joiner, ("left", "right"), origin)
    return False


def keyed_side(
    flow: Flow,
    selector: Callable[[Any], Any] | None,
    made_by: Caller,
    on_error: topology.ErrorPolicy = "fail",
) -> Flow:
    """Return the place after the operator that sets the key of one side.

    Two joins with the same selector share this operator.
    """
    if selector is None:
        flow.key.check_key("join")
        check_keyed(flow, "the join", made_by.origin)
        return flow
    check_function("join", selector, ("value",), made_by.origin)
    for known in flow.builder.operators:
        if (
            isinstance(known, topology.KeyBy)
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
    return step.add(topology.KeyBy(**step.fields, selector=selector, key_serde=serdes.key), key=key)


def check_keyed(flow: Flow, what: str, origin: topology.Origin) -> None:
    """Check that records may have keys.

    Raises
    ------
    TopologyError
        The records are known to have none.
    """
    if flow.key.hint is type(None):
        raise TopologyError(
            f"{what} at {origin} needs records with keys, but those of '{flow.operator}' have none",
            hint="name the key with key_by(...), or in a join with left_key and right_key; keys of"
            " messages are read by serdes.with_key(...)",
        )


def check_stream(what: str, given: object, origin: topology.Origin, *kinds: type) -> None:
    """Check that an argument is a stream, or of one of these other kinds.

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
        hint=hint or "for example the result of builder.source(topic, serde)",
    )


def _known_key(flow: Flow, name: str, selector: Callable[[Any], Any], made_by: Caller) -> Any:
    hint = result_hint(selector, made_by.names)
    return replace(flow.key, hint=hint, serde=None, operator=name, origin=made_by.origin)


def check_key_types(left: Flow, right: Flow, origin: topology.Origin) -> None:
    """Check that the keys of both sides can be equal.

    Raises
    ------
    TopologyError
        Their types are known and differ.
    """
    if not may_be_equal(left.key.hint, right.key.hint):
        raise TopologyError(
            f"the join at {origin} can find no pair: '{left.operator}' emits keys of type"
            f" {hint_name(left.key.hint)}, '{right.operator}' of type {hint_name(right.key.hint)}",
            hint="1, 1.0, True and '1' are four keys: use keys of one type on both sides, for"
            " example with left_key(...).right_key(...)",
        )


def check_one_builder(left: Flow, right: Flow, origin: topology.Origin) -> None:
    """Check that both sides belong to one builder.

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
    """Return whether keys of two types can be equal.

    Examples
    --------
    >>> may_be_equal(int, str), may_be_equal(int, bool), may_be_equal(str | None, str)
    (False, False, True)
    >>> may_be_equal(tuple[str, int], tuple[str, str]), may_be_equal(int, Any)
    (False, True)
    """
    lefts, rights = members_of(left), members_of(right)
    return any(_same_kind(one, other) for one in lefts for other in rights)


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
    """Return whether two functions have the same code, as equal lambdas on two lines do.

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


K = TypeVar("K")
K2 = TypeVar("K2")
V = TypeVar("V")
V2 = TypeVar("V2")
L = TypeVar("L")
R = TypeVar("R")
Out = TypeVar("Out")


@dataclass(frozen=True, slots=True)
class _Span:
    """Which records are joined: a kind of operator, and its bounds."""

    operator: type[topology.SidesJoin] = topology.LatestJoin
    bounds: tuple[tuple[str, Any], ...] = ()


class StreamJoin(Generic[K, V, V2, L, R]):
    """A join of two streams that :meth:`apply` completes.

    :meth:`Stream.join`, :meth:`Stream.left_join` and :meth:`Stream.outer_join` begin one.  Without
    :meth:`within` or :meth:`window`, each record is joined with the last value of the other side,
    however old it is.

    Parameters
    ----------
    left, right
        The two sides.
    kind
        Which unmatched records are returned: none (inner), left ones, or those of both sides
        (outer).
    """

    def __init__(self, left: Flow, right: Flow, kind: topology.JoinKind) -> None:
        self._left = left
        self._right = right
        self._kind: topology.JoinKind = kind
        self._left_key: Callable[[Any], Any] | None = None
        self._right_key: Callable[[Any], Any] | None = None
        self._span = _Span()
        self._grace = 0

    def __repr__(self) -> str:
        return f"<{self._kind} join of '{self._left.operator}' and '{self._right.operator}'>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_method(self, name)

    def left_key(self, selector: Callable[[V], K2]) -> StreamJoin[K2, V, V2, L, R]:
        """Set the key of the left side; the default is the records' own key.

        Parameters
        ----------
        selector
            Takes a left value and returns the key.
        """
        made: StreamJoin[K2, V, V2, L, R] = self._copy()
        made._left_key = selector
        return made

    def right_key(self, selector: Callable[[V2], K]) -> StreamJoin[K, V, V2, L, R]:
        """Set the key of the right side; the default is the records' own key.

        Parameters
        ----------
        selector
            Takes a right value and returns the key.
        """
        made: StreamJoin[K, V, V2, L, R] = self._copy()
        made._right_key = selector
        return made

    def within(
        self, before: timedelta | str, after: timedelta | str | None = None
    ) -> StreamJoin[K, V, V2, L, R]:
        """Join records whose times are close.

        Parameters
        ----------
        before
            How much earlier than the left record the right one may be.
        after
            How much later it may be; as much as ``before`` by default.

        Raises
        ------
        TopologyError
            The interval is empty.
        """
        early = _milliseconds(before, "within")
        late = early if after is None else _milliseconds(after, "within")
        if early + late < 0:
            raise TopologyError(
                f"within at {caller().origin}: the interval from {early} ms before a record to"
                f" {late} ms after it is empty",
                hint="before and after count in opposite directions; one may be negative, but not"
                " their sum",
            )
        made: StreamJoin[K, V, V2, L, R] = self._copy()
        made._span = _Span(topology.IntervalJoin, (("before", early), ("after", late)))
        return made

    def window(self, windows: Windows) -> StreamJoin[K, V, V2, L, R]:
        """Join records that share a window, once for each window that they share.

        Parameters
        ----------
        windows
            Tumbling or hopping windows, or sessions, which the records of both sides form together.

        Raises
        ------
        TopologyError
            The windows are of another kind.
        """
        if isinstance(windows, TimeWindows):
            span = _Span(topology.WindowJoin, (("windows", windows),))
        elif isinstance(windows, SessionWindows):
            span = _Span(topology.SessionJoin, (("gap", windows.gap),))
        else:
            raise TopologyError(
                f"window at {caller().origin}: a join cannot use windows of the kind '{windows}'",
                hint="use tumbling(...), hopping(...) or session(...), or within(before, after)",
            )
        made: StreamJoin[K, V, V2, L, R] = self._copy()
        made._span = span
        return made

    def grace(self, grace: timedelta | str) -> StreamJoin[K, V, V2, L, R]:
        """Wait longer for late records, and before a record counts as unmatched.

        Parameters
        ----------
        grace
            How much longer.
        """
        made: StreamJoin[K, V, V2, L, R] = self._copy()
        made._grace = _milliseconds(grace, "grace")
        return made

    @overload
    def apply(
        self, joiner: Callable[[L, R], Out], **options: Unpack[ValueOptions[Out]]
    ) -> JoinedStream[K, Out]: ...
    @overload
    def apply(
        self, joiner: Callable[[K, L, R], Out], **options: Unpack[ValueOptions[Out]]
    ) -> JoinedStream[K, Out]: ...
    def apply(
        self,
        joiner: Callable[[L, R], Out] | Callable[[K, L, R], Out],
        *,
        name: str | None = None,
        serde: Serde[Out] | None = None,
        on_error: topology.ErrorPolicy = "fail",
    ) -> JoinedStream[K, Out]:
        """Complete the join.

        Parameters
        ----------
        joiner
            Takes the left and the right value, or the key and both; a missing side is None.
        name
            Name of the operator that keeps both sides, and of its state store.
        serde
            Serializes the results.
        on_error
            What happens if the joiner or a key selector raises; see :class:`Stream`.

        Raises
        ------
        TopologyError
            The keys of a side are missing, the keys of both sides are of different types, the
            streams belong to different builders, or the joiner takes other arguments.

        Examples
        --------
        >>> from datetime import timedelta
        >>> from headrace import StreamBuilder, serdes
        >>> builder = StreamBuilder("job")
        >>> orders = builder.source("orders", serdes.json)
        >>> payments = builder.source("payments", serdes.json)
        >>> (
        ...     orders.left_join(payments)
        ...     .left_key(lambda order: order["id"])
        ...     .right_key(lambda payment: payment["order"])
        ...     .within(timedelta(minutes=10))
        ...     .apply(lambda order, payment: {**order, "paid": payment is not None})
        ... )
        <keyed stream 'joined-orders-payments'>
        """
        from headrace.streams.joins.results import JoinedStream

        made_by = caller()
        takes_key = check_joiner(self._kind, joiner, made_by.origin)
        left, right = self._keyed_sides(on_error)
        place = replace(left, place=f"{left.place}-{right.place}")
        kept = self._kept(place.begin("join", name, made_by), left, right)
        meetings = replace(place, operator=kept)
        step = meetings.begin("joined", None if name is None else f"{name}-joined", made_by)
        known = step.known(result_hint(joiner, made_by.names), serde)
        operator = topology.Joined(
            **{**step.fields, "on_error": on_error},
            kind=self._kind,
            function=joiner,
            takes_key=takes_key,
        )
        return JoinedStream(step.add(operator, value=known), meetings)

    def described(
        self,
        *,
        left_key: Callable[[Any], Any] | None = None,
        right_key: Callable[[Any], Any] | None = None,
        within: timedelta | str | tuple[timedelta | str, timedelta | str] | None = None,
        window: Windows | None = None,
        grace: timedelta | str = timedelta(0),
    ) -> StreamJoin[Any, V, V2, L, R]:
        """Return the join with the options of its short form."""
        made: StreamJoin[Any, V, V2, L, R] = self._copy()
        if left_key is not None:
            made = made.left_key(left_key)
        if right_key is not None:
            made = made.right_key(right_key)
        if within is not None:
            made = made.within(*within) if isinstance(within, tuple) else made.within(within)
        if window is not None:
            made = made.window(window)
        return made.grace(grace)

    def _copy(self) -> StreamJoin[Any, V, V2, L, R]:
        return copy(self)

    def _keyed_sides(self, on_error: topology.ErrorPolicy) -> tuple[Flow, Flow]:
        made_by = caller()
        check_one_builder(self._left, self._right, made_by.origin)
        if (self._left_key is None) != (self._right_key is None):
            given, missing = "left_key(...)", "right_key(...)"
            if self._left_key is None:
                given, missing = missing, given
            raise TopologyError(
                f"the join at {made_by.origin} has {given} but no {missing}",
                hint="name the keys of both sides, or neither if the records already have them",
            )
        left = keyed_side(self._left, self._left_key, made_by, on_error)
        right = keyed_side(self._right, self._right_key, made_by, on_error)
        check_key_types(left, right, made_by.origin)
        return left, right

    def _kept(self, step: NextOperator, left: Flow, right: Flow) -> str:
        """Add the operator that keeps both sides, or find an equal one; return its name."""
        bounds: dict[str, Any] = dict(self._span.bounds)
        if self._span.operator is not topology.LatestJoin:
            bounds["grace"] = self._grace
        wanted = self._span.operator(
            **{**step.fields, "parents": (left.operator, right.operator)},
            key_serde=serdes.key,
            left_serde=left.value.needed_serde(step.name, KEPT),
            right_serde=right.value.needed_serde(step.name, KEPT),
            alone=topology.ALONE[self._kind],
            **bounds,
        )
        builder = step.flow.builder
        for known in builder.operators:
            if isinstance(known, topology.SidesJoin) and _like(known, wanted) == wanted:
                builder.replace(replace(known, alone=known.alone | wanted.alone))
                return known.name
        builder.add(wanted)
        return step.name


def _like(known: topology.SidesJoin, wanted: topology.SidesJoin) -> topology.SidesJoin:
    return replace(known, name=wanted.name, alone=wanted.alone)


def _milliseconds(given: timedelta | str, what: str) -> int:
    length = length_of(given, f"{what} at {caller().origin}", timedelta.min)
    return length // timedelta(milliseconds=1)
