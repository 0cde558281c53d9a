"""Makes the chain of a task out of its connector's config."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.connect.config import Masking
from headrace.connect.config.chain import Link, converter_links
from headrace.connect.config.chain import links as read_links
from headrace.connect.handling.conversion import Converters
from headrace.connect.handling.failures import Handling
from headrace.connect.handling.links import TransformLink
from headrace.connect.handling.policy import ErrorPolicy
from headrace.connect.handling.sink_chain import SinkChain
from headrace.connect.handling.source_chain import SourceChain
from headrace.connect.plugins.catalog import Catalog
from headrace.errors import ConnectorConfigError, HeadraceError

if TYPE_CHECKING:
    from headrace.connect.config import Config, ConfigDeclaration
    from headrace.connect.converters import Converter
    from headrace.connect.predicates import Predicate

__all__ = ["sink_chain", "source_chain"]


def source_chain(
    connector: str,
    task: int,
    texts: Mapping[str, str],
    *,
    wait: Callable[[float], bool],
    masking: Masking | None = None,
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
    masking
        Hides secrets in logs and dead letters; it learns those of the parts, too.
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
    parts = _Parts(texts, catalog or Catalog.installed(), masking or Masking())
    policy = ErrorPolicy.of(texts, "source")
    handling = Handling(connector, task, policy, masking=parts.masking, wait=wait, logger=logger)
    return SourceChain(parts.links, parts.converters, handling)


def sink_chain(
    connector: str,
    task: int,
    texts: Mapping[str, str],
    *,
    wait: Callable[[float], bool],
    masking: Masking | None = None,
    catalog: Catalog | None = None,
    logger: logging.Logger | None = None,
) -> SinkChain:
    """Make the chain of a sink task; the parameters are those of :func:`source_chain`."""
    parts = _Parts(texts, catalog or Catalog.installed(), masking or Masking())
    policy = ErrorPolicy.of(texts, "sink")
    handling = Handling(connector, task, policy, masking=parts.masking, wait=wait, logger=logger)
    return SinkChain(parts.links, parts.converters, handling)


class _Parts:
    """Makes transforms, predicates and converters, and has their secrets hidden."""

    def __init__(self, texts: Mapping[str, str], catalog: Catalog, masking: Masking) -> None:
        self._catalog = catalog
        self.masking = masking
        self.links = self._links(texts)
        self.converters = self._converters(texts)

    def _links(self, texts: Mapping[str, str]) -> list[TransformLink]:
        found, problems = read_links(texts)
        if problems:
            raise ConnectorConfigError.of((one.key, one.message) for one in problems)
        predicates: dict[str, Predicate] = {
            one.alias: self._made(one) for one in found if one.kind == "predicates"
        }
        return [
            TransformLink(
                self._made(one),
                None if one.predicate is None else predicates[one.predicate],
                one.negate,
            )
            for one in found
            if one.kind == "transforms"
        ]

    def _made(self, link: Link) -> Any:
        """Make a transform or a predicate."""
        kind = self._catalog.load(link.plugin, link.kind)
        made = kind()
        config = self._read(link, kind.config)
        try:
            made.configure(config)
        except HeadraceError:
            raise
        except ValueError as error:
            raise ConnectorConfigError.of([(link.prefix.rstrip("."), str(error))]) from error
        return made

    def _read(self, link: Link, declaration: ConfigDeclaration) -> Config:
        problems = declaration.problems(link.texts)
        if problems:
            wrong = ((link.prefix + one.key, one.message) for one in problems)
            raise ConnectorConfigError.of(wrong)
        config = declaration.parse(link.texts)
        self.masking.learn_typed(config)
        return config

    def _converters(self, texts: Mapping[str, str]) -> Converters:
        made: dict[str, Any] = {}
        for link in converter_links(texts):
            kind: type[Converter] = self._catalog.load(link.plugin, link.kind)
            self._read(link, kind.config)
            name = link.alias.partition(".")[0]
            made[name] = kind.of(link.texts, is_key=name == "key")
        return Converters(**made)
