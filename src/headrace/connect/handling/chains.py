"""Makes the chain of a task out of its connector's config."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from headrace.connect.config.chain import Link, converter_links
from headrace.connect.config.chain import links as read_links
from headrace.connect.handling.conversion import Converters
from headrace.connect.handling.failures import Handling
from headrace.connect.handling.links import TransformLink
from headrace.connect.handling.policy import ErrorPolicy, Masking
from headrace.connect.handling.sink_chain import SinkChain
from headrace.connect.handling.source_chain import SourceChain
from headrace.connect.plugins.catalog import Catalog
from headrace.errors import ConnectorConfigError, HeadraceError

if TYPE_CHECKING:
    from headrace.connect.config import ConfigDeclaration
    from headrace.connect.converters import Converter
    from headrace.connect.predicates import Predicate

__all__ = ["sink_chain", "source_chain"]


def source_chain(
    connector: str,
    task: int,
    texts: Mapping[str, str],
    *,
    wait: Callable[[float], bool],
    secrets: Mapping[str, Any] | None = None,
    catalog: Catalog | None = None,
    logger: logging.Logger | None = None,
) -> SourceChain:
    """Make the chain of a source task.

    Parameters
    ----------
    connector, task
        Whose it is.
    texts
        The connector's config, with its providers resolved: also what the connector itself does
        not copy into its task configs.
    wait
        Waits so many seconds; tells whether the task has been asked to stop meanwhile.
    secrets
        Typed configs whose secrets never appear in logs.
    catalog
        Where plugins are found.
    logger
        Where failures are logged.

    Raises
    ------
    ConnectorConfigError
        A transform, a predicate, a converter or ``errors.*`` is configured wrongly.
    PluginError
        One of them cannot be loaded: it is never left out.

    Examples
    --------
    >>> texts = {"transforms": "t", "transforms.t.type": "HoistField$Value",
    ...          "transforms.t.field": "line"}
    >>> chain = source_chain("lines", 0, texts, wait=lambda seconds: False)
    >>> from headrace.connect.records import SourceRecord
    >>> record = SourceRecord(partition={}, offset={}, topic="t", value="hello")
    >>> chain.encode([record]).rows.column("value").to_pylist()
    [b'{"line":"hello"}']
    """
    found = catalog or Catalog.installed()
    handling = _handling(connector, task, texts, "source", wait, secrets or {}, logger)
    return SourceChain(_links(texts, found), _converters(texts, found), handling)


def sink_chain(
    connector: str,
    task: int,
    texts: Mapping[str, str],
    *,
    wait: Callable[[float], bool],
    secrets: Mapping[str, Any] | None = None,
    catalog: Catalog | None = None,
    logger: logging.Logger | None = None,
) -> SinkChain:
    """Make the chain of a sink task; the parameters are those of :func:`source_chain`."""
    found = catalog or Catalog.installed()
    handling = _handling(connector, task, texts, "sink", wait, secrets or {}, logger)
    return SinkChain(_links(texts, found), _converters(texts, found), handling)


def _handling(
    connector: str,
    task: int,
    texts: Mapping[str, str],
    role: Literal["source", "sink"],
    wait: Callable[[float], bool],
    secrets: Mapping[str, Any],
    logger: logging.Logger | None,
) -> Handling:
    policy, masking = ErrorPolicy.of(texts, role), Masking.of(secrets)
    return Handling(connector, task, policy, masking=masking, wait=wait, logger=logger)


def _links(texts: Mapping[str, str], catalog: Catalog) -> list[TransformLink]:
    found, problems = read_links(texts)
    if problems:
        raise ConnectorConfigError.of((one.key, one.message) for one in problems)
    predicates: dict[str, Predicate] = {
        one.alias: _configured(one, catalog) for one in found if one.kind == "predicates"
    }
    return [
        TransformLink(
            _configured(one, catalog),
            None if one.predicate is None else predicates[one.predicate],
            one.negate,
        )
        for one in found
        if one.kind == "transforms"
    ]


def _configured(link: Link, catalog: Catalog) -> Any:
    """Make a transform or a predicate."""
    kind = catalog.load(link.plugin, link.kind)
    declaration: ConfigDeclaration = kind.config
    problems = [(link.prefix + one.key, one.message) for one in declaration.problems(link.texts)]
    if problems:
        raise ConnectorConfigError.of(problems)
    made = kind()
    try:
        made.configure(declaration.parse(link.texts))
    except HeadraceError:
        raise
    except ValueError as error:
        raise ConnectorConfigError.of([(link.prefix.rstrip("."), str(error))]) from error
    return made


def _converters(texts: Mapping[str, str], catalog: Catalog) -> Converters:
    made: dict[str, Any] = {}
    for link in converter_links(texts):
        kind: type[Converter] = catalog.load(link.plugin, link.kind)
        name = link.alias.partition(".")[0]
        made[name] = kind.of(link.texts, is_key=name == "key")
    return Converters(**made)
