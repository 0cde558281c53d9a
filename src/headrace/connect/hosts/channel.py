"""The engine's side of a task's data channel: plain sockets, nothing of any plugin.

It runs in Spark's Python workers, which come and go.  Every request may be made again: a batch that
was given is given again, records that were put are not put twice, and a flush that was done is not
done again.  So a broken connection is made anew, once per request, without a word.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
import orjson

from headrace.errors import BatchTimeoutError, HeadraceError, HostGoneError, ProcessingError
from headrace.watched import OnFailure, watched_thread

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.connect.records import Position, Queue


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
    header: dict[str, Any] = msgspec.json.decode(_exactly(channel, _length(channel)))
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


#: Seconds that answers have which are still to be sent when the host ends.
_LAST_ANSWERS = 2.0

Answer = tuple[dict[str, Any], "pa.RecordBatch | None"]
"""Header and records of an answer."""


# The data channel of a task host: it listens, and serves whoever connects.
#
# Each connection has a thread; none of them runs plugin code.  A client that goes away in the middle
# of a request harms nobody: a request that did not come whole is dropped, and an answer that nobody
# takes is given again when the request comes again.


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


@dataclass(frozen=True, slots=True)
class PolledBatch:
    """What a source task gave for a batch."""

    rows: pa.RecordBatch
    #: Where each partition of the source stands behind it.
    positions: list[tuple[Position, Position | None]]


@dataclass(frozen=True, slots=True)
class _Request:
    """What was asked, to be asked again where the connection breaks."""

    header: dict[str, Any]
    rows: pa.RecordBatch | None
    #: Whether the connection was made for it.
    fresh: bool


class TaskChannel:
    """A connection to a task's host, made when it is needed.

    Parameters
    ----------
    address
        Where the host listens, as its events `Listens` and `Started` say.
    timeout
        How long an answer may take.
    """

    def __init__(self, address: str, timeout: timedelta = timedelta(minutes=5)) -> None:
        self.address = address
        self.timeout = timeout
        self._lock = threading.Lock()
        self._connected: socket.socket | None = None
        #: How many records a source task had when it was last asked whether it has some.
        self.waiting = 0
        #: The request whose answer has not been taken.
        self._due: _Request | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return TaskChannel, (self.address, self.timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # A source task.

    def poll(
        self,
        batch: int,
        *,
        max_records: int = 1_000_000,
        max_bytes: int = 64 << 20,
        wait: timedelta = timedelta(0),
    ) -> PolledBatch:
        """Get a batch: the same one again until it is committed or taken back."""
        header, rows = self._ask(
            {
                "op": "poll",
                "batch": batch,
                "max_records": max_records,
                "max_bytes": max_bytes,
                "wait_ms": _milliseconds(wait),
            }
        )
        positions = [(partition, offset) for partition, offset in header["positions"]]
        return PolledBatch(rows, positions)

    def committed(self, batch: int) -> None:
        """Confirm that everything up to a batch is committed."""
        self._ask({"op": "committed", "batch": batch})

    def begin(
        self,
        batch: int,
        positions: Iterable[tuple[Position, Position]],
        elsewhere: Iterable[tuple[Position, Position | None]] = (),
    ) -> None:
        """Begin an epoch: on a batch, where its record has the source.

        A task starts with that.  One that has started goes on with what it has polled, where all
        of that record is its own doing, and else begins anew.

        Parameters
        ----------
        batch
            The last batch of the open record.
        positions
            All that the open record has of the source.
        elsewhere
            What newer positions the records of the connector's other tasks have.
        """
        places = {"positions": list(positions), "elsewhere": list(elsewhere)}
        self._ask({"op": "begin", "batch": batch, **places})

    def rewind(self) -> None:
        """Take back what was given and not committed: it is given again."""
        self._ask({"op": "rewind"})

    def await_ready(self, wait: timedelta) -> bool:
        """Wait until the task has something to give; an idle task costs nothing meanwhile."""
        return self.await_topics(wait) is not None

    def await_topics(self, wait: timedelta) -> dict[str, int | None] | None:
        """Wait until the task has something to give; give the topics that it is for.

        Each comes with the number of queues that it shall have where it is made, if the task says.
        """
        header, _ = self._ask({"op": "ready", "wait_ms": _milliseconds(wait)})
        self.waiting = header["more"]
        return dict(header["topics"]) if header["ready"] else None

    # A sink task.

    def open(
        self,
        queues: Iterable[Queue],
        positions: Mapping[Queue, int] | None = None,
        *,
        fenced: bool = False,
    ) -> dict[Queue, int] | None:
        """Return the task its queues; give the offsets that the sink itself keeps, if it does.

        Parameters
        ----------
        queues
            All that it has from now on.
        positions
            Where the last commit has them.
        fenced
            Refuse all batches until `fence` has said which epoch begins: who had the task before
            may still bring some.
        """
        header, _ = self._ask(
            {
                "op": "open",
                "fenced": fenced,
                "queues": [list(queue) for queue in queues],
                "positions": listed(positions or {}),
            }
        )
        return None if header["offsets"] is None else offsets_of(header["offsets"])

    def fence(self, epoch: int) -> None:
        """Begin an epoch: batches of older ones are refused from then on."""
        self._ask({"op": "fence", "epoch": epoch})

    def put(
        self,
        batch: int,
        ranges: Sequence[tuple[Queue, int, int]],
        rows: pa.RecordBatch,
        *,
        epoch: int = 0,
    ) -> None:
        """Put records; those that were put before are left out.

        Parameters
        ----------
        batch
            The batch that they belong to.
        ranges
            First offset and the one after the last of each queue.
        rows
            Columns as in :data:`~headrace.connect.columns.SINK_SCHEMA`.
        epoch
            The epoch that the batch is of: one behind a newer request is refused.
        """
        self._ask(_put(batch, ranges, epoch), rows)

    def put_ahead(
        self,
        batch: int,
        ranges: Sequence[tuple[Queue, int, int]],
        rows: pa.RecordBatch,
        *,
        epoch: int = 0,
    ) -> None:
        """Put records, as :meth:`put` does; what becomes of it is told by the next request.

        So more can be read while the task has these.
        """
        with self._lock:
            self._tell(_put(batch, ranges, epoch), rows)

    def flush(
        self, batch: int, offsets: Mapping[Queue, int], *, epoch: int = 0
    ) -> dict[Queue, int]:
        """Make everything durable that was put; give the offsets that may be committed."""
        header, _ = self._ask(
            {"op": "flush", "epoch": epoch, "batch": batch, "offsets": listed(offsets)}
        )
        return offsets_of(header["offsets"])

    def letters(self, batch: int) -> pa.RecordBatch | None:
        """Return the dead letters of a batch so far, in the columns of a source's rows.

        They must be in their topic before the batch is committed.
        """
        _, rows = self._ask({"op": "letters", "batch": batch})
        found: pa.RecordBatch | None = rows
        return found

    def close_queues(self) -> None:
        """Take the task's queues from it."""
        self._ask({"op": "close"})

    # Both.

    def in_engine(self) -> dict[str, Any] | None:
        """Return what the engine is to do in the task's place; None: the task moves the records."""
        header, _ = self._ask({"op": "in_engine"})
        work: dict[str, Any] | None = header["work"]
        return work

    def counters(self) -> dict[str, int]:
        """Count what failed in the task, and what became of it.

        The names are those of :class:`~headrace.connect.handling.HandlingStatistics`.
        """
        header, _ = self._ask({"op": "counters"})
        counted: dict[str, int] = header["counters"]
        return counted

    # The connection.

    def _ask(
        self, header: dict[str, Any], rows: pa.RecordBatch | None = None
    ) -> tuple[dict[str, Any], Any]:
        with self._lock:
            self._tell(header, rows)
            return self._answered()

    def _tell(self, header: dict[str, Any], rows: pa.RecordBatch | None) -> None:
        """Send a request, behind the answer to the one before."""
        before = self._due
        if before is not None:
            try:
                self._answered()
            except ProcessingError:
                # What became of the batch of another time is nobody's concern any more.
                if _batch_of(before.header) == _batch_of(header):
                    raise
        fresh = self._connected is None
        self._due = _Request(header, rows, fresh=fresh)
        with self._broken_off():
            try:
                self._send(self._due)
            except OSError as error:
                if fresh or isinstance(error, TimeoutError):
                    raise self._gone(error) from error
                # It is sent again when its answer is asked for.
                self._disconnect()

    def _answered(self) -> tuple[dict[str, Any], Any]:
        """Take the answer that is due."""
        due = self._due
        assert due is not None, "somebody has asked"
        with self._broken_off():
            try:
                answer = self._received(due)
            except OSError as error:
                # A connection that stood may have ended with a process that was replaced.
                if due.fresh or isinstance(error, TimeoutError):
                    raise self._gone(error) from error
                self._disconnect()
                try:
                    answer = self._received(due)
                except OSError as again:
                    raise self._gone(again) from again
        self._due = None
        if problem := answer[0].get("error"):
            raise ProcessingError(problem)
        return answer

    @contextmanager
    def _broken_off(self) -> Iterator[None]:
        """Leave no half of a request or of an answer on the connection, whatever ends it."""
        try:
            yield
        except BaseException:
            self._drop()
            raise

    def _received(self, due: _Request) -> tuple[dict[str, Any], Any]:
        if self._connected is None:
            self._send(due)
        assert self._connected is not None
        return receive(self._connected)

    def _send(self, due: _Request) -> None:
        if self._connected is None:
            self._connected = connect(Path(self.address), self.timeout.total_seconds())
        send(self._connected, due.header, due.rows)

    def _gone(self, error: OSError) -> HeadraceError:
        if isinstance(error, TimeoutError):
            seconds = self.timeout.total_seconds()
            return BatchTimeoutError(
                f"the task has not answered for {seconds:g} s",
                hint="look where it is: the log of its host says so when it is restarted by force",
            )
        return HostGoneError(
            f"the host of the task is gone: nobody answers at {self.address}: {error}",
            hint="the worker tells why it ended; restart the task",
        )

    def _drop(self) -> None:
        self._due = None
        self._disconnect()

    def _disconnect(self) -> None:
        if self._connected is not None:
            self._connected.close()
            self._connected = None

    def close(self) -> None:
        """Close the connection; the next request makes another."""
        with self._lock:
            self._drop()


def _put(batch: int, ranges: Sequence[tuple[Queue, int, int]], epoch: int) -> dict[str, Any]:
    listed = [[*queue, first, end] for queue, first, end in ranges]
    return {"op": "put", "epoch": epoch, "batch": batch, "ranges": listed}


def _batch_of(header: Mapping[str, Any]) -> tuple[Any, Any]:
    return header.get("epoch"), header.get("batch")


def _milliseconds(duration: timedelta) -> int:
    return round(duration.total_seconds() * 1000)


def listed(offsets: Mapping[Queue, int]) -> list[list[Any]]:
    """Return offsets of queues as a header has them."""
    return [[*queue, offset] for queue, offset in offsets.items()]


def offsets_of(listed: Iterable[Sequence[Any]]) -> dict[Queue, int]:
    """Return the offsets of queues that a header has."""
    from headrace.connect.records import Queue

    return {Queue(*one[:3]): one[3] for one in listed}
