"""The reference: every plugin that comes with Headrace with its keys, made from declarations.

``python -m headrace.connect.config.reference`` prints the page ``docs/reference/connectors.md``.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator

from headrace.connect.config.declaration import (
    COMMON,
    SINK,
    SOURCE,
    ConfigDeclaration,
    ConfigKey,
    declare,
)
from headrace.connect.plugins.builtin import BUILTIN, Builtin, PluginType
from headrace.connect.plugins.catalog import Plugin

_INTRODUCTION = """\
# Reference of connectors and their keys

Made by `python -m headrace.connect.config.reference`; a test fails when this page is out of date.
How each connector is used and what it guarantees stands in [the guides](../README.md#connect).

Durations are milliseconds, or numbers with a unit: `500 ms`, `2 s`, `5 min`, `1h30m`, `1 d`, `PT5M`.
Sizes are bytes, or numbers with a unit: `512 KB`, `64 KiB`, `10 MB`.
Lists are parted by commas.
A value may come from outside: `${env:NAME}` is a variable of the worker's environment, `${file:PATH:KEY}` a key of a properties file and `${file:PATH}` a whole file on the worker's machine, where the worker's operator has listed them (`--allow-env`, `--allow-file`).
Such values are read where plugins run, and no answer of the REST API shows them.
A key that nobody declared is a warning; one that looks like a misspelt key is an error.
"""
_SECTIONS: tuple[tuple[PluginType, str, str], ...] = (
    ("source", "Sources", "Keys of every connector and of every source work, too."),
    ("sink", "Sinks", "Keys of every connector and of every sink work, too."),
    ("converter", "Converters", "Their keys follow after `key.converter.` or `value.converter.`."),
    ("header_converter", "Header converters", "Their keys follow after `header.converter.`."),
    ("transformation", "Transforms", "Their keys follow after `transforms.NAME.`."),
    ("predicate", "Predicates", "Their keys follow after `predicates.NAME.`."),
)


def reference_page() -> str:
    """Make the page; import every plugin for it."""
    return "\n".join(line for part in _parts() for line in [*part, ""]).rstrip("\n") + "\n"


def _parts() -> Iterator[list[str]]:
    yield _INTRODUCTION.splitlines()
    yield ["## Every connector"]
    yield _table(COMMON)
    yield ["## Every source"]
    yield _table(SOURCE)
    yield ["## Every sink"]
    yield _table(SINK)
    for kind, title, introduction in _SECTIONS:
        plugins = [one for one in BUILTIN if one.type == kind]
        if plugins:
            yield [f"## {title}", "", introduction]
        for plugin in sorted(plugins, key=lambda one: (_title(one), one.target)):
            yield from _plugin(plugin)


def _plugin(plugin: Builtin) -> Iterator[list[str]]:
    loaded = Plugin(plugin.target, "").load()
    summary = (inspect.getdoc(loaded) or "").split("\n\n", maxsplit=1)[0].replace("\n", " ")
    others = ", ".join(f"`{name}`" for name in _names(plugin) if name != _title(plugin))
    yield [f"### `{_title(plugin)}`", "", _plain(summary), f"Also: {others}."]
    declaration = getattr(loaded, "config", declare())
    if len(declaration):
        yield _table(declaration)


def _title(plugin: Builtin) -> str:
    own = [name for name in plugin.aliases if "." not in name]
    return own[0] if own else plugin.target.rpartition(":")[2]


def _names(plugin: Builtin) -> Iterable[str]:
    return dict.fromkeys((plugin.target.rpartition(":")[2], *plugin.aliases))


def _table(declaration: ConfigDeclaration) -> list[str]:
    rows = [
        f"| `{key.name}` | {_values(key)} | {_default(key)} | {_meaning(key)} |"
        for key in declaration
    ]
    return ["| key | value | default | meaning |", "| --- | --- | --- | --- |", *rows]


def _values(key: ConfigKey) -> str:
    if key.valid is None or not key.valid.choices:
        words = key.kind.words if key.valid is None else f"{key.kind.words}, {key.valid.words}"
        return _cell(words)
    return _cell(", ".join(f"`{key.write(one)}`" for one in key.valid.choices))


def _default(key: ConfigKey) -> str:
    if key.required:
        return "required"
    written = key.write(key.default)
    return f"`{_cell(written)}`" if written else ""


def _meaning(key: ConfigKey) -> str:
    also = f" Also `{'`, `'.join(key.aliases)}`." if key.aliases else ""
    return _cell(key.doc + also)


def _plain(text: str) -> str:
    # Docstrings are reStructuredText, pages are Markdown.
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.stdout.write(reference_page())
