"""The words of operations, RocketMQ Streams', Kafka Streams' and ours, and what each does.

A line of the table is all that a word needs.  ``k`` and ``v`` are a record's key and value; a
selector that is ``k`` alone keeps the messages' own keys.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.streams.cases.expressions import expression
from tests.streams.cases.functions import (
    Folds,
    OfRecord,
    Pairs,
    absent,
    function,
    selector,
    selects,
)
from tests.streams.cases.grammar import Call, arguments, parse_chain

if TYPE_CHECKING:
    from tests.streams.cases.pipelines import Place

__all__ = ["VOCABULARY", "Word"]

Word = Callable[["Place", Call], None]
"""Adds what one call means to a chain."""

_OWN_KEY = ("", "k", "key", "k -> k", "(k, v) -> k", "(k,v) -> k")
_PAIR = re.compile(r"->\s*(\(.+,.+\))\s*$", re.DOTALL)


def _values(method: str) -> Word:
    def add(place: Place, call: Call) -> None:
        place.call(method, function(call.argument))

    return add


def _map(place: Place, call: Call) -> None:
    """Map values; a function of key and value that gives a pair sets the key, too."""
    chosen = function(call.argument)
    pairs = isinstance(chosen, OfRecord) and _PAIR.search(call.argument or "")
    place.call("map" if pairs else "map_values", chosen)
    if place.building.params.get("null_result") == "dropped":
        place.call("where", expression("v != null", ["v"]))


def _filter_not(place: Place, call: Call) -> None:
    place.call("where", Not(function(call.argument)))


class Not:
    """The contrary of a function of the value."""

    def __init__(self, predicate: Callable[[Any], Any]) -> None:
        self.predicate = predicate

    def __call__(self, value: Any) -> bool:
        """Tell whether it does not hold."""
        return not self.predicate(value)


def _key_by(place: Place, call: Call) -> None:
    text = (call.argument or "").strip()
    if text in _OWN_KEY:
        place.call("group_by_key")
    elif selects(text) and selector(text).uses(selector(text).parameters[0]):
        place.call("map", Pairs(selector(text)))
        place.call("group_by_key")
    else:
        place.call("key_by", function(text))


def _aggregate(method: str) -> Word:
    def add(place: Place, call: Call) -> None:
        place.aggregate(method, *[function(call.argument)] * selects(call.argument))

    return add


def _count(place: Place, call: Call) -> None:
    """Count records, the different values, or those where a selector gives something."""
    text = (call.argument or "").strip()
    if text.startswith("distinct"):
        _distinct(place, Call(call.name, text.removeprefix("distinct").strip()))
        return
    if selects(text):
        place.call("where", Not(Absent(function(text))))
    place.aggregate("count")


class Absent:
    """Tells whether a function gives nothing."""

    def __init__(self, chosen: Callable[[Any], Any]) -> None:
        self.chosen = chosen

    def __call__(self, value: Any) -> bool:
        """Tell it of a value."""
        return absent(self.chosen(value))


def _distinct(place: Place, call: Call) -> None:
    place.aggregate("count_distinct", function(call.argument))


def _top(place: Place, call: Call) -> None:
    count, *rest = arguments(call.argument or "")
    place.aggregate("top", int(count), *map(function, rest))


def _collect(place: Place, call: Call) -> None:
    del call
    place.aggregate("collect")


def _reduce(place: Place, call: Call) -> None:
    text = call.argument or place.building.params.get("reducer", "")
    place.aggregate("reduce", expression(text, ["a", "b"]))


def _fold(place: Place, call: Call) -> None:
    """Fold values into a first one: ``aggregate(0, (a, v) -> a + v)``, or as parameters say."""
    params = place.building.params
    first, step = params.get("init", params.get("initial")), params.get("adder", "")
    if parts := arguments(call.argument or ""):
        *firsts, step = parts
        first = ast.literal_eval(firsts[0]) if firsts else first
    names = [name for name in ("agg", "acc", "a") if re.search(rf"\b{name}\b", step)]
    place.aggregate("aggregate", Folds(first, expression(step, [*names[:1], "v"])))


def _window(place: Place, call: Call) -> None:
    place.window(call.argument or "")


def _join(method: str) -> Word:
    def add(place: Place, call: Call) -> None:
        text, *spans = arguments(call.argument or "")
        place.begin_join(method, place.building.branch(parse_chain(text)))
        for span in spans:
            place.begun().hear(span)

    return add


def _side(name: str) -> Word:
    def add(place: Place, call: Call) -> None:
        place.begun().keys[name] = function(call.argument)

    return add


def _span(place: Place, call: Call) -> None:
    place.begun().hear(f"within {call.argument}")


def _apply(place: Place, call: Call) -> None:
    place.finish_join(call.argument)


def _merge(place: Place, call: Call) -> None:
    others = [place.building.branch(parse_chain(one)) for one in arguments(call.argument or "")]
    place.call("merge", *others)


def _nothing(place: Place, call: Call) -> None:
    """Words that say what is so anyway: a result is a stream, and goes to the output."""


def _plain(method: str) -> Word:
    def add(place: Place, call: Call) -> None:
        del call
        place.call(method)

    return add


def _late(place: Place, call: Call) -> None:
    del call
    place.late()


VOCABULARY: dict[str, Word] = {
    "map": _map,
    "mapValues": _values("map_values"),
    "flatMap": _values("flat_map_values"),
    "flatMapValues": _values("flat_map_values"),
    "filter": _values("where"),
    "filterNot": _filter_not,
    "foreach": _values("peek"),
    "peek": _values("peek"),
    "selectTimestamp": _values("select_timestamp"),
    "keyBy": _key_by,
    "groupBy": _key_by,
    "selectKey": _key_by,
    "groupByKey": _plain("group_by_key"),
    "repartition": _plain("repartition"),
    "count": _count,
    "countDistinct": _distinct,
    "distinctCount": _distinct,
    "sum": _aggregate("sum"),
    "avg": _aggregate("avg"),
    "average": _aggregate("avg"),
    "mean": _aggregate("avg"),
    "min": _aggregate("min"),
    "max": _aggregate("max"),
    "top": _top,
    "collect": _collect,
    "reduce": _reduce,
    "aggregate": _fold,
    "window": _window,
    "windowedBy": _window,
    "late": _late,
    "join": _join("join"),
    "innerJoin": _join("join"),
    "leftJoin": _join("left_join"),
    "outerJoin": _join("outer_join"),
    "fullJoin": _join("outer_join"),
    "where": _side("left_key"),
    "equalTo": _side("right_key"),
    "within": _span,
    "apply": _apply,
    "merge": _merge,
    "union": _merge,
    "toTable": _plain("to_table"),
    **dict.fromkeys(["toRStream", "toStream", "to", "sink", "suppress", "print"], _nothing),
}
