from __future__ import annotations

import contextlib
import tracemalloc
import zlib

import pytest
from hypothesis import given, strategies as st

from headrace.errors import ProtocolError
from headrace.protocol.messages import compress, decompress
from tests.protocol.reference import packed

FLAGS = [0x001, 0x101, 0x201, 0x301]


@pytest.mark.parametrize("flag", FLAGS)
@given(body=st.binary(max_size=5000))
def test_decompress_reverses_compress(flag: int, body: bytes) -> None:
    assert decompress(packed(body, flag), flag) == body
    assert decompress(memoryview(packed(body, flag)), flag) == body


def test_compress_makes_what_java_producers_send() -> None:
    assert compress(b"water" * 1000) == zlib.compress(b"water" * 1000, 5)


@pytest.mark.parametrize("flag", FLAGS)
@given(garbage=st.binary(max_size=50))
def test_garbage_is_a_protocol_error(flag: int, garbage: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decompress(garbage, flag)


@pytest.mark.parametrize("flag", FLAGS)
def test_body_that_is_cut_short_is_refused(flag: int) -> None:
    whole = packed(bytes(range(256)) * 40, flag)
    with pytest.raises(ProtocolError):
        decompress(whole[: len(whole) // 2], flag)


@pytest.mark.parametrize("flag", FLAGS)
def test_body_that_unpacks_to_too_much_is_refused(flag: int) -> None:
    bomb = packed(bytes(100_000), flag)
    assert len(decompress(bomb, flag, limit=100_000)) == 100_000
    with pytest.raises(ProtocolError, match="more than 99999 bytes"):
        decompress(bomb, flag, limit=99_999)


@pytest.mark.parametrize("flag", FLAGS)
def test_damaged_bodies_leave_nothing_in_memory(flag: int) -> None:
    # Found by fuzzing: pyarrow's read() loses the memory of its result.
    tracemalloc.start()
    for _ in range(5):
        with pytest.raises(ProtocolError):
            decompress(bytes(50), flag)
    left, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert left < 1_000_000
