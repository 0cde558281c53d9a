from __future__ import annotations

import contextlib
import os
import time

import pytest
from hypothesis import given, strategies as st

from headrace.errors import ProtocolError
from headrace.protocol.properties import UniqueKeys, decode_offset_id, encode_offset_id
from tests.protocol.reference import hosts


@given(hosts(), st.integers(0, 2**63 - 1))
def test_decode_reverses_encode(host: tuple[str, int], position: int) -> None:
    offset_id = encode_offset_id(host, position)
    assert len(offset_id) == (56 if ":" in host[0] else 32)
    assert offset_id == offset_id.upper()
    assert decode_offset_id(offset_id) == (host, position)


@given(st.text(max_size=60))
def test_other_text_is_a_protocol_error(text: str) -> None:
    with contextlib.suppress(ProtocolError):
        decode_offset_id(text)
        assert len(text) in (32, 56)


@pytest.mark.parametrize("text", ["", "7F" * 15, "zz" * 16, " ".join(["7F"] * 11), "7F" * 20])
def test_wrong_length_or_digits_are_refused(text: str) -> None:
    with pytest.raises(ProtocolError, match="hexadecimal"):
        decode_offset_id(text)


def test_unique_keys_are_unique_and_hold_address_and_process() -> None:
    keys = UniqueKeys("10.0.0.7")
    made = [keys.take() for _ in range(10_000)]
    assert len(set(made)) == len(made)
    assert {len(key) for key in made} == {32}
    assert made[0].startswith(f"0A000007{os.getpid() & 0xFFFF:04X}")


def test_keys_of_two_makers_differ() -> None:
    assert UniqueKeys().take()[:20] != UniqueKeys().take()[:20]


def test_keys_change_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = UniqueKeys()
    before = keys.take()
    monkeypatch.setattr(os, "getpid", lambda: 4711)
    assert keys.take()[:20] != before[:20]


def test_time_in_a_key_counts_from_the_start_of_the_month(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = int(time.mktime((2026, 12, 1, 0, 0, 0, 0, 0, -1))) * 1000
    keys = UniqueKeys()
    for now, elapsed in [(begin - 1, None), (begin + 5, 5), (begin + 31 * 86_400_000 + 3, 3)]:
        monkeypatch.setattr(time, "time_ns", lambda now=now: now * 1_000_000)
        key = keys.take()
        assert elapsed is None or int(key[20:28], 16) == elapsed


def test_position_below_zero_is_written_as_java_does() -> None:
    # Found by fuzzing: a damaged record may hold one.
    written = encode_offset_id(("127.0.0.1", 1), -1)
    assert written == "7F00000100000001FFFFFFFFFFFFFFFF"
    assert decode_offset_id(written) == (("127.0.0.1", 1), -1)
