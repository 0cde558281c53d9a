"""The shape of an operation: ``left.join(right.map(id)).window(tumbling) -> out``, in parts."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Call", "Chain", "Operation", "arguments", "parse", "parse_chain"]

_OUTPUT = re.compile(r"\s*->\s*(\w+)\s*$")
_NAME = re.compile(r"\s*(\w+)\s*")
_KIND = re.compile(
    r"\b(stream|table|global table|globalTable|KStream|KTable|GlobalKTable) (\w+)(?=[\s.,);]|$)"
)
_QUOTES = "\"'"
_ONE_JOB = re.compile(r",\s*(?:in )?one job\s*$")
#: Methods that are written without parentheses.
_BARE = frozenset({"groupByKey"})


@dataclass(frozen=True, slots=True)
class Call:
    """One method of a chain; None: it was written without parentheses."""

    name: str
    argument: str | None


@dataclass(frozen=True, slots=True)
class Chain:
    """A stream and the methods called on it."""

    #: Empty where the chain begins with a method: there is one stream.
    head: str
    calls: tuple[Call, ...]
    #: What is said behind the chain, such as ``on key, no window``.
    rest: str


@dataclass(frozen=True, slots=True)
class Operation:
    """A chain and the output that it ends in."""

    chain: Chain
    output: str


def parse(text: str) -> list[Operation]:
    """Read an operation.

    >>> [one] = parse("keyBy(k).window(tumbling).count()")
    >>> [call.name for call in one.chain.calls], one.output
    (['keyBy', 'window', 'count'], 'out')
    >>> [one.output for one in parse("s.map(v -> v+1) -> outA ; s.map(id) -> outB, one job")]
    ['outA', 'outB']
    """
    operations = []
    for part in _KIND.sub(_named, _ONE_JOB.sub("", text)).split(";"):
        # An arrow inside parentheses belongs to a function.
        found = _OUTPUT.search(part)
        body = part[: found.start()] if found else part
        operations.append(Operation(parse_chain(body), found[1] if found else "out"))
    return operations


def parse_chain(text: str) -> Chain:
    """Read one chain of calls."""
    head, calls, at = "", list[Call](), 0
    while found := _NAME.match(text, at):
        name, at = found[1], found.end()
        if text[at : at + 1] == "(":
            end = _closing(text, at)
            calls.append(Call(name, text[at + 1 : end].strip()))
            at = end + 1
        elif calls or head or name in _BARE:
            calls.append(Call(name, None))
        else:
            head = name
        if text[at : at + 1] != ".":
            break
        at += 1
    assert head or calls, f"does not understand the operation {text!r}"
    return Chain(head, tuple(calls), text[at:].strip())


def arguments(text: str) -> list[str]:
    """Divide what stands between parentheses at its commas.

    >>> arguments("0, (a, v) -> a + v"), arguments("'a,b'"), arguments("")
    (['0', '(a, v) -> a + v'], ["'a,b'"], [])
    """
    depths = _depths(text)
    edges = [at for at, one in enumerate(text) if one == "," and depths[at] == 0]
    ends = zip([-1, *edges], [*edges, len(text)], strict=True)
    parts = [text[begin + 1 : end].strip() for begin, end in ends]
    return parts if any(parts) else []


def _named(found: re.Match[str]) -> str:
    """Write ``table right`` as ``table(right)``; a stream is a stream anyway."""
    kind = found[1].lower().replace("k", "", 1) if "K" in found[1] else found[1]
    kinds = {"table": "table", "globaltable": "globalTable", "global table": "globalTable"}
    name = kinds.get(kind if " " in kind else kind.lower())
    return found[2] if name is None else f"{name}({found[2]})"


def _closing(text: str, at: int) -> int:
    for index, depth in enumerate(_depths(text[at:])):
        if depth == 0:
            return at + index
    raise AssertionError(f"a parenthesis of {text!r} is not closed")


def _depths(text: str) -> list[int]:
    """Count for each character the brackets that are open behind it; quoted ones are text."""
    depth, quote, depths = 0, "", list[int]()
    for one in text:
        if one in _QUOTES and quote in ("", one):
            quote = "" if quote else one
        elif not quote:
            depth += (one in "([{") - (one in ")]}")
        depths.append(depth + bool(quote))
    return depths
