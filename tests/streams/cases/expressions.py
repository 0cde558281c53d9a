"""The small language in which cases write functions: ``v -> v+100``, ``v is even``, ``v.score``.

An expression is Python's, but for ``null``, ``true`` and ``false``, and that a name behind a dot
is looked up in a dictionary.  It is checked node by node before it is compiled, so that a file of
cases can do nothing but compute.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import CodeType
from typing import Any

__all__ = ["Expression", "expression"]

_CONSTANTS = {"null": None, "true": True, "false": False}
_PLAIN = (
    *(ast.Expression, ast.BinOp, ast.operator, ast.UnaryOp, ast.unaryop, ast.BoolOp, ast.boolop),
    *(ast.Compare, ast.cmpop, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Load, ast.IfExp),
    *(ast.Name, ast.Attribute, ast.Subscript),
)
_ARROW = re.compile(r"^\s*(\(\s*\w+(?:\s*,\s*\w+)*\s*\)|\w+)\s*->\s*(.+)$", re.DOTALL)
_IS = re.compile(r"^(.+?) is (even|odd)$")


@dataclass(frozen=True, slots=True)
class Expression:
    """A function of a case: names of its parameters, and its body."""

    parameters: tuple[str, ...]
    body: str

    def __call__(self, *arguments: Any) -> Any:
        """Compute the body."""
        names = dict(zip(self.parameters, arguments, strict=True)) | _CONSTANTS
        return eval(_code(self.body), {"__builtins__": {}, "_at": _at, "_plus": _plus}, names)

    def uses(self, name: str) -> bool:
        """Tell whether the body looks at a parameter."""
        return name in _code(self.body).co_names


def expression(text: str, parameters: Sequence[str]) -> Expression:
    """Read a function; ``parameters`` name its arguments where it does not name them itself.

    >>> expression("v -> v.score + 1", ["v"])({"score": 4})
    5
    >>> expression("(l,r) -> [l,r]", ["l", "r"])(1, None)
    [1, None]
    >>> expression("v is even", ["v"])(3)
    False
    """
    if arrow := _ARROW.match(text):
        names = [name.strip() for name in arrow[1].strip("()").split(",")]
        assert len(names) == len(parameters), f"{text!r} does not take {', '.join(parameters)}"
        parameters, text = names, arrow[2]
    text = text.strip()
    if question := _IS.match(text):
        text = f"({question[1]}) % 2 == {int(question[2] == 'odd')}"
    _code(text)
    return Expression(tuple(parameters), text)


@cache
def _code(text: str) -> CodeType:
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        raise AssertionError(f"does not understand the function {text!r}") from None
    for node in ast.walk(tree):
        assert isinstance(node, _PLAIN), f"does not understand {ast.unparse(node)!r} of {text!r}"
    lookups = ast.fix_missing_locations(_Lookups().visit(tree))
    return compile(lookups, "<case>", "eval")


class _Lookups(ast.NodeTransformer):
    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        call = ast.Call(ast.Name("_at", ast.Load()), [node.value, ast.Constant(node.attr)], [])
        return ast.copy_location(call, node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Add):
            return node
        call = ast.Call(ast.Name("_plus", ast.Load()), [node.left, node.right], [])
        return ast.copy_location(call, node)


def _at(value: Any, name: str) -> Any:
    return None if value is None else value.get(name)


def _plus(left: Any, right: Any) -> Any:
    """Add; what is added to a text is written as Java writes it."""
    if not isinstance(left, str) and not isinstance(right, str):
        return left + right
    return "".join("null" if part is None else str(part) for part in (left, right))
