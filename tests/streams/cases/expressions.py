"""The small language in which cases write functions: ``v -> v+100``, ``v is even``, ``v.score``.

An expression is Python's, but for ``null``, ``true`` and ``false``, that a name behind a dot is
looked up in a dictionary, and that Java's ``&&``, ``||``, ``!`` and ``? :`` are understood.  It is
checked node by node before it is compiled, so that a file of cases can do nothing but compute.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
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
_FUNCTIONS = {
    function.__name__: function for function in (abs, float, int, len, max, min, round, str, sum)
}
_METHODS: dict[str, Callable[..., Any]] = {
    "lower": str.lower,
    "upper": str.upper,
    "split": str.split,
    "strip": str.strip,
    "toLowerCase": str.lower,
    "toUpperCase": str.upper,
    "trim": str.strip,
    "length": len,
}
_ARROW = re.compile(r"^\s*(\(\s*\w+(?:\s*,\s*\w+)*\s*\)|\w+)\s*->\s*(.+)$", re.DOTALL)
_IS = re.compile(r"^(.+?) is (even|odd)$")
_TEXT = re.compile(r"""('[^']*'|"[^"]*")""")
_CHOICE = re.compile(r"^(.+?)\?(.+):(.+)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Expression:
    """A function of a case: names of its parameters, and its body."""

    parameters: tuple[str, ...]
    body: str

    def __call__(self, *arguments: Any) -> Any:
        """Compute the body."""
        names = dict(zip(self.parameters, arguments, strict=True)) | _CONSTANTS
        return eval(_code(self.body), _GIVEN, names)

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
    text = _python(text)
    _code(text)
    return Expression(tuple(parameters), text)


def _python(text: str) -> str:
    """Write Java's operators as Python's; what stands in quotes stays as it is."""
    parts = _TEXT.split(text)
    for at in range(0, len(parts), 2):
        part = parts[at].replace("&&", " and ").replace("||", " or ")
        parts[at] = re.sub(r"!(?!=)", " not ", part)
    if any("?" in part for part in parts[::2]) and (choice := _CHOICE.match("".join(parts))):
        condition, yes, no = choice.groups()
        return f"({yes}) if ({condition}) else ({no})"
    return "".join(parts).strip()


@cache
def _code(text: str) -> CodeType:
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        raise AssertionError(f"does not understand the function {text!r}") from None
    for node in ast.walk(tree):
        plain = isinstance(node, _PLAIN) or (isinstance(node, ast.Call) and _known(node))
        assert plain, f"does not understand {ast.unparse(node)!r} of {text!r}"
    lookups = ast.fix_missing_locations(_Lookups().visit(tree))
    return compile(lookups, "<case>", "eval")


def _known(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id in _FUNCTIONS and not call.keywords
    return isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS


class _Lookups(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Attribute):
            name = ast.Constant(node.func.attr)
            node = ast.Call(_load("_do"), [name, node.func.value, *node.args], [])
        self.generic_visit(node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        call = ast.Call(_load("_at"), [node.value, ast.Constant(node.attr)], [])
        return ast.copy_location(call, node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Add):
            return node
        call = ast.Call(_load("_plus"), [node.left, node.right], [])
        return ast.copy_location(call, node)


def _load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _do(name: str, value: Any, *arguments: Any) -> Any:
    return _METHODS[name](value, *arguments)


def _at(value: Any, name: str) -> Any:
    return None if value is None else value.get(name)


def _plus(left: Any, right: Any) -> Any:
    """Add; what is added to a text is written as Java writes it."""
    if not isinstance(left, str) and not isinstance(right, str):
        return left + right
    return "".join("null" if part is None else str(part) for part in (left, right))


_GIVEN: dict[str, Any] = {"__builtins__": {}, "_at": _at, "_plus": _plus, "_do": _do, **_FUNCTIONS}
