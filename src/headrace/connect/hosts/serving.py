"""The data channel of a task host: it listens, and serves whoever connects.

Each connection has a thread; none of them runs plugin code.  A client that goes away in the middle
of a request harms nobody: a request that did not come whole is dropped, and an answer that nobody
takes is given again when the request comes again.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.connect.hosts.frames import receive, send
from headrace.connect.hosts.sockets import listen
from headrace.watched import OnFailure, watched_thread

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Answer", "Refused", "Serving"]

logger = logging.getLogger(__name__)

#: Seconds that answers have which are still to be sent when the host ends.
_LAST_ANSWERS = 2.0

Answer = tuple[dict[str, Any], "pa.RecordBatch | None"]
"""Header and records of an answer."""


class Refused(Exception):  # noqa: N818 - an answer, not a failure of the host
    """The request cannot be answered; the client gets the text."""


class Serving:
    """Serves requests on a socket.

    Parameters
    ----------
    path
        Where it listens.
    answer
        Answers a request: its header and its records.  It is called by many threads.
    on_failure
        Told of the error that has ended the listening.
    """

    def __init__(
        self,
        path: Path,
        answer: Callable[[dict[str, Any], pa.RecordBatch | None], Answer],
        on_failure: OnFailure,
    ) -> None:
        self.address = str(path)
        self._answer = answer
        self._listener = listen(path)
        #: Requests that came and whose answers are not sent yet.
        self._open = 0
        self._changed = threading.Condition()
        self._closed = False
        watched_thread(self._accept, name="headrace-data", on_failure=on_failure).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                raise
            threading.Thread(
                target=self._serve, args=[client], name="headrace-data-client", daemon=True
            ).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            while True:
                header, records = receive(client)
                with self._answering():
                    try:
                        answer = self._answer(header, records)
                    except Refused as refusal:
                        answer = {"error": str(refusal)}, None
                    send(client, *answer)

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        with self._changed:
            self._open += 1
        try:
            yield
        finally:
            with self._changed:
                self._open -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Take no more connections, and let what was asked be answered before the host ends."""
        self._closed = True
        self._listener.close()
        with self._changed:
            self._changed.wait_for(lambda: not self._open, _LAST_ANSWERS)
        with contextlib.suppress(OSError):
            Path(self.address).unlink()
