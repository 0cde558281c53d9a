"""Config keys and their values, as Kafka Connect's REST API writes them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.connect.config.declaration import ConfigDeclaration, ConfigKey, ConfigProblem
from headrace.connect.config.kinds import MASK, PluginName
from headrace.connect.config.providers import is_reference

if TYPE_CHECKING:
    from headrace.connect.plugins.catalog import Catalog


logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Section:
    """The keys of one plugin within a connector's config, and what was given for them."""

    prefix: str
    declaration: ConfigDeclaration
    #: What was given, as it was written, without the prefix.
    shown: Mapping[str, str]
    #: The same with values from outside.
    texts: Mapping[str, str]
    values: dict[str, Any] = field(default_factory=dict)

    def read(self) -> list[ConfigProblem]:
        """Read the values; name what is wrong, by whole names."""
        self.values, problems = self.declaration.read(self.texts, self.shown)
        problems += self.declaration.misspelt(self.texts)
        return [ConfigProblem(self.prefix + one.key, one.message) for one in problems]

    def unknown(self) -> list[str]:
        """Return the whole names that nobody declared."""
        return [self.prefix + name for name in self.declaration.unknown(self.texts)]


def answer(
    name: str,
    sections: Iterable[Section],
    problems: Sequence[ConfigProblem],
    warnings: Sequence[str],
    catalog: Catalog,
) -> dict[str, Any]:
    """Write what a validation found, as ``PUT /connector-plugins/NAME/config/validate`` does."""
    configs: list[dict[str, Any]] = []
    errors: dict[str, list[str]] = {}
    for problem in problems:
        errors.setdefault(problem.key, []).append(problem.message)
    for section in sections:
        for definition, key in definitions(section.declaration, section.prefix):
            value = _value(section, key, catalog, errors.pop(definition["name"], []))
            configs.append({"definition": definition, "value": value})
    # What is wrong with a key that nobody declared has no definition to stand beside.
    for unknown, messages in errors.items():
        configs.append(_undeclared(unknown, messages))
    groups = dict.fromkeys(one["definition"]["group"] for one in configs)
    return {
        "name": name,
        "error_count": len({problem.key for problem in problems}),
        "groups": [group for group in groups if group],
        "configs": configs,
        "warnings": list(warnings),
    }


def _undeclared(name: str, messages: list[str]) -> dict[str, Any]:
    bare = ConfigKey(name=name, declared=str, doc="Nobody declares this key.", importance="low")
    value = {"value": None, "recommended_values": [], "errors": messages, "visible": True}
    return {"definition": _definition(bare, "", None, 0), "value": {"name": name, **value}}


def definitions(
    declaration: ConfigDeclaration, prefix: str = ""
) -> Iterable[tuple[dict[str, Any], ConfigKey]]:
    """Write the keys of a declaration, each beside the key itself."""
    orders: dict[str | None, int] = {}
    for key in declaration:
        group = prefix.removesuffix(".") if prefix else key.group
        orders[group] = orders.get(group, 0) + 1
        yield _definition(key, prefix, group, orders[group]), key


def _definition(key: ConfigKey, prefix: str, group: str | None, order: int) -> dict[str, Any]:
    return {
        "name": prefix + key.name,
        "type": key.kind.kafka,
        "required": key.required,
        "default_value": key.write(key.default),
        "importance": key.importance.upper(),
        "documentation": key.doc,
        "group": group,
        "order": order,
        "width": key.width.upper(),
        "display_name": key.display,
        "dependents": [prefix + one for one in key.dependents],
    }


def _value(section: Section, key: ConfigKey, catalog: Catalog, errors: list[str]) -> dict[str, Any]:
    names = [one for one in (key.name, *key.aliases) if one in section.shown]
    text = section.shown[names[0]] if names else key.write(key.default)
    if key.secret and text is not None and not is_reference(text):
        text = MASK
    return {
        "name": section.prefix + key.name,
        "value": text,
        "recommended_values": _recommended(section.values, key, catalog),
        "errors": errors,
        "visible": key.visible is None
        or bool(_asked(key, key.visible, section.values, otherwise=True)),
    }


def _recommended(values: Mapping[str, Any], key: ConfigKey, catalog: Catalog) -> list[str]:
    if isinstance(key.declared, PluginName):
        there = {one.class_name for one in catalog.plugins if one.family == key.declared.kind}
        return sorted(there)
    choices = key.valid.choices if key.valid is not None else ()
    if key.recommend is not None:
        choices = _asked(key, key.recommend, values, otherwise=())
    return [str(key.write(one)) for one in choices]


def _asked(
    key: ConfigKey,
    ask: Callable[[Mapping[str, Any]], Any],
    values: Mapping[str, Any],
    *,
    otherwise: Any,
) -> Any:
    try:
        return ask(values)
    except Exception:
        # Other values may be wrong, and so None: their own errors say so.
        logger.debug("what the key %s recommends or shows is not known", key.name, exc_info=True)
        return otherwise
