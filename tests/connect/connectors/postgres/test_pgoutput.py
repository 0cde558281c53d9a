"""The decoder of pgoutput, on bytes as the protocol's description has them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, strategies as st

from headrace.connect.connectors.postgres.pgoutput import (
    UNCHANGED,
    Begin,
    CommitMessage,
    Delete,
    Insert,
    MessageError,
    Relation,
    RelationColumn,
    Truncate,
    Update,
    decode,
    lsn_number,
    lsn_text,
)

RELATION = (
    b"R" + struct.pack("!I", 16385) + b"public\0t\0d" + struct.pack("!H", 2)
    + b"\x01id\0" + struct.pack("!Ii", 23, -1)
    + b"\x00n\0" + struct.pack("!Ii", 1700, 655366)
)  # fmt: skip
ROW = struct.pack("!H", 2) + b"t" + struct.pack("!I", 1) + b"7" + b"n"
KEY = struct.pack("!H", 2) + b"t" + struct.pack("!I", 1) + b"6" + b"u"

MESSAGES = [
    (b"B" + struct.pack("!QqI", 99, 1_000_000, 5), Begin(99, 946_684_801_000, 5)),
    (b"C" + struct.pack("!BQQq", 0, 99, 120, 0), CommitMessage(99, 120, 946_684_800_000)),
    (
        RELATION,
        Relation(
            16385,
            "public",
            "t",
            "d",
            (RelationColumn("id", 23, -1, True), RelationColumn("n", 1700, 655366, False)),
        ),
    ),
    (b"I" + struct.pack("!I", 1) + b"N" + ROW, Insert(1, (b"7", None))),
    (b"U" + struct.pack("!I", 1) + b"N" + ROW, Update(1, None, (b"7", None), False)),
    (
        b"U" + struct.pack("!I", 1) + b"K" + KEY + b"N" + ROW,
        Update(1, (b"6", UNCHANGED), (b"7", None), True),
    ),
    (
        b"U" + struct.pack("!I", 1) + b"O" + KEY + b"N" + ROW,
        Update(1, (b"6", UNCHANGED), (b"7", None), False),
    ),
    (b"D" + struct.pack("!I", 1) + b"K" + KEY, Delete(1, (b"6", UNCHANGED), True)),
    (b"T" + struct.pack("!IBII", 2, 1, 7, 8), Truncate((7, 8))),
]


@pytest.mark.parametrize(("data", "message"), MESSAGES, ids=lambda one: type(one).__name__)
def test_message_is_read(data: bytes, message: object) -> None:
    assert decode(data) == message


@pytest.mark.parametrize("data", [b"Oxx", b"Yxx", b"Mxx"])
def test_messages_that_say_nothing_about_rows_are_left_out(data: bytes) -> None:
    assert decode(data) is None


@pytest.mark.parametrize("data", [b"", b"?", b"I\0\0\0\1X", b"I\0\0\0\1N\0\1t\0\0\0\7ab"])
def test_damaged_message_is_refused_and_shown(data: bytes) -> None:
    with pytest.raises(MessageError):
        decode(data)


@given(st.sampled_from([data for data, _ in MESSAGES]), st.data())
def test_cut_message_is_refused(data: bytes, draws: st.DataObject) -> None:
    end = draws.draw(st.integers(0, len(data) - 1))
    with pytest.raises(MessageError):
        decode(data[:end])


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        decode(data)
    except MessageError:
        return


@given(st.integers(0, 2**64 - 1))
def test_place_in_the_log_is_written_as_the_server_does(lsn: int) -> None:
    assert lsn_number(lsn_text(lsn)) == lsn


def test_text_that_is_no_place_is_refused() -> None:
    with pytest.raises(ValueError, match="16/B374D848"):
        lsn_number("x")
