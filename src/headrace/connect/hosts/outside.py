"""Values from outside that a config takes: looked at again, for as long as its connector runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from headrace.connect.config.providers import is_reference, resolve
from headrace.errors import ConnectorConfigError
from headrace.watched import OnFailure, watched_thread

logger = logging.getLogger(__name__)


class OutsideValues:
    """Notices when a value that a config takes from outside is another one.

    Parameters
    ----------
    texts
        The config, as it was written.

    Examples
    --------
    >>> import os
    >>> os.environ["HEADRACE_EXAMPLE_PASSWORD"] = "swordfish"
    >>> values = OutsideValues({"password": "${env:HEADRACE_EXAMPLE_PASSWORD}", "topic": "t"})
    >>> values.changed()
    False
    >>> os.environ["HEADRACE_EXAMPLE_PASSWORD"] = "kingfisher"
    >>> values.changed()
    True
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._references = {key: text for key, text in texts.items() if is_reference(text)}
        self._known = self._read()

    def changed(self) -> bool:
        """Look again; one that cannot be read now, such as a file that is replaced, waits."""
        found = self._read()
        if self._known is None:
            self._known = found
        return found is not None and found != self._known

    def watch(
        self,
        told: Callable[[], None],
        stopping: threading.Event,
        every: float,
        on_failure: OnFailure,
    ) -> None:
        """Look every so many seconds in a thread of its own, and tell of the first change."""
        if not self._references or not every:
            return

        def look() -> None:
            while not stopping.wait(every):
                if self.changed():
                    told()
                    return

        watched_thread(look, name="headrace-outside", on_failure=on_failure).start()

    def _read(self) -> dict[str, str] | None:
        try:
            return resolve(self._references)
        except ConnectorConfigError as error:
            logger.debug("a value from outside cannot be read now: %s", error)
            return None
