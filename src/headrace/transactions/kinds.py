"""Kinds of components, derived from what they are and from who subscribes to them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, Literal

from headrace.errors import TopologyError
from headrace.transactions.components import FieldsDeclarer, KeyValueBolt, OffsetSpout
from headrace.transactions.journal import JournalSpout
from headrace.transactions.topics import TopicSink, TopicSpout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.topology import Origin

__all__ = ["Kind", "check_bolt", "check_spout", "is_stateful", "outputs_of"]

Kind = Literal["spout", "non-stateful bolt", "stateful bolt", "end bolt"]
"""What a component is; an end bolt may be a stateful bolt too."""

_STATE: Final = ("init_state", "finish_batch", "commit", "roll_back", "ack_commit")
_SPOUT: Final = ("next_tuple", "prepare", "cleanup", "declare_output_fields")
_BOLT: Final = ("execute", "prepare", "cleanup", "declare_output_fields")


def is_stateful(component: object) -> bool:
    """Tell whether a bolt keeps state: it has the callbacks of state, or keeps values by key."""
    return isinstance(component, KeyValueBolt) or not _missing(component, _STATE)


def check_spout(what: str, component: object, origin: Origin) -> None:
    """Refuse what cannot be a spout.

    Raises
    ------
    TopologyError
        It is a class, lacks methods, or cannot replay what it emitted.
    """
    if isinstance(component, TopicSpout | OffsetSpout):
        return
    if isinstance(component, JournalSpout):
        _check_object(what, component.spout, origin, "a spout")
        if missing := _missing(component.spout, _SPOUT):
            raise _incomplete(what, component.spout, origin, missing, "Spout")
        return
    _check_object(what, component, origin, "a spout")
    if missing := _missing(component, _SPOUT):
        raise _incomplete(what, component, origin, missing, "Spout")
    if missing := _missing(component, _STATE):
        raise TopologyError(
            f"{what} at {origin} is a {_name(component)}, which cannot replay what it emitted:"
            f" it has no {', '.join(missing)}",
            hint="subclass Spout and keep in its state where it stands, or OffsetSpout where"
            " tuples have offsets; or wrap it in JournalSpout, which writes what it emits to a topic"
            " first",
        )


def check_bolt(what: str, component: object, origin: Origin) -> None:
    """Refuse what cannot be a bolt.

    Raises
    ------
    TopologyError
        It is a class, lacks methods, or has some callbacks of state and not all.
    """
    if isinstance(component, TopicSink):
        raise TopologyError(
            f"{what} at {origin} is a TopicSink", hint="add it with set_sink(id, TopicSink(...))"
        )
    _check_object(what, component, origin, "a bolt")
    if missing := _missing(component, _BOLT):
        raise _incomplete(what, component, origin, missing, "Bolt")
    if isinstance(component, KeyValueBolt):
        return
    missing = _missing(component, _STATE)
    # Either of these two alone says that state was meant.
    if missing and len({"init_state", "finish_batch"} & set(missing)) < 2:
        raise _incomplete(what, component, origin, missing, "StatefulBolt")


def outputs_of(what: str, component: Any, origin: Origin) -> FieldsDeclarer:
    """Ask a component for the streams that it emits to.

    Raises
    ------
    TopologyError
        It fails, or names a field twice.
    """
    declarer = FieldsDeclarer()
    try:
        component.declare_output_fields(declarer)
    except Exception as error:
        raise TopologyError(
            f"declare_output_fields of {what} at {origin} raised {type(error).__name__}: {error}"
        ) from error
    for stream, fields in declarer.streams.items():
        given: tuple[object, ...] = fields
        if not all(isinstance(field, str) and field for field in given):
            raise TopologyError(
                f"{what} at {origin} declares for stream '{stream}' the fields {fields!r}",
                hint="names of fields are texts: declarer.declare('word', 'count')",
            )
        if len(set(fields)) < len(fields):
            raise TopologyError(
                f"{what} at {origin} declares for stream '{stream}' a field twice:"
                f" {', '.join(fields)}"
            )
    return declarer


def _missing(component: object, names: Sequence[str]) -> list[str]:
    return [name for name in names if not callable(getattr(component, name, None))]


def _check_object(what: str, component: object, origin: Origin, wanted: str) -> None:
    if inspect.isclass(component):
        name = component.__name__
        raise TopologyError(
            f"{what} at {origin} is the class {name}; {wanted} is an object of it",
            hint=f"write {name}(...)",
        )


def _incomplete(
    what: str, component: object, origin: Origin, missing: Sequence[str], base: str
) -> TopologyError:
    return TopologyError(
        f"{what} at {origin} is a {_name(component)}, which has no {', '.join(missing)}",
        hint=f"subclass headrace.transactions.{base}, or give it these methods",
    )


def _name(component: object) -> str:
    return type(component).__name__
