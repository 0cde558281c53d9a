"""Topics of another system: which of them a connector means, and whether that has changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

from headrace.errors import ConnectorConfigError, HeadraceError
from headrace.watched import watched_thread

if TYPE_CHECKING:
    from headrace.connect import ConnectorContext


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


class TopicWatch:
    """Looks from time to time whether what tasks share has changed, and has it shared out anew.

    Parameters
    ----------
    context
        The connector's.
    look
        Gives what there is now.
    pause
        How long to wait between two looks.
    """

    def __init__(
        self, context: ConnectorContext, look: Callable[[], object], pause: timedelta
    ) -> None:
        self._context = context
        self._look = look
        self._pause = pause.total_seconds()
        self._thread = watched_thread(self._watch, name="topics", on_failure=self._fail)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for the end."""
        self._context.stopping.set()
        self._thread.join()

    def _fail(self, error: BaseException) -> None:
        self._context.fail(f"topics are watched no more: {type(error).__name__}: {error}")

    def _watch(self) -> None:
        known: object = None
        while not self._context.stopping.wait(0 if known is None else self._pause):
            try:
                found = self._look()
            except (HeadraceError, OSError) as error:
                self._context.logger.warning("topics could not be listed: %s", error)
                # The first look may fail, too.
                self._context.stopping.wait(self._pause)
                continue
            if known is not None and found != known:
                self._context.request_task_reconfiguration()
            known = found
