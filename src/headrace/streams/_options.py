"""What operators take by name, for the signatures of their overloads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypedDict, TypeVar

if TYPE_CHECKING:
    from headrace.serdes import Serde
    from headrace.topology import Emit, ErrorPolicy
    from headrace.topology.operators.windows import WindowEmit


T = TypeVar("T")


class StepOptions(TypedDict, total=False):
    """What every operator with a function takes by name."""

    #: Name of the operator, and of its state store where it has one.
    name: str | None
    #: What becomes of records on which the function raises.
    on_error: ErrorPolicy


class ValueOptions(StepOptions, Generic[T], total=False):
    """What an operator that makes values takes by name."""

    #: Writes the values.
    serde: Serde[T] | None


class AggregateOptions(StepOptions, total=False):
    """What a running aggregate takes by name."""

    #: When results come.
    emit: Emit


class WindowOptions(StepOptions, total=False):
    """What an aggregate of windows takes by name."""

    #: When results come.
    emit: WindowEmit
