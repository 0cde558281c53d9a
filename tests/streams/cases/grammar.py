"""The shape of an operation: ``left.join(right.map(id)).window(tumbling) -> out``, in parts."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Call", "Chain", "Operation", "parse"]

_OUTPUT = re.compile(r"\s*->\s*(\w+)\s*$")
_NAME = re.compile(r"\s*(\w+)\s*")
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
    for part in _ONE_JOB.sub("", text).split(";"):
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


def _closing(text: str, at: int) -> int:
    depth = 0
    for index in range(at, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if depth == 0:
            return index
    raise AssertionError(f"a parenthesis of {text!r} is not closed")
