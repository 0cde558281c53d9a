"""Channels between the tasks of a gang and their driver: frames over sockets.

Each pair of processes shares one connection.  Whoever connects proves that it knows the secret of
the gang, and so does whoever answers.  Frames carry epoch, incarnation, batch and producer, and
those that do not fit are refused, whoever sends them.  :class:`FrameReader` and the packing of
frames do no I/O; :class:`Mesh` is the thin shell around the sockets.
"""

from __future__ import annotations

import hmac
import os
import select
import socket
import struct
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headrace.errors import ChannelError
from headrace.runtime.control import Block, BlockKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: The driver's number among the members of its gang.
DRIVER = 0xFFFF

#: The length of the rest, kind, stage, producer, epoch, incarnation, batch.
_HEAD = struct.Struct(">IBHHIIQ")
_LENGTH = struct.Struct(">I")
_REST = _HEAD.size - _LENGTH.size
#: Of a block within a frame: partition, kind, port, attempt, length of the operator's name.
_BLOCK = struct.Struct(">IBHqH")
#: The longest frame; a block of records is far below it.
_LONGEST = (1 << 31) - 1
_SCRATCH = 256 << 10
_LONGEST_HELLO = 4 << 10
#: How long a process may take to prove that it belongs to the gang, s.
_PATIENCE = 5.0


class FrameKind(IntEnum):
    """What a frame says."""

    #: A process connects: its number, where it listens, and its proof.
    HELLO = 1
    #: The answer between tasks: the proof of whoever was called.
    WELCOME = 2
    #: The driver's answer, once all tasks have come: its proof, and where each of them listens.
    ROSTER = 3
    #: A batch begins: what the task reads of it.
    CUT = 4
    #: A block for a partition of a later stage, or a summary for the driver.
    BLOCK = 5
    #: All blocks of the producer for a stage have been sent.
    BARRIER = 6
    #: All summaries of the producer for a batch have been sent.
    REPORT = 7
    #: A task has failed, and ends.
    FAILED = 8
    #: The gang ends.
    STOP = 9


class Frame(NamedTuple):
    """One message of a channel."""

    kind: int
    stage: int
    producer: int
    epoch: int
    incarnation: int
    batch: int
    payload: bytes


class FrameReader:
    """Cuts what comes by a socket into frames.

    Examples
    --------
    >>> packed = b"".join(Badge(7, 1, 0).pack(FrameKind.BARRIER, 2, 5, [b"rest"]))
    >>> reader = FrameReader()
    >>> reader.buffer()[: len(packed)] = packed
    >>> [(frame.stage, frame.batch, bytes(frame.payload)) for frame in reader.took(len(packed))]
    [(2, 5, b'rest')]
    """

    def __init__(self) -> None:
        self._scratch = bytearray(_SCRATCH)
        #: Bytes of frames that are not whole yet, and how many of them have come.
        self._held = memoryview(self._scratch)
        self._filled = 0

    def buffer(self) -> memoryview:
        """Return where the next bytes are to be put."""
        return self._held[self._filled :]

    def took(self, count: int) -> list[Frame]:
        """Return the frames that are whole now that ``count`` bytes have come.

        Raises
        ------
        ChannelError
            What has come is no frame.
        """
        self._filled += count
        held, at, found = self._held, 0, []
        while self._filled - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(held, at)
            if not _REST <= size <= _LONGEST:
                raise ChannelError(f"a channel brought a frame of {size} bytes, which none has")
            end = at + _LENGTH.size + size
            if end > self._filled:
                break
            payload = bytes(held[at + _HEAD.size : end])
            found.append(Frame._make([*_HEAD.unpack_from(held, at)[1:], payload]))
            at = end
        self._keep(at)
        return found

    def _keep(self, start: int) -> None:
        """Keep what is left of ``start`` on, in a buffer that the frame that it begins fits into."""
        rest = self._held[start : self._filled]
        size = _LENGTH.size + _LENGTH.unpack_from(rest)[0] if len(rest) >= _LENGTH.size else 0
        if size > len(self._held):
            held = memoryview(bytearray(size))
            held[: len(rest)] = rest
            self._held = held
        elif start:
            kept = bytes(rest)
            if size <= _SCRATCH:
                self._held = memoryview(self._scratch)
            self._held[: len(kept)] = kept
        self._filled = len(rest)


class Badge(NamedTuple):
    """Which gang a process belongs to, and its number there."""

    epoch: int
    incarnation: int
    number: int

    def pack(
        self, kind: FrameKind, stage: int, batch: int, parts: Sequence[bytes | memoryview] = ()
    ) -> list[bytes | memoryview]:
        """Return the pieces of a frame; large ones are not copied."""
        size = _REST + sum(map(len, parts))
        head = _HEAD.pack(size, kind, stage, self.number, self.epoch, self.incarnation, batch)
        return [head, *parts]

    def check(self, frame: Frame, sender: int) -> None:
        """Refuse a frame that is not of this gang, or not of who sent it.

        Raises
        ------
        ChannelError
            It is not.
        """
        told = frame.epoch, frame.incarnation, frame.producer
        if told != (self.epoch, self.incarnation, sender):
            raise ChannelError(
                f"a frame of epoch {frame.epoch}, incarnation {frame.incarnation} and task"
                f" {frame.producer} came by the channel of task {sender} in epoch {self.epoch},"
                f" incarnation {self.incarnation}",
                hint="a task of an earlier gang has woken up; this one ends and the next goes on",
            )


def pack_block(block: Block) -> list[bytes | memoryview]:
    """Return the pieces of a block.

    Examples
    --------
    >>> block = Block(3, 1, BlockKind.RECORDS, "count", 0, b"rows", 9)
    >>> unpack_block(1, b"".join(pack_block(block))) == block
    True
    """
    name = block.operator.encode()
    head = _BLOCK.pack(block.partition, block.kind, block.port, block.attempt, len(name))
    return [head + name, block.payload]


def unpack_block(stage: int, payload: bytes) -> Block:
    """Return the block that a frame holds."""
    partition, kind, port, attempt, size = _BLOCK.unpack_from(payload)
    start = _BLOCK.size + size
    operator = payload[_BLOCK.size : start].decode()
    return Block(partition, stage, BlockKind(kind), operator, port, payload[start:], attempt)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a process listens: a path on its machine, or a host and a port."""

    place: str
    port: int = 0

    def text(self) -> str:
        """Return it as text, which :meth:`parse` reads."""
        return f"{self.place}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read what :meth:`text` returned."""
        place, _, port = text.rpartition(":")
        return cls(place, int(port))


class MemberListener:
    """Takes the connections of a process.

    Parameters
    ----------
    folder
        A folder that only its owner may open, where all of the gang is on one machine: connections
        are Unix sockets then; None: they are TCP.
    host
        The address of this machine as others reach it, for TCP.
    bound
        The address to listen at, where that is another one.
    """

    def __init__(self, folder: Path | None, host: str = "", bound: str = "") -> None:
        if folder is not None:
            path = str(folder / f"{os.getpid()}-{os.urandom(4).hex()}")
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.bind(path)
            self.address = Address(path)
        else:
            place = bound or host
            family = socket.AF_INET6 if ":" in place else socket.AF_INET
            self._socket = socket.socket(family)
            self._socket.bind((place, 0))
            self.address = Address(host, self._socket.getsockname()[1])
        self._socket.listen(256)

    def accept(self, seconds: float) -> socket.socket | None:
        """Return the next connection, or None if there is none in time."""
        self._socket.settimeout(max(seconds, 0.001))
        try:
            made, _ = self._socket.accept()
        except TimeoutError:
            return None
        return made

    def close(self) -> None:
        """Take no more connections."""
        self._socket.close()
        if not self.address.port:
            Path(self.address.place).unlink(missing_ok=True)


def connect(address: Address) -> socket.socket:
    """Connect to where another process listens.

    Raises
    ------
    OSError
        Nobody does.
    """
    if address.port:
        made = socket.create_connection((address.place, address.port), _PATIENCE)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(_PATIENCE)
    made.connect(address.place)
    return made


def ready(channels: Sequence[MemberChannel], seconds: float | None) -> Iterable[MemberChannel]:
    """Wait until some channels can be read, or written if they have to; return these."""
    poll, by_number = select.poll(), {}
    for channel in channels:
        number = channel.socket.fileno()
        by_number[number] = channel
        poll.register(number, select.POLLIN | (select.POLLOUT if channel.sends else 0))
    wait = None if seconds is None else max(0, round(seconds * 1000))
    return [by_number[number] for number, _ in poll.poll(wait)]


def own_host(called: Address) -> str:
    """Return this machine's address on the way to where another one listens."""
    if not called.port:
        return ""
    family = socket.AF_INET6 if ":" in called.place else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as way:
        way.connect((called.place, called.port))
        host: str = way.getsockname()[0]
        return host


class MemberChannel:
    """One connection, to the member whose number it has."""

    def __init__(self, made: socket.socket, number: int) -> None:
        self.socket = made
        self.number = number
        self._reader = FrameReader()
        self._out: deque[memoryview] = deque()

    @property
    def sends(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._out)

    def put(self, parts: Iterable[bytes | memoryview]) -> None:
        """Send what can be sent at once, and keep the rest."""
        self._out.extend(memoryview(part) for part in parts if len(part))
        self.flush()

    def flush(self) -> None:
        """Send as much as can be sent at once."""
        out = self._out
        try:
            while out:
                sent = self.socket.sendmsg(list(out)[:64])
                while out and sent >= len(out[0]):
                    sent -= len(out.popleft())
                if sent:
                    out[0] = out[0][sent:]
        except BlockingIOError:
            return

    def take(self) -> list[Frame] | None:
        """Return the frames that have come, or None if none will come any more."""
        try:
            count = self.socket.recv_into(self._reader.buffer())
        except BlockingIOError:
            return []
        return self._reader.took(count) if count else None


# Whoever connects and whoever is called prove to each other that they know the secret: each for a
# number that the other has made up for this connection.


class Hello(msgspec.Struct, frozen=True):
    """What a process says of itself when it connects."""

    number: int
    pid: int
    host: str
    #: Where it listens itself.
    address: str
    nonce: bytes
    proof: bytes


_NONCE_BYTES, _PROOF_BYTES = 16, 32


def _exactly(made: socket.socket, size: int, until: float) -> bytes:
    """Read so many bytes.

    Raises
    ------
    OSError
        They do not come until then.
    """
    found = b""
    while len(found) < size:
        made.settimeout(max(0.001, until - time.monotonic()))
        part = made.recv(size - len(found))
        if not part:
            raise ConnectionResetError("the connection ended")
        found += part
    return found


class Mesh:
    """The channels of one member of a gang.

    Parameters
    ----------
    badge
        The gang, and the member's number.
    secret
        What all members of the gang know.
    """

    def __init__(self, badge: Badge, secret: bytes) -> None:
        self.badge = badge
        self._secret = secret
        self.channels: dict[int, MemberChannel] = {}
        #: Frames that have come, in the order of each channel.
        self.frames: deque[Frame] = deque()
        #: The first member whose channel ended.
        self.gone: int | None = None

    def call(self, address: Address, number: int, listens: str = "") -> bytes:
        """Connect to a member, and say who this is.

        Returns
        -------
        bytes
            What :meth:`welcomed` takes, which must come before anything else is believed.

        Raises
        ------
        ChannelError
            Nobody answers there.
        """
        try:
            made = connect(address)
            challenge = _exactly(made, _NONCE_BYTES, time.monotonic() + _PATIENCE)
            nonce = os.urandom(_NONCE_BYTES)
            me = self.badge.number
            proof = self._proof(b"calls", challenge, me)
            hello = Hello(me, os.getpid(), socket.gethostname(), listens, nonce, proof)
            parts = self.badge.pack(FrameKind.HELLO, 0, 0, [msgspec.msgpack.encode(hello)])
            made.sendall(b"".join(parts))
        except OSError as error:
            raise ChannelError(f"{_name(number)} does not answer: {error}") from error
        self._add(MemberChannel(made, number))
        return nonce

    def admit(self, made: socket.socket) -> Hello | None:
        """Have a process that has connected prove who it is; None: it does not, and is cut off."""
        try:
            until = time.monotonic() + _PATIENCE
            made.settimeout(_PATIENCE)
            challenge = os.urandom(_NONCE_BYTES)
            made.sendall(challenge)
            (size,) = _LENGTH.unpack(_exactly(made, _LENGTH.size, until))
            payload = _exactly(made, min(size, _LONGEST_HELLO), until)[_REST:]
            hello = msgspec.msgpack.decode(payload, type=Hello)
        except (OSError, msgspec.DecodeError):
            made.close()
            return None
        if not hmac.compare_digest(hello.proof, self._proof(b"calls", challenge, hello.number)):
            made.close()
            return None
        self._add(MemberChannel(made, hello.number))
        return hello

    def welcome(self, hello: Hello, kind: FrameKind, told: bytes = b"") -> None:
        """Prove to a process that was admitted who this is."""
        proof = self._proof(b"answers", hello.nonce, self.badge.number)
        self.send(hello.number, kind, 0, 0, [proof, told])

    def welcomed(self, number: int, nonce: bytes, until: float) -> bytes:
        """Wait for the proof of a member that was called, and return what came with it.

        Raises
        ------
        ChannelError
            It has not come, or is none.
        """
        # Another member may be done, and send what belongs to a batch already.
        early: list[Frame] = []
        while (frame := self.next(until)) is not None:
            if frame.producer == number:
                self.frames.extendleft(reversed(early))
                proof = frame.payload[:_PROOF_BYTES]
                if hmac.compare_digest(proof, self._proof(b"answers", nonce, number)):
                    return frame.payload[_PROOF_BYTES:]
                break
            early.append(frame)
        raise ChannelError(f"{_name(number)} has not proven that it belongs to the gang")

    def _proof(self, who: bytes, nonce: bytes, number: int) -> bytes:
        """Return the proof that a member knows the secret; it is of no use for another nonce."""
        epoch, incarnation, _ = self.badge
        told = struct.pack(">HII", number, epoch, incarnation)
        return hmac.digest(self._secret, who + nonce + told, "sha256")

    def _add(self, channel: MemberChannel) -> None:
        channel.socket.settimeout(0)
        self.channels[channel.number] = channel

    def send(
        self,
        number: int,
        kind: FrameKind,
        stage: int,
        batch: int,
        parts: Sequence[bytes | memoryview] = (),
    ) -> None:
        """Send a frame to a member; what does not fit at once is sent by :meth:`pump`.

        Raises
        ------
        ChannelError
            The member is gone.
        """
        channel = self.channels.get(number)
        if channel is None:
            raise self._lost(number)
        try:
            channel.put(self.badge.pack(kind, stage, batch, parts))
        except OSError as error:
            raise self._lost(number) from error

    def pump(self, seconds: float | None) -> None:
        """Send and receive what can be; wait for up to some seconds if nothing can.

        Raises
        ------
        ChannelError
            A member is gone, or has sent what is not of this gang; what others have sent is in
            ``frames``.
        """
        gone: list[int] = []
        for channel in ready(list(self.channels.values()), seconds):
            with suppress(OSError):
                # A member that takes nothing more may have said why.
                channel.flush()
            try:
                found = channel.take()
            except OSError:
                found = None
            for frame in found or ():
                self.badge.check(frame, channel.number)
                self.frames.append(frame)
            if found is None:
                gone.append(channel.number)
                self.channels.pop(channel.number).socket.close()
        if gone:
            raise self._lost(gone[0])

    def next(self, until: float | None = None) -> Frame | None:
        """Return the next frame, or None if there is none until a time of the monotonic clock."""
        while not self.frames:
            rest = None if until is None else until - time.monotonic()
            if rest is not None and rest <= 0:
                return None
            self.pump(rest)
        return self.frames.popleft()

    def drain(self, until: float) -> None:
        """Send what waits to be sent, until a time of the monotonic clock."""
        while any(channel.sends for channel in self.channels.values()):
            rest = until - time.monotonic()
            if rest <= 0:
                return
            self.pump(rest)

    def close(self) -> None:
        """Close all channels."""
        for channel in self.channels.values():
            channel.socket.close()
        self.channels.clear()

    def _lost(self, number: int) -> ChannelError:
        if self.gone is None:
            self.gone = number
        return ChannelError(f"{_name(number)} has gone: its channel ended")


def _name(number: int) -> str:
    return "the driver" if number == DRIVER else f"task {number}"
