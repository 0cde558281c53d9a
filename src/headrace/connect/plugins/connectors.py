"""Base classes of connectors: they decide what there is to do and share it out to tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from headrace.connect.config import Config, ConfigDeclaration, ConfigProblem, declare
from headrace.connect.plugins.tasks import SinkTask, SourceTask, Unit

if TYPE_CHECKING:
    from headrace.connect.plugins.contexts import ConnectorContext
    from headrace.connect.records import Position


class Connector(Unit, ABC):
    """What source and sink connectors share: it decides what there is to do.

    ``start`` begins to watch what the tasks depend on.
    """

    #: Shown with the plugin and in the status.
    version: ClassVar[str] = "undefined"
    #: Declared once: validation, docs and typed values come from it.
    config: ClassVar[ConfigDeclaration] = declare()
    #: Set before ``start``.
    context: ConnectorContext

    @abstractmethod
    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        """Share the work out: what each task gets on top of the connector's config.

        At most ``max_tasks``; called after ``start``, again whenever tasks are wanted anew.
        """

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Return what is wrong beyond single keys; called when each key by itself is right."""
        del config
        return ()

    def alter_offsets(
        self, config: Config, offsets: Sequence[tuple[Position, Position | None]]
    ) -> bool:
        """Check offsets that somebody sets by hand; ``None`` resets one.

        Raise to refuse them.  Return ``True`` when they have been checked, ``False`` when the
        connector cannot tell.
        """
        del config, offsets
        return False


class SourceConnector(Connector):
    """Brings records into topics.

    Examples
    --------
    >>> from headrace.connect import SourceConnector, declare, key
    >>> class ClockConnector(SourceConnector):
    ...     version = "1.0"
    ...     config = declare(key("topic", str, "Where the ticks go.", required=True))
    ...
    ...     def task_configs(self, max_tasks):
    ...         return [{}]
    >>> [one.name for one in ClockConnector.config]
    ['topic']
    """

    #: The class of its tasks.
    task: ClassVar[type[SourceTask]]
    #: Whether a task that starts anew returns everything behind its committed positions again, and
    #: nothing before them; None: nobody has said so.  ``exactly.once.support=required`` asks.
    exactly_once: ClassVar[bool | None] = None


class SinkConnector(Connector):
    """Takes records out of topics."""

    #: The class of its tasks.
    task: ClassVar[type[SinkTask]]

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        """Start as many tasks as allowed, alike; the runtime shares the queues out."""
        return [{} for _ in range(max_tasks)]
