"""Frames of the remoting protocol: commands from bytes and bytes from commands.

A frame is a length (4 bytes, not counting itself), one byte for the kind of header, the header's
length (3 bytes), the header and the body.  Both kinds of header are read, JSON is written.
"""

from __future__ import annotations

import base64
import hmac
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
import numpy as np

from headrace.errors import ProtocolError
from headrace.protocol.codes import VERSION, RequestCode

# Headers of the binary kind (ROCKETMQ), which some clients write instead of JSON.

_FIXED = struct.Struct(">hBhii")
_SHORT = struct.Struct(">h")


def read_header(
    data: memoryview,
) -> tuple[int, int, int, int, int, str | None, dict[str, str]]:
    """Read code, number of the language, version, opaque, flag, remark and fields.

    Raises
    ------
    ProtocolError
        The bytes are not such a header.
    """
    try:
        code, language, version, opaque, flag = _FIXED.unpack_from(data)
        remark, at = _sized_text(data, _FIXED.size)
        (size,) = _LENGTH.unpack_from(data, at)
        ext = _fields(data, at + 4, at + 4 + size)
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"the binary header cannot be read: {error}") from error
    return code, language, version, opaque, flag, remark, ext


def _fields(data: memoryview, at: int, end: int) -> dict[str, str]:
    if not at <= end <= len(data):
        raise ProtocolError(f"the binary header's fields end at {end} of {len(data)} bytes")
    ext: dict[str, str] = {}
    while at < end:
        (size,) = _SHORT.unpack_from(data, at)
        key = _slice(data, at + 2, size)
        value, at = _sized_text(data, at + 2 + size)
        if value is not None:
            ext[key] = value
    return ext


def _sized_text(data: memoryview, at: int) -> tuple[str | None, int]:
    (size,) = _LENGTH.unpack_from(data, at)
    text = _slice(data, at + 4, size)
    return text or None, at + 4 + size


def _slice(data: memoryview, at: int, size: int) -> str:
    if size < 0 or at + size > len(data):
        raise ProtocolError(f"a text of {size} bytes at {at} leaves a header of {len(data)}")
    return str(data[at : at + size], "utf-8")


# Commands: the requests and responses of the remoting protocol, as values.

#: Anything that holds contiguous bytes.
Buffer = bytes | bytearray | memoryview

_RESPONSE = 1
_ONEWAY = 2


@dataclass(slots=True)
class Command:
    """One request or response.

    >>> request = Command(105, {"topic": "lines"}, opaque=7)
    >>> answer = request.reply(body=b"{}")
    >>> answer.is_response, answer.opaque
    (True, 7)
    """

    #: A request's code says what to do, a response's how it ended.
    code: int
    #: The request's or response's own fields; every value is text on the wire.
    ext: dict[str, str] = field(default_factory=dict)
    #: Received bodies are views; bodies to send may come in pieces, which are not copied.
    body: Buffer | Sequence[Buffer] = b""
    #: What went wrong, in responses.
    remark: str | None = None
    #: Number that pairs a response with its request.
    opaque: int = 0
    flag: int = 0
    language: str = "PYTHON"
    version: int = VERSION

    @property
    def is_response(self) -> bool:
        """Whether this answers a request of ours."""
        return bool(self.flag & _RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Whether the sender wants no answer."""
        return bool(self.flag & _ONEWAY)

    @property
    def payload(self) -> Buffer:
        """The body as one buffer, whatever pieces it came in."""
        return self.body if isinstance(self.body, Buffer) else b"".join(self.body)

    def reply(
        self,
        code: int = 0,
        remark: str | None = None,
        ext: dict[str, str] | None = None,
        body: Buffer | Sequence[Buffer] = b"",
    ) -> Command:
        """Make the response to this request."""
        return Command(int(code), ext or {}, body, remark, self.opaque, _RESPONSE)


#: Largest frame that RocketMQ takes by default.
MAX_FRAME = 16 * 1024 * 1024

_MAX_HEADER = 1 << 24
#: More fields than this in one header are nobody's request.
_MAX_FIELDS = 4096
_LENGTH = struct.Struct(">i")
_PREFIX = struct.Struct(">iI")
_LANGUAGES = (
    "JAVA",
    "CPP",
    "DOTNET",
    "PYTHON",
    "DELPHI",
    "ERLANG",
    "RUBY",
    "OTHER",
    "HTTP",
    "GO",
    "PHP",
    "OMS",
    "RUST",
    "NODE_JS",
)


#: Java's int: what is longer is not a header, and could not be echoed.
_Int = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]


class _Header(msgspec.Struct, gc=False):
    code: _Int
    language: str | None = None
    version: _Int = 0
    opaque: _Int = 0
    flag: _Int = 0
    remark: str | None = None
    extFields: dict[str, str] | None = None  # noqa: N815  (the wire's own name)


class _LooseHeader(msgspec.Struct, gc=False):
    code: _Int
    language: object = None
    version: _Int = 0
    opaque: _Int = 0
    flag: _Int = 0
    remark: str | None = None
    extFields: dict[str, object] | None = None  # noqa: N815


_strict_header = msgspec.json.Decoder(_Header)
_loose_header = msgspec.json.Decoder(_LooseHeader)
_encode_header = msgspec.json.Encoder().encode


def encode(command: Command) -> list[Buffer]:
    """Turn a command into buffers that follow one another on the wire.

    The first holds length and header, the others are the body's pieces themselves.

    Raises
    ------
    ProtocolError
        The header or the frame is too long for its length field.
    """
    body = command.body
    pieces: list[Buffer] = [b""]
    if isinstance(body, Buffer):
        if body:
            pieces.append(body)
    else:
        pieces.extend(body)
    header = _header_bytes(command)
    total = 4 + len(header) + sum(map(_size, pieces))
    if len(header) >= _MAX_HEADER or total > 0x7FFF_FFFF:
        raise ProtocolError(
            f"a command of {total} bytes, {len(header)} of them header, fits no frame",
            hint="send less in one request",
        )
    pieces[0] = _PREFIX.pack(total, len(header)) + header
    return pieces


def _size(piece: Buffer) -> int:
    return piece.nbytes if isinstance(piece, memoryview) else len(piece)


def _header_bytes(command: Command) -> bytes:
    header: dict[str, object] = {
        "code": int(command.code),
        "language": command.language,
        "version": command.version,
        "opaque": command.opaque,
        "flag": command.flag,
        "serializeTypeCurrentRPC": "JSON",
        # Java throws when a response that should have fields has no map for them.
        "extFields": command.ext,
    }
    if command.remark is not None:
        header["remark"] = command.remark
    return _encode_header(header)


def decode(frame: Buffer, max_header: int = _MAX_HEADER, max_fields: int = _MAX_FIELDS) -> Command:
    """Read one frame, given without its first four bytes (the length).

    The command's body is a view into the frame.

    Parameters
    ----------
    frame
        The frame's bytes.
    max_header, max_fields
        Longest header that is accepted, and most fields in it.

    Raises
    ------
    ProtocolError
        The frame does not follow the protocol.

    Examples
    --------
    >>> frame = b"".join(encode(Command(34, body=b"{}", opaque=3)))
    >>> decode(frame[4:]).opaque
    3
    """
    view = memoryview(frame)
    if len(view) < 4:
        raise ProtocolError(f"a frame of {len(view)} bytes has no room for its header's length")
    (mark,) = _LENGTH.unpack_from(view)
    kind, size = (mark >> 24) & 0xFF, mark & 0xFFFFFF
    end = 4 + size
    if end > len(view):
        raise ProtocolError(f"a header of {size} bytes does not fit a frame of {len(view)}")
    if size > max_header:
        raise ProtocolError(f"a header of {size} bytes is too long, {max_header} are possible")
    if kind == 0:
        command = _json_header(view[4:end])
    elif kind == 1:
        command = _binary_header(view[4:end])
    else:
        raise ProtocolError(f"header kind {kind} is neither JSON (0) nor ROCKETMQ (1)")
    if len(command.ext) > max_fields:
        message = f"a header with {len(command.ext)} fields is too much, {max_fields} are possible"
        raise ProtocolError(message)
    if end < len(view):
        command.body = view[end:]
    return command


def _json_header(data: memoryview) -> Command:
    try:
        header = _strict_header.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _loose_json_header(data)
    return Command(
        header.code,
        header.extFields or {},
        b"",
        header.remark,
        header.opaque,
        header.flag,
        header.language or "OTHER",
        header.version,
    )


def _loose_json_header(data: memoryview) -> Command:
    # Java coerces numbers and booleans among the fields to text and drops nulls: so do we.
    try:
        header = _loose_header.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"the JSON header cannot be read: {error}") from error
    ext = {k: _text(v) for k, v in (header.extFields or {}).items() if v is not None}
    language = header.language if isinstance(header.language, str) else "OTHER"
    return Command(
        header.code, ext, b"", header.remark, header.opaque, header.flag, language, header.version
    )


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def _binary_header(data: memoryview) -> Command:
    code, language, version, opaque, flag, remark, ext = read_header(data)
    name = _LANGUAGES[language] if language < len(_LANGUAGES) else "OTHER"
    return Command(code, ext, b"", remark, opaque, flag, name, version)


class FrameBuffer:
    """Cuts a stream of bytes into commands.

    Frames that arrive whole are not copied at all; of a frame that arrives in pieces each byte
    is copied once, into a buffer of the frame's final size.

    Parameters
    ----------
    max_frame, max_header, max_fields
        Longest frame and header that are accepted, and most fields of a header.

    Examples
    --------
    >>> stream = b"".join(encode(Command(34, opaque=1)) + encode(Command(35, opaque=2)))
    >>> buffer = FrameBuffer()
    >>> [c.opaque for c in buffer.feed(stream[:10])]
    []
    >>> [c.opaque for c in buffer.feed(stream[10:])]
    [1, 2]
    """

    __slots__ = (
        "_filled",
        "_frame",
        "_head",
        "_length",
        "_max_fields",
        "_max_frame",
        "_max_header",
        "_size",
        "started",
    )

    def __init__(
        self,
        max_frame: int = MAX_FRAME,
        max_header: int = _MAX_HEADER,
        max_fields: int = _MAX_FIELDS,
    ) -> None:
        self._max_frame = max_frame
        self._max_header = max_header
        self._max_fields = max_fields
        #: Bytes of a length field that has not arrived whole.
        self._length = b""
        #: Size of the frame under way (0: none), and how much of it has arrived.
        self._size = 0
        self._filled = 0
        #: Its first bytes, as they came, and from its second piece on all of it.
        self._head = memoryview(b"")
        self._frame: memoryview | None = None
        #: Frames so far that did not arrive in one piece.
        self.started = 0

    @property
    def pending(self) -> int:
        """Size of the frame that has begun and not ended, 0 between frames."""
        return self._size or len(self._length)

    def feed(self, data: Buffer) -> list[Command]:
        """Take the next bytes of the stream and return the commands that they complete.

        Raises
        ------
        ProtocolError
            The stream does not follow the protocol: nothing more can be read from it.
        """
        return list(self.commands(data))

    def commands(self, data: Buffer) -> Iterator[Command]:
        """Take the next bytes of the stream and read the commands in them one by one.

        Bytes must not be added before the commands of those before have been read.

        Raises
        ------
        ProtocolError
            The stream does not follow the protocol: nothing more can be read from it.
        """
        # Bodies are views, so they must not rest on memory that the caller may use again.
        view = memoryview(data if isinstance(data, bytes) else bytes(data))
        at = 0
        end = len(view)
        while at < end:
            if self._size:
                at = self._fill(view, at)
                if self._filled == self._size:
                    yield self._decode(self._whole())
                continue
            if self._length or end - at < 4:
                at = self._read_length(view, at)
                if len(self._length) < 4:
                    return
                size, self._length = self._checked(self._length), b""
            else:
                size = self._checked(view[at : at + 4])
                at += 4
            if at + size <= end:
                frame = view[at : at + size]
                at += size
                yield self._decode(frame)
            else:
                self._start(size, view[at:])
                return

    def _decode(self, frame: memoryview) -> Command:
        return decode(frame, self._max_header, self._max_fields)

    def _read_length(self, view: memoryview, at: int) -> int:
        until = min(at + 4 - len(self._length), len(view))
        self._length += view[at:until]
        return until

    def _start(self, size: int, head: memoryview) -> None:
        # No memory is taken before a second piece comes, however much the peer claims to send.
        self._size = size
        self._head = head
        self._filled = len(head)
        self.started += 1

    def _fill(self, view: memoryview, at: int) -> int:
        frame = self._frame
        if frame is None:
            frame = self._frame = np.empty(self._size, np.uint8).data
            frame[: len(self._head)] = self._head
            self._head = memoryview(b"")
        until = min(at + self._size - self._filled, len(view))
        frame[self._filled : self._filled + until - at] = view[at:until]
        self._filled += until - at
        return until

    def _whole(self) -> memoryview:
        assert self._frame is not None
        frame = self._frame.toreadonly()
        self._frame = None
        self._size = 0
        return frame

    def _checked(self, length: Buffer) -> int:
        (size,) = _LENGTH.unpack(length)
        if not 4 <= size <= self._max_frame:
            raise ProtocolError(
                f"a frame claims {size} bytes, between 4 and {self._max_frame} are possible",
                hint="check that the peer speaks RocketMQ's remoting protocol on this port",
            )
        return int(size)


# Signatures of requests, as RocketMQ's access control has them.
#
# What is signed: the values of all fields but the signature, in the order of their names, and then
# the body.  The signature is the Base64 text of an HMAC-SHA1 under the secret key.

ACCESS_KEY = "AccessKey"

SIGNATURE = "Signature"

SECURITY_TOKEN = "SecurityToken"  # noqa: S105  (the name of a field)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who sends requests; the secrets in it are never printed.

    >>> Credentials("app", "12345678")
    Credentials(access_key='app')
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)


def signature(ext: dict[str, str], body: Buffer, secret_key: str) -> str:
    """Compute the signature of a request.

    >>> signature({"topic": "lines", "AccessKey": "app"}, b"", "12345678")
    'vKf+83l/zxSKqpBzz3SBNYcWmyw='
    """
    text = "".join([ext[name] for name in sorted(ext) if name != SIGNATURE])
    mac = hmac.new(secret_key.encode(), text.encode("utf-8", "surrogatepass"), "sha1")
    mac.update(body)
    return base64.b64encode(mac.digest()).decode("ascii")


def sign(command: Command, credentials: Credentials) -> None:
    """Add access key and signature to a request that is complete but for them."""
    # Fields are shared between the tries of a request.
    ext = dict(command.ext)
    ext[ACCESS_KEY] = credentials.access_key
    if credentials.security_token is not None:
        ext[SECURITY_TOKEN] = credentials.security_token
    ext[SIGNATURE] = signature(ext, command.payload, credentials.secret_key)
    command.ext = ext


def is_signed_with(command: Command, secret_key: str) -> bool:
    """Return whether a request carries the signature that the secret key makes."""
    given = command.ext.get(SIGNATURE, "")
    right = signature(command.ext, command.payload, secret_key)
    # In constant time: how far they agree must not show.
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), right.encode())


def request_name(code: int) -> str:
    """Return the name of a request, for errors.

    >>> request_name(105), request_name(9999)
    ('GET_ROUTEINFO_BY_TOPIC', 'request 9999')
    """
    try:
        return RequestCode(code).name
    except ValueError:
        return f"request {code}"
