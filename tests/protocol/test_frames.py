from __future__ import annotations

import contextlib
import json
import struct

import pytest
from hypothesis import given, strategies as st

from headrace.errors import ProtocolError
from headrace.protocol.codes import VERSION, RequestCode
from headrace.protocol.frames import Buffer, Command, FrameBuffer, decode, encode

INT = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
COMMANDS = st.builds(
    Command,
    code=st.integers(0, 30_000),
    ext=st.dictionaries(TEXT, TEXT, max_size=4),
    body=st.binary(max_size=40),
    remark=st.none() | TEXT,
    opaque=INT,
    flag=st.integers(0, 3),
    language=st.sampled_from(["JAVA", "PYTHON", "OTHER"]),
    version=st.integers(0, 1000),
)


def on_wire(command: Command) -> bytes:
    return b"".join(encode(command))


def plain(command: Command) -> Command:
    command.body = bytes(command.payload)
    return command


def binary_frame(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(header) | 1 << 24) + header + body


def json_frame(header: object, body: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack(">I", len(text)) + text + body


@given(COMMANDS)
def test_decode_reverses_encode(command: Command) -> None:
    stream = on_wire(command)
    assert struct.unpack_from(">i", stream) == (len(stream) - 4,)
    assert plain(decode(stream[4:])) == command


@given(st.lists(COMMANDS, max_size=5), st.lists(st.integers(0, 600), max_size=8))
def test_any_cut_of_the_stream_gives_the_same_commands(
    commands: list[Command], cuts: list[int]
) -> None:
    stream = b"".join(map(on_wire, commands))
    buffer = FrameBuffer()
    found: list[Command] = []
    at = 0
    for cut in [*sorted(cuts), len(stream)]:
        found += buffer.feed(stream[at:cut])
        at = max(at, min(cut, len(stream)))
    assert [plain(command) for command in found] == commands


def test_stream_may_come_byte_by_byte() -> None:
    stream = on_wire(Command(34, {"a": "b"}, b"body", opaque=5)) * 2
    buffer = FrameBuffer()
    found = [c for i in range(len(stream)) for c in buffer.feed(stream[i : i + 1])]
    assert [bytes(command.payload) for command in found] == [b"body", b"body"]


@given(st.binary(max_size=200))
def test_garbage_is_a_protocol_error(garbage: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode(garbage)


@given(st.binary(max_size=100), st.integers(0, 1), st.integers(0, 110))
def test_garbage_in_a_header_is_a_protocol_error(garbage: bytes, kind: int, size: int) -> None:
    with contextlib.suppress(ProtocolError):
        decode(struct.pack(">I", size | kind << 24) + garbage)


@given(st.binary(max_size=100))
def test_garbage_in_the_stream_is_a_protocol_error(garbage: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        FrameBuffer().feed(garbage)


@given(COMMANDS, st.data())
def test_damaged_frame_is_a_command_or_a_protocol_error(
    command: Command, data: st.DataObject
) -> None:
    frame = bytearray(on_wire(command)[4:])
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        decode(frame)


def test_deeply_nested_header_is_a_protocol_error() -> None:
    header = b'{"code":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(ProtocolError):
        decode(struct.pack(">I", len(header)) + header)


def test_header_is_what_java_expects() -> None:
    stream = on_wire(Command(RequestCode.PULL_MESSAGE, {"topic": "t"}, opaque=9))
    size = int.from_bytes(stream[4:8])
    assert size >> 24 == 0
    assert json.loads(stream[8 : 8 + size]) == {
        "code": 11,
        "language": "PYTHON",
        "version": VERSION,
        "opaque": 9,
        "flag": 0,
        "serializeTypeCurrentRPC": "JSON",
        "extFields": {"topic": "t"},
    }


def test_response_has_a_field_map_even_when_empty() -> None:
    stream = on_wire(Command(34, opaque=3).reply(1, "no"))
    header = json.loads(stream[8:])
    assert header["extFields"] == {}
    assert (header["code"], header["remark"], header["opaque"], header["flag"]) == (1, "no", 3, 1)


def test_numbers_and_booleans_among_the_fields_become_text() -> None:
    fields = {"a": 1, "b": True, "c": None, "d": "x", "e": -2.5}
    command = decode(json_frame({"code": 11, "extFields": fields, "unknown": [1]}))
    assert command.ext == {"a": "1", "b": "true", "d": "x", "e": "-2.5"}


def test_unknown_language_is_other() -> None:
    assert decode(json_frame({"code": 1, "language": None})).language == "OTHER"
    assert decode(json_frame({"code": 1, "language": 77})).language == "OTHER"


def test_binary_header_is_read() -> None:
    header = struct.pack(">hBhii", 310, 0, 479, 77, 2)
    header += struct.pack(">i", 2) + b"hm"
    fields = struct.pack(">h", 1) + b"b" + struct.pack(">i", 5) + b"lines"
    fields += struct.pack(">h", 5) + b"empty" + struct.pack(">i", 0)
    header += struct.pack(">i", len(fields)) + fields
    command = decode(binary_frame(header, b"body"))
    assert (command.code, command.language, command.version) == (310, "JAVA", 479)
    assert (command.opaque, command.is_oneway, command.is_response) == (77, True, False)
    assert (command.remark, command.ext) == ("hm", {"b": "lines"})
    assert command.payload == b"body"


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (struct.pack(">i", -1), "leaves"),
        (struct.pack(">i", 99), "leaves"),
        (struct.pack(">ii", 0, -5), "fields end"),
        (struct.pack(">ii", 0, 5), "fields end"),
        (struct.pack(">iih", 0, 2, -1), "leaves"),
        (struct.pack(">iih", 0, 2, 1), "leaves"),
        (struct.pack(">i", 1) + b"\xff" + struct.pack(">i", 0), "decode"),
        (b"", "buffer"),
    ],
)
def test_wrong_binary_header_is_named(tail: bytes, reason: str) -> None:
    header = struct.pack(">hBhii", 1, 99, 0, 0, 0) + tail
    with pytest.raises(ProtocolError, match=reason):
        decode(binary_frame(header))


@pytest.mark.parametrize("size", [-1, 0, 3, 101])
def test_impossible_length_is_refused_before_any_of_the_frame(size: int) -> None:
    with pytest.raises(ProtocolError, match="between 4 and 100"):
        FrameBuffer(max_frame=100).feed(struct.pack(">i", size))


def test_http_request_is_refused_with_a_hint() -> None:
    with pytest.raises(ProtocolError, match="remoting protocol on this port"):
        FrameBuffer().feed(b"GET / HTTP/1.1\r\n\r\n")


def test_header_longer_than_its_frame_is_refused() -> None:
    with pytest.raises(ProtocolError, match="does not fit"):
        decode(struct.pack(">I", 50) + b"{}")


def test_unknown_kind_of_header_is_refused() -> None:
    with pytest.raises(ProtocolError, match="header kind 7"):
        decode(b"\x07\x00\x00\x00")


def test_header_too_long_for_its_length_is_refused() -> None:
    with pytest.raises(ProtocolError, match="fits no frame"):
        encode(Command(1, {"a": "x" * (1 << 24)}))


def test_pieces_of_a_body_are_not_copied() -> None:
    pieces: list[Buffer] = [bytes(10), memoryview(bytes(20)), bytearray(5)]
    buffers = encode(Command(1, body=pieces))
    assert all(a is b for a, b in zip(buffers[1:], pieces, strict=True))
    assert struct.unpack_from(">i", buffers[0])[0] == sum(map(len, buffers)) - 4


def test_wide_pieces_count_their_bytes() -> None:
    numbers = memoryview(bytes(32)).cast("q")
    buffers = encode(Command(1, body=[numbers]))
    assert struct.unpack_from(">i", buffers[0])[0] == len(buffers[0]) - 4 + 32


def test_body_of_a_whole_frame_is_a_view_of_what_arrived() -> None:
    stream = on_wire(Command(1, body=b"x" * 100))
    (command,) = FrameBuffer().feed(stream)
    assert isinstance(command.body, memoryview)
    assert command.body.obj is stream


def test_bodies_survive_when_the_caller_reuses_its_buffer() -> None:
    stream = bytearray(on_wire(Command(1, body=b"x" * 100)))
    (command,) = FrameBuffer().feed(stream)
    stream[:] = bytes(len(stream))
    assert command.payload == b"x" * 100


def test_payload_joins_pieces() -> None:
    assert Command(1, body=[b"to ", memoryview(b"be")]).payload == b"to be"
    assert Command(1).payload == b""
