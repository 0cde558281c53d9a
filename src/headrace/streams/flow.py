"""Places in the graph of a builder, and what the operators that are added there share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar

from headrace.errors import TopologyError
from headrace.serdes import NullableSerde, Serde, inference, plain
from headrace.serdes.messages import callable_name, required_parameters
from headrace.topology import Emit, ErrorPolicy, Operator, Origin, RecordFunction, WindowedSerde
from headrace.topology.callers import Caller, caller

if TYPE_CHECKING:
    from headrace.columns import Schema
    from headrace.streams.builder import StreamBuilder
    from headrace.topology.operators.windows import WindowEmit
    from headrace.topology.windows import Windows


# Checks of the functions that users pass to operators.


def check_record_function(
    label: str, function: object, origin: Origin, *, awaits: bool = False
) -> bool:
    """Check a function of the value, or of key and value; return whether it takes the key.

    A function with two required positional parameters takes key and value, any other the value.

    Raises
    ------
    TopologyError
        It is not callable, takes other arguments, or is a coroutine function that is not awaited.
    """
    takes_key = callable(function) and required_parameters(function) == 2
    parameters = ("key", "value") if takes_key else ("value",)
    check_function(label, function, parameters, origin, awaits=awaits)
    return takes_key


def record_function(label: str, function: Callable[..., Any], origin: Origin) -> RecordFunction:
    """Check a function of the value, or of key and value, and wrap it for an operator."""
    return RecordFunction(function, check_record_function(label, function, origin))


def check_function(
    label: str,
    function: object,
    parameters: tuple[str, ...],
    origin: Origin,
    *,
    awaits: bool = False,
) -> None:
    """Check that a function can be called with an operator's arguments.

    Raises
    ------
    TopologyError
        It is not callable, takes other arguments, or is a coroutine function that is not awaited.
    """
    call = f"function({', '.join(parameters)})"
    if not callable(function):
        raise TopologyError(
            f"{label} at {origin} needs a function, not {function!r:.100}",
            hint=f"it is called as {call}",
        )
    if inspect.iscoroutinefunction(function) and not awaits:
        raise TopologyError(
            f"{label} at {origin} cannot await {callable_name(function)}, a coroutine function",
            hint="pass an ordinary function, or call it with map_async",
        )
    if not accepts(function, len(parameters)):
        raise TopologyError(
            f"{label} at {origin} calls {call}, which {callable_name(function)} does not accept",
            hint=f"give it {len(parameters)} positional parameter"
            + ("s" if len(parameters) > 1 else ""),
        )


def accepts(function: Callable[..., Any], count: int) -> bool:
    """Return whether a function can be called with this many arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


# Places in the graph, and what is known of the keys and values there.


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of the keys, or of the values, that an operator makes."""

    hint: Any = Any
    #: The serde that ``serde=`` or the source names.
    serde: Serde[Any] | None = None
    #: The operator that made them.
    operator: str = ""
    origin: Origin | None = None
    #: The columns that operators over columns make; others follow from the serde or the type.
    columns: Schema | None = None

    def serde_or_plain(self) -> Serde[Any]:
        """Return the serde for them, that of plain data if none is known."""
        return self.serde or inference.serde_for(self.hint) or plain

    def simple_serde(self) -> Serde[Any] | None:
        """Return the serde that was declared, or that of plain data; None for other types.

        Caller: operators that keep no values but name their serde in the shape of their state,
        which must not change when a later release has a serde for one more type.
        """
        return self.serde or inference.plain_serde_for(self.hint)

    def needed_serde(self, needer: str, why: str) -> Serde[Any]:
        """Return the serde for them, or raise if there is none.

        Raises
        ------
        TopologyError
            Their type is known and has no serde.
        """
        serde = self.serde or inference.serde_for(self.hint)
        if serde is None:
            kind = inference.hint_name(self.hint)
            raise TopologyError(
                f"operator '{self.operator}' (made at {self.origin}) emits values of type {kind},"
                f" and '{needer}' {why}, but no serde is known for {kind}",
                hint=f"make {kind} a dataclass of types that have one, or name a serde where the"
                " values are made: serde=",
            )
        return serde

    def topic_serde(self, sink: str, origin: Origin) -> Serde[Any]:
        """Return the serde with which a sink that names none writes them.

        Raises
        ------
        TopologyError
            Their type is unknown, or has no serde.
        """
        serde = self.serde.inner if isinstance(self.serde, NullableSerde) else self.serde
        if isinstance(serde, WindowedSerde) or serde is inference.serde_for(
            inference.without_none(self.hint)
        ):
            # A serde that was chosen for use inside the job does not suit other readers.
            serde = None
        serde = serde or inference.topic_serde_for(self.hint)
        if serde is None:
            raise TopologyError(
                f"{sink} at {origin} names no serde, and operator '{self.operator}' (made at"
                f" {self.origin}) emits values of type {inference.hint_name(self.hint)}",
                hint="state their type where they are made, as in source(topic, Order)"
                " or 'def price(order: Order) -> Priced', or name a serde: sink(topic, serdes.json)",
            )
        return serde

    def check_key(self, needer: str) -> None:
        """Check that the keys are plain data if their type is known.

        Raises
        ------
        TopologyError
            Their type is known and has no canonical encoding.
        """
        if inference.plain_serde_for(self.hint) is None:
            kind = inference.hint_name(self.hint)
            raise TopologyError(
                f"operator '{self.operator}' (made at {self.origin}) emits keys of type {kind},"
                f" which '{needer}' cannot route: keys must be plain data, so that equal keys"
                " have equal bytes; serde= does not change that",
                hint=f"key by plain data that identifies the {kind}: a str, an int, or a tuple of"
                " these",
            )


@dataclass(frozen=True, slots=True)
class Flow:
    """A place in the graph of one builder."""

    builder: StreamBuilder
    #: The operator whose records flow here.
    operator: str
    #: The source after which operators here are named.
    place: str
    key: Known = field(default_factory=Known)
    value: Known = field(default_factory=Known)

    def begin(
        self,
        label: str,
        name: str | None,
        origin: Caller | None = None,
        *,
        on_error: ErrorPolicy = "fail",
    ) -> NextOperator:
        """Begin an operator that takes the records of this place."""
        made_by = caller() if origin is None else origin
        return NextOperator(self, self.builder.name_for(label, self.place, name), made_by, on_error)


@dataclass(frozen=True, slots=True)
class NextOperator:
    """An operator that is about to be added."""

    flow: Flow
    name: str
    caller: Caller
    on_error: ErrorPolicy = "fail"

    @property
    def fields(self) -> dict[str, Any]:
        """The values of the fields that every operator has."""
        return {
            "name": self.name,
            "parents": (self.flow.operator,),
            "origin": self.caller.origin,
            "on_error": self.on_error,
        }

    def known(self, hint: Any, serde: Serde[Any] | None = None) -> Known:
        """Describe keys or values that this operator makes."""
        return Known(hint, serde, self.name, self.caller.origin)

    def add(
        self, operator: Operator, *, key: Known | None = None, value: Known | None = None
    ) -> Flow:
        """Add the operator and return the place after it, with what is known of keys and values."""
        self.flow.builder.add(operator)
        return replace(
            self.flow,
            operator=operator.name,
            key=self.flow.key if key is None else key,
            value=self.flow.value if value is None else value,
        )


# Keyword arguments of operators, for the signatures of their overloads.

T = TypeVar("T")


class StepOptions(TypedDict, total=False):
    """Keyword arguments of every operator with a function."""

    #: Name of the operator, and of its state store if it has one.
    name: str | None
    #: What to do with records on which the function raises.
    on_error: ErrorPolicy


class ValueOptions(StepOptions, Generic[T], total=False):
    """Keyword arguments of an operator that makes values."""

    #: Serializes the values.
    serde: Serde[T] | None


class SinkOptions(StepOptions, total=False):
    """Keyword arguments of a sink; see :meth:`Stream.sink`."""

    #: The topics from which a function chooses.
    topics: Iterable[str]
    #: Returns the message's key in place of the record's.
    key: Callable[..., object] | None
    #: Returns the number of the message's queue, which the key decides otherwise.
    partition: Callable[..., int] | None


class TimeOptions(ValueOptions[Any], total=False):
    """Keyword arguments of a join of two streams, without the keys of its sides."""

    #: How much earlier, and how much later, the right record may be than the left one.
    within: timedelta | str | tuple[timedelta | str, timedelta | str] | None
    #: The windows that both records must share.
    window: Windows | None
    #: How much longer to wait for late records.
    grace: timedelta | str


class JoinOptions(TimeOptions, total=False):
    """Keyword arguments of a join."""

    #: Returns the key of the left side.
    left_key: Callable[..., object] | None
    #: Returns the key of the right side.
    right_key: Callable[..., object] | None


class AggregateOptions(StepOptions, total=False):
    """Keyword arguments of a running aggregate."""

    #: When results are emitted.
    emit: Emit


class WindowOptions(StepOptions, total=False):
    """Keyword arguments of an aggregate of windows."""

    #: When results are emitted.
    emit: WindowEmit


# Hints for users who look for a method on the wrong class.

_STEPS = {
    "Stream": ("KeyedStream", "aggregates and windows need key_by(...) or group_by_key() first"),
    "KeyedStream": ("WindowedTable", "only windowed tables and joins by time have it"),
    "Table": ("Stream", "a table becomes a stream with to_stream()"),
    "WindowedTable": ("Stream", "a windowed table becomes a stream with to_stream()"),
    "WindowedStream": ("Stream", "aggregate first, for example with count(), then to_stream()"),
    "StreamJoin": ("Stream", "complete the join with apply(function) first"),
    "TableLookup": ("Stream", "complete the join with apply(function) first"),
}


def no_method(thing: object, name: str) -> AttributeError:
    """Return the error for a method that another step of the chain has.

    Caller: ``__getattr__`` of the classes of a chain, which type checkers do not see.
    """
    from headrace import streams

    message = f"{type(thing).__name__!r} object has no attribute {name!r}"
    if not name.startswith("_"):
        for kind in type(thing).__mro__:
            owner, hint = _STEPS.get(kind.__name__, ("", ""))
            if owner and hasattr(getattr(streams, owner), name):
                message += f": {hint}"
                break
    return AttributeError(message, name=name, obj=thing)
