"""The data channel of a task host: it listens, and serves whoever connects.

Each connection has a thread; none of them runs plugin code.  A client that goes away in the middle
of a request harms nobody: a request that did not come whole is dropped, and an answer that nobody
takes is given again when the request comes again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from headrace.watched import OnFailure, watched_thread

if TYPE_CHECKING:
    import pyarrow as pa


# Frames of the data channel: a header of JSON, and Arrow where there are records.
#
# A frame is the length of the header (u32, big endian), the header, the length of the records (u32)
# and the records as an Arrow IPC stream; a length of 0 means that there are none.

_LENGTH = struct.Struct(">I")


class EndOfChannelError(ConnectionError):
    """The other side is gone, perhaps in the middle of a frame."""


def send(
    channel: socket.socket, header: dict[str, Any], records: pa.RecordBatch | None = None
) -> None:
    """Send a frame."""
    text = orjson.dumps(header)
    if records is None:
        channel.sendall(_LENGTH.pack(len(text)) + text + _LENGTH.pack(0))
        return
    body = packed(records)
    channel.sendall(_LENGTH.pack(len(text)) + text + _LENGTH.pack(body.size))
    channel.sendall(memoryview(body))


def packed(records: pa.RecordBatch) -> pa.Buffer:
    """Write records as an Arrow IPC stream."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, records.schema) as writer:
        writer.write_batch(records)
    return sink.getvalue()


def receive(channel: socket.socket) -> tuple[dict[str, Any], pa.RecordBatch | None]:
    """Wait for a frame.

    Raises
    ------
    EndOfChannelError
        The other side is gone.
    """
    header: dict[str, Any] = orjson.loads(_exactly(channel, _length(channel)))
    length = _length(channel)
    return header, unpacked(_exactly(channel, length)) if length else None


def _length(channel: socket.socket) -> int:
    length: int = _LENGTH.unpack(_exactly(channel, _LENGTH.size))[0]
    return length


def _exactly(channel: socket.socket, length: int) -> bytearray:
    received = bytearray(length)
    rest = memoryview(received)
    while rest:
        got = channel.recv_into(rest)
        if not got:
            raise EndOfChannelError("the other side of the data channel is gone")
        rest = rest[got:]
    return received


def unpacked(body: bytearray) -> pa.RecordBatch:
    """Read what :func:`packed` has written."""
    import pyarrow as pa

    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        return reader.read_next_batch()


# Sockets in a folder, however long the folder's path is.

#: What the system takes as the name of a socket.
_LONGEST = 100


def listen(path: Path) -> socket.socket:
    """Listen at a path that nothing stands at yet."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _short(path) as name:
        listener.bind(name)
    listener.listen(16)
    return listener


def connect(path: Path, timeout: float) -> socket.socket:
    """Connect to whoever listens at a path.

    Raises
    ------
    OSError
        Nobody does.
    """
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connected.settimeout(timeout)
    try:
        with _short(path) as name:
            connected.connect(name)
    except BaseException:
        connected.close()
        raise
    return connected


@contextmanager
def _short(path: Path) -> Iterator[str]:
    if len(os.fsencode(path)) < _LONGEST:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


logger = logging.getLogger(__name__)

#: Seconds that answers have which are still to be sent when the host ends.
_LAST_ANSWERS = 2.0

Answer = tuple[dict[str, Any], "pa.RecordBatch | None"]
"""Header and records of an answer."""


class RequestRefused(Exception):  # noqa: N818 - an answer, not a failure of the host
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
                    except RequestRefused as refusal:
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
