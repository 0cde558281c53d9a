"""What all streams share: a place in the graph, and what is known of keys and values there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace.errors import TopologyError
from headrace.serdes import Serde, plain, serde_for
from headrace.serdes.inference import hint_name
from headrace.streams._calls import caller

if TYPE_CHECKING:
    from headrace.columns import Schema
    from headrace.streams._calls import Caller
    from headrace.streams.builder import StreamBuilder
    from headrace.topology import ErrorPolicy, Operator, Origin

__all__ = ["Flow", "Known"]


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of the keys, or the values, that an operator gives."""

    hint: Any = Any
    #: Declared with ``serde=``, or that of the source.
    serde: Serde[Any] | None = None
    #: The operator that made them.
    operator: str = ""
    origin: Origin | None = None
    #: Columns of what operators over columns give; elsewhere they follow from serde or type.
    columns: Schema | None = None

    def serde_or_plain(self) -> Serde[Any]:
        """Give the serde for them, plain data where none is known."""
        return self.serde or serde_for(self.hint) or plain

    def needed_serde(self, needer: str, why: str) -> Serde[Any]:
        """Give the serde for them.

        Raises
        ------
        TopologyError
            Their type is known and has no serde.
        """
        serde = self.serde or serde_for(self.hint)
        if serde is None:
            kind = hint_name(self.hint)
            raise TopologyError(
                f"operator '{self.operator}' (made at {self.origin}) gives values of type {kind},"
                f" and '{needer}' {why}, but no serde is known for {kind}",
                hint=f"name one where the values are made: serde=serdes.json_of({kind}), or a"
                " serde of your own",
            )
        return serde

    def check_key(self, needer: str) -> None:
        """Refuse keys of a known type that is not plain data.

        Raises
        ------
        TopologyError
            Their type is known and has no canonical encoding.
        """
        if serde_for(self.hint) is None:
            kind = hint_name(self.hint)
            raise TopologyError(
                f"operator '{self.operator}' (made at {self.origin}) gives keys of type {kind},"
                f" which '{needer}' cannot route: keys are plain data, so that equal keys have"
                " equal bytes; no serde= changes that",
                hint=f"key by something plain that identifies the {kind}: a str, an int, a tuple"
                " of such",
            )


@dataclass(frozen=True, slots=True)
class Flow:
    """A place in the graph of one builder."""

    builder: StreamBuilder
    #: The operator whose records flow here.
    operator: str
    #: Source that names derive from.
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
    ) -> Step:
        """Start an operator that takes what flows here."""
        made_by = caller() if origin is None else origin
        return Step(self, self.builder.name_for(label, self.place, name), made_by, on_error)


@dataclass(frozen=True, slots=True)
class Step:
    """An operator about to be added."""

    flow: Flow
    name: str
    caller: Caller
    on_error: ErrorPolicy = "fail"

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that every operator has."""
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
        """Add the operator and give the place behind it; what is not given stays as it was."""
        self.flow.builder.add(operator)
        return replace(
            self.flow,
            operator=operator.name,
            key=self.flow.key if key is None else key,
            value=self.flow.value if value is None else value,
        )
