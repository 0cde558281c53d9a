"""The words of operations, RocketMQ Streams' and ours, and what each does to a chain.

A line of the table is all that a word needs.  ``k`` and ``v`` are a record's key and value; a
selector that is ``k`` alone keeps the messages' own keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.streams.cases.expressions import Expression, expression
from tests.streams.cases.grammar import Call, parse_chain

if TYPE_CHECKING:
    from tests.streams.cases.pipelines import Place

__all__ = ["VOCABULARY", "Word"]

Word = Callable[["Place", Call], None]
"""Adds what one call means to a chain."""

_NON_WORD = re.compile(r"\W+")
_OWN_KEY = ("k", "key", "k -> k")
_OWN_VALUE = ("", "v", "value", "word", "id", "identity")


def identity(value: Any) -> Any:
    """Give what is taken."""
    return value


def lower_words(text: str) -> list[str]:
    """Split a text into words in small letters."""
    return [word for word in _NON_WORD.split(text.lower()) if word]


#: Functions that cases describe in words.
_PHRASES: dict[str, Callable[[Any], Any]] = {
    "lower, split on non-word": lower_words,
    "split": str.split,
    "lower": str.lower,
    "upper": str.upper,
}


def function(text: str | None) -> Callable[[Any], Any]:
    """Read a function of a value."""
    if (text or "") in _OWN_VALUE:
        return identity
    return _PHRASES.get(text or "") or expression(text or "", ["v"])


def _pair(text: str) -> Callable[[Any, Any], Any]:
    """Read a selector that looks at key and value: it gives the new key with the value."""
    selector = expression(text, ["k", "v"])
    return Rekeyed(selector)


class Rekeyed:
    """A function for ``map`` that sets the key."""

    def __init__(self, selector: Expression) -> None:
        self.selector = selector

    def __call__(self, key: Any, value: Any) -> tuple[Any, Any]:
        """Give the new key and the value."""
        return self.selector(key, value), value


def _values(method: str) -> Word:
    def add(place: Place, call: Call) -> None:
        place.call(method, function(call.argument))

    return add


def _key_by(place: Place, call: Call) -> None:
    text = (call.argument or "").strip()
    if text in _OWN_KEY:
        place.call("group_by_key")
    elif "->" not in text and text not in _OWN_VALUE and expression(text, ["k", "v"]).uses("k"):
        place.call("map", _pair(text))
        place.call("group_by_key")
    else:
        place.call("key_by", function(text))


def _group_by_key(place: Place, call: Call) -> None:
    del call
    place.call("group_by_key")


def _aggregate(method: str) -> Word:
    def add(place: Place, call: Call) -> None:
        chosen = [] if (call.argument or "") in _OWN_VALUE else [function(call.argument)]
        place.aggregate(method, *chosen)

    return add


def _count_distinct(place: Place, call: Call) -> None:
    place.aggregate("count_distinct", function(call.argument))


def _reduce(place: Place, call: Call) -> None:
    place.aggregate("reduce", expression(call.argument or "", ["a", "b"]))


def _window(place: Place, call: Call) -> None:
    place.window(call.argument or "")


def _join(method: str) -> Word:
    def add(place: Place, call: Call) -> None:
        right = place.building.branch(parse_chain(call.argument or ""))
        place.begin_join(method, right)

    return add


def _merge(place: Place, call: Call) -> None:
    place.call("merge", place.building.branch(parse_chain(call.argument or "")))


def _nothing(place: Place, call: Call) -> None:
    """Words that say what is so anyway: a result is a stream."""


def _table(place: Place, call: Call) -> None:
    del call
    place.call("to_table")


VOCABULARY: dict[str, Word] = {
    "map": _values("map_values"),
    "mapValues": _values("map_values"),
    "flatMap": _values("flat_map_values"),
    "flatMapValues": _values("flat_map_values"),
    "filter": _values("filter"),
    "foreach": _values("peek"),
    "peek": _values("peek"),
    "selectTimestamp": _values("select_timestamp"),
    "keyBy": _key_by,
    "groupBy": _key_by,
    "groupByKey": _group_by_key,
    "count": _aggregate("count"),
    "countDistinct": _count_distinct,
    "sum": _aggregate("sum"),
    "avg": _aggregate("avg"),
    "min": _aggregate("min"),
    "max": _aggregate("max"),
    "reduce": _reduce,
    "window": _window,
    "windowedBy": _window,
    "join": _join("join"),
    "leftJoin": _join("left_join"),
    "outerJoin": _join("outer_join"),
    "merge": _merge,
    "toRStream": _nothing,
    "toStream": _nothing,
    "toTable": _table,
    "table": _table,
}
