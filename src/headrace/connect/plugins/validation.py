"""Validation of a whole config, answered as Kafka Connect's REST API answers it.

Caller: processes that may load plugins; never the worker itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.connect.config.chain import (
    Link,
    Role,
    common_keys,
    common_problems,
    converter_links,
    links,
    normal,
)
from headrace.connect.config.declaration import Config, ConfigDeclaration, ConfigProblem, declare
from headrace.connect.config.providers import resolve
from headrace.connect.plugins.connectors import Connector, SinkConnector, SourceConnector
from headrace.connect.plugins.definitions import Section, answer, definitions
from headrace.errors import ConnectorConfigError, PluginError

if TYPE_CHECKING:
    from headrace.connect.plugins.catalog import Catalog


_EXACTNESS = "exactly.once.support"


def role_of(connector: type[Connector]) -> Role:
    """Return whether a connector is a source or a sink."""
    return "sink" if issubclass(connector, SinkConnector) else "source"


def read_config(connector: type[Connector], texts: Mapping[str, str]) -> Config:
    """Read a connector's or a task's config: values from outside, other names, types.

    Raises
    ------
    ConnectorConfigError
        Naming everything that is wrong.
    """
    role = role_of(connector)
    return _declaration(connector).parse(normal(resolve(texts), role), normal(texts, role))


def _declaration(connector: type[Connector]) -> ConfigDeclaration:
    return common_keys(role_of(connector)) | connector.config


def describe(catalog: Catalog, name: str) -> list[dict[str, Any]]:
    """List the keys of a plugin of any type, as REST's ``/connector-plugins/NAME/config`` does.

    Raises
    ------
    PluginError
        When there is no such plugin.
    """
    loaded = _of_any_family(catalog, name)
    connector = issubclass(loaded, Connector)
    declaration = _declaration(loaded) if connector else getattr(loaded, "config", declare())
    return [definition for definition, _ in definitions(declaration)]


def _of_any_family(catalog: Catalog, name: str) -> type[Any]:
    families = ("connectors", "converters", "header_converters", "transforms", "predicates")
    for family in families:
        if any(name in plugin.names and plugin.family == family for plugin in catalog.plugins):
            return catalog.load(name, family)
    return catalog.load(name, families[0])


def validate(catalog: Catalog, name: str, texts: Mapping[str, str]) -> dict[str, Any]:
    """Check a connector's config with all its plugins.

    What is wrong is part of the answer.  Beside Kafka Connect's fields it has ``warnings``: the
    keys that nobody knows.

    Raises
    ------
    ConnectorConfigError
        When ``connector.class`` in the config is another connector than ``name``.
    PluginError
        When there is no such connector, or it cannot be loaded.
    """
    plugin = catalog.find(name, "connectors")
    _check_class(catalog, plugin.target, texts, name)
    connector: type[Connector] = plugin.load()
    problems: list[ConfigProblem] = []
    shown = _normal(texts, role_of(connector), problems)
    resolved = _resolved(shown, problems)
    sections, wrong = _sections(catalog, connector, shown, resolved)
    problems += wrong
    for section in sections:
        problems += section.read()
    problems += common_problems(resolved, role_of(connector))
    problems += _exactness_problems(connector, resolved)
    if not problems:
        config = Config(sections[0].values, resolved)
        problems += connector().validate(config)
    unknown = {name for section in sections for name in section.unknown()}
    mentioned = {one.key for one in problems}
    warnings = [f"Nobody knows the key {one}." for one in sorted(unknown - mentioned)]
    # What two names of a key say is found both before and while it is read.
    return answer(plugin.class_name, sections, list(dict.fromkeys(problems)), warnings, catalog)


def _exactness_problems(
    connector: type[Connector], texts: Mapping[str, str]
) -> list[ConfigProblem]:
    """Refuse to promise what the connector's class does not declare."""
    wanted = texts.get(_EXACTNESS, "").strip().lower() == "required"
    if not (wanted and issubclass(connector, SourceConnector)) or connector.exactly_once:
        return []
    says = "does not say whether it can" if connector.exactly_once is None else "cannot"
    message = (
        f"The key {_EXACTNESS} is 'required', and {connector.__name__} {says} give every record"
        " again from its positions. Take 'requested', and look at its page for what holds after a"
        " failure."
    )
    return [ConfigProblem(_EXACTNESS, message)]


def _check_class(catalog: Catalog, target: str, texts: Mapping[str, str], name: str) -> None:
    given = texts.get("connector.class")
    if given and catalog.find(given, "connectors").target != target:
        message = f"The config's connector.class {given!r} does not match the plugin {name!r}."
        raise ConnectorConfigError.of([("connector.class", message)])


def _normal(
    texts: Mapping[str, str], role: Role, problems: list[ConfigProblem]
) -> Mapping[str, str]:
    try:
        return normal(texts, role)
    except ConnectorConfigError as error:
        problems += [ConfigProblem(*one) for one in error.problems]
        return texts


def _resolved(texts: Mapping[str, str], problems: list[ConfigProblem]) -> Mapping[str, str]:
    try:
        return resolve(texts)
    except ConnectorConfigError as error:
        problems += [ConfigProblem(*one) for one in error.problems]
        return texts


def _sections(
    catalog: Catalog,
    connector: type[Connector],
    shown: Mapping[str, str],
    resolved: Mapping[str, str],
) -> tuple[list[Section], list[ConfigProblem]]:
    chain, problems = links(resolved)
    chain += converter_links(resolved)
    prefixes = tuple(one.prefix for one in chain)
    own = {name: text for name, text in resolved.items() if not _belongs(name, prefixes)}
    first = Section("", _declaration(connector), shown, own)
    sections = [first]
    for link in chain:
        try:
            loaded = catalog.load(link.plugin, link.kind)
        except PluginError as error:
            name = link.alias if link.kind.endswith("converters") else f"{link.prefix}type"
            problems.append(ConfigProblem(name, str(error)))
            continue
        sections.append(_section_of(link, getattr(loaded, "config", declare()), shown))
        problems += _refusals(link, loaded)
    return sections, problems


def _refusals(link: Link, loaded: type[Any]) -> list[ConfigProblem]:
    """Configure a transform or a predicate on trial: it may refuse what each key allows."""
    if link.kind not in {"transforms", "predicates"}:
        return []
    values, problems = getattr(loaded, "config", declare()).read(link.texts)
    if problems or not hasattr(loaded, "configure"):
        return []
    try:
        loaded().configure(Config(values, link.texts))
    except Exception as error:  # noqa: BLE001 - plugins may raise anything
        return [ConfigProblem(f"{link.prefix}type", str(error))]
    return []


def _belongs(name: str, prefixes: tuple[str, ...]) -> bool:
    return name.startswith(prefixes or "\0")


def _section_of(link: Link, declaration: ConfigDeclaration, shown: Mapping[str, str]) -> Section:
    written = {name: shown.get(link.prefix + name, text) for name, text in link.texts.items()}
    return Section(link.prefix, declaration, written, link.texts)
