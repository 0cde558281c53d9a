"""What the tasks of a source share, how it is shared out, and whether it has changed."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from headrace.errors import ConnectorConfigError, HeadraceError
from headrace.watched import watched_thread

if TYPE_CHECKING:
    from headrace.connect import Config, ConnectorContext


_SHARE = "task.share"


@dataclass(frozen=True, slots=True)
class TaskShare:
    """The part of a task: its number, and of how many tasks."""

    number: int
    tasks: int

    @classmethod
    def of(cls, config: Config) -> Self:
        """Read a task's config; one without a share has everything."""
        number, _, tasks = config.texts.get(_SHARE, "0/1").partition("/")
        return cls(int(number), int(tasks))

    @staticmethod
    def configs(tasks: int) -> list[Mapping[str, str]]:
        """Share everything out: the configs of so many tasks.

        >>> TaskShare.configs(2)
        [{'task.share': '0/2'}, {'task.share': '1/2'}]
        """
        return [{_SHARE: str(TaskShare(number, tasks))} for number in range(tasks)]

    def __str__(self) -> str:
        return f"{self.number}/{self.tasks}"

    def has(self, name: str) -> bool:
        """Whether what has this name belongs to the task."""
        # Spread by name: what comes later finds its task without a new configuration.
        return zlib.crc32(name.encode()) % self.tasks == self.number


def dealt(key: str, things: Sequence[object], most: int) -> list[Mapping[str, str]]:
    """Share things out one by one: the configs of at most so many tasks.

    >>> dealt("task.tables", ["a", "b", "c"], 2)
    [{'task.tables': '["a", "c"]'}, {'task.tables': '["b"]'}]
    """
    tasks = min(most, len(things))
    return [{key: json.dumps(things[number::tasks])} for number in range(tasks)]


def dealt_to(config: Config, key: str) -> list[Any]:
    """Return what was dealt to a task, as data of JSON."""
    mine: list[Any] = json.loads(config.texts.get(key, "[]"))
    return mine


def is_pattern(name: str) -> bool:
    """Whether a name stands for all that match it.

    >>> is_pattern("public.orders_*"), is_pattern("public.orders")
    (True, False)
    """
    return any(letter in name for letter in "*?[")


def chosen_topics(
    wanted: Iterable[str],
    there: Collection[str],
    *,
    key: str,
    system: str,
    hidden: Callable[[str], bool],
) -> list[str]:
    """Return the topics that names and patterns mean; a pattern begins with ``^``.

    Parameters
    ----------
    wanted
        Names and patterns.
    there
        The topics that there are.
    key, system
        The key that they were written under, and whose topics they are, for the error.
    hidden
        Tells topics that no pattern means.

    Raises
    ------
    ConnectorConfigError
        A topic that is named does not exist.

    Examples
    --------
    >>> there = ["orders", "orders-eu", "__offsets"]
    >>> hidden = lambda name: name.startswith("__")
    >>> chosen_topics(["^.*"], there, key="topics", system="Kafka", hidden=hidden)
    ['orders', 'orders-eu']
    """
    found: set[str] = set()
    for one in wanted:
        if one.startswith("^"):
            found |= {name for name in there if re.fullmatch(one, name) and not hidden(name)}
        elif one in there:
            found.add(one)
        else:
            message = f"{system} has no topic {one!r} that this user can see."
            raise ConnectorConfigError.of([(key, message)])
    return sorted(found)


class ShareWatch:
    """Looks from time to time whether what tasks share has changed, and has it shared out anew.

    After a first look that fails, what the next one finds counts as changed.

    Parameters
    ----------
    context
        The connector's.
    look
        Gives what there is now.
    pause
        How long to wait between two looks.
    what
        What is looked for, for the log.
    passing
        The errors of a look that may pass.
    """

    def __init__(
        self,
        context: ConnectorContext,
        look: Callable[[], object],
        pause: timedelta,
        *,
        what: str = "topics",
        passing: tuple[type[Exception], ...] = (HeadraceError, OSError),
    ) -> None:
        self._context = context
        self._look = look
        self._pause = pause.total_seconds()
        self._what = what
        self._passing = passing
        self._thread = watched_thread(self._watch, name=what, on_failure=self._fail)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for the end."""
        self._context.stopping.set()
        self._thread.join()

    def _fail(self, error: BaseException) -> None:
        self._context.fail(f"{self._what} are watched no more: {type(error).__name__}: {error}")

    def _watch(self) -> None:
        known: object = None
        while not self._context.stopping.wait(0 if known is None else self._pause):
            try:
                found = self._look()
            except self._passing as error:
                self._context.logger.warning("%s could not be listed: %s", self._what, error)
                found = known or ()
            if known is not None and found != known:
                self._context.request_task_reconfiguration()
            known = found
