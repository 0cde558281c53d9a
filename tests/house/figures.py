"""How big a house the package is: modules, lines, imports, names."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2] / "src" / "headrace"
_DOCUMENTED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)
_SMALL = 40
_LONG = 60

#: The most that there may be of each; a change that needs more says why where it raises it.
MOST = {
    "modules": 495,
    # Resident tasks came with 1,370.
    "lines": 140_680,
    "imports, % of the code": 8.1,
    "class names used twice": 12,
    "functions above 60 lines": 9,
    "docstrings that open with Give": 0,
}


@dataclass(frozen=True)
class Module:
    """One file of the package."""

    path: Path

    @cached_property
    def name(self) -> str:
        """Its dotted name."""
        parts = self.path.relative_to(ROOT.parent).with_suffix("").parts
        return ".".join(parts[:-1] if self.is_face else parts)

    @property
    def is_face(self) -> bool:
        """Whether it is the face of a package."""
        return self.path.name == "__init__.py"

    @cached_property
    def lines(self) -> list[str]:
        """Its lines."""
        return self.path.read_text(encoding="utf-8").splitlines()

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """The module and all of its statements: expressions hold nothing that is counted."""
        found: list[ast.AST] = [ast.parse("\n".join(self.lines))]
        for node in found:
            for name in ("body", "handlers", "orelse", "finalbody", "cases"):
                found += getattr(node, name, ())
        return found

    @property
    def code(self) -> int:
        """How many lines are neither empty nor a comment."""
        return sum(bool(text := line.strip()) and not text.startswith("#") for line in self.lines)

    @cached_property
    def imports(self) -> list[ast.Import | ast.ImportFrom]:
        """Its imports, also those within functions."""
        return [one for one in self.nodes if isinstance(one, ast.Import | ast.ImportFrom)]

    def imported(self) -> Iterator[str]:
        """Yield what may be the name of a module that it imports."""
        for one in self.imports:
            if isinstance(one, ast.ImportFrom):
                yield one.module or ""
                yield from (f"{one.module}.{alias.name}" for alias in one.names)
            else:
                yield from (alias.name for alias in one.names)


def class_names_used_twice(modules: list[Module]) -> list[str]:
    """Return the names that more than one class has."""
    names = Counter(
        one.name for module in modules for one in module.nodes if isinstance(one, ast.ClassDef)
    )
    return sorted(name for name, count in names.items() if count > 1)


def modules_with_names() -> list[Module]:
    """Return the modules other than faces of packages that have an ``__all__``."""
    return [
        module
        for module in all_modules()
        if not module.is_face and any(line.startswith("__all__") for line in module.lines)
    ]


def all_modules() -> list[Module]:
    """Return the modules of the package."""
    return [Module(path) for path in sorted(ROOT.rglob("*.py"))]


def figures() -> dict[str, float]:
    """Return the figures of the package as it lies there."""
    modules = all_modules()
    plain = [module for module in modules if not module.is_face]
    importers = defaultdict(set)
    for module in modules:
        for name in module.imported():
            importers[name].add(module.name)
    imports = sum(
        (one.end_lineno or one.lineno) - one.lineno + 1
        for module in modules
        for one in module.imports
    )
    functions = [
        (one.end_lineno or one.lineno) - one.lineno + 1
        for module in modules
        for one in module.nodes
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    docstrings = [
        text
        for module in modules
        for one in module.nodes
        if isinstance(one, _DOCUMENTED) and (text := ast.get_docstring(one))
    ]
    alone = sum(len(importers[module.name]) == 1 for module in plain)
    return {
        "modules": len(modules),
        "lines": sum(len(module.lines) for module in modules),
        "imports, % of the code": round(100 * imports / sum(one.code for one in modules), 1),
        "lines of a module, median": median(len(module.lines) for module in plain),
        f"modules below {_SMALL} lines": sum(len(module.lines) < _SMALL for module in plain),
        "modules with one importer, %": round(100 * alone / len(plain), 1),
        "class names used twice": len(class_names_used_twice(modules)),
        "functions, median of lines": median(functions),
        f"functions above {_LONG} lines": sum(lines > _LONG for lines in functions),
        "docstrings that open with Give": sum(text.startswith("Give") for text in docstrings),
    }


def too_large(found: dict[str, float]) -> dict[str, float]:
    """Return those of the figures that are above the most that there may be."""
    return {name: found[name] for name in MOST if found[name] > MOST[name]}
