"""Headers and checksums of entries."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from headrace.store.entries import (
    HEADER_SIZE,
    NO_UNIT,
    EntryKind,
    is_intact,
    pack_header,
    parse_header,
)

positions = st.integers(0, 2**62)


@given(
    st.sampled_from(EntryKind),
    positions,
    st.binary(max_size=200),
    st.integers(0, 2**32 - 1),
    positions,
    st.integers(NO_UNIT, 2**62),
)
def test_what_is_packed_is_parsed(
    kind: EntryKind, position: int, payload: bytes, count: int, synced: int, unit: int
) -> None:
    header = pack_header(kind, position, payload, count, synced=synced, unit=unit)
    entry = parse_header(b"xx" + header, 2, position)
    assert entry is not None
    assert (entry.kind, entry.position, entry.count) == (kind, position, count)
    assert (entry.synced, entry.unit, entry.payload_size) == (synced, unit, len(payload))
    assert entry.payload_position == position + HEADER_SIZE
    assert entry.end == position + HEADER_SIZE + len(payload)
    assert is_intact(entry, memoryview(header + payload), 0)


@pytest.mark.parametrize("bit", range((HEADER_SIZE + 5) * 8))
def test_every_flipped_bit_is_noticed(bit: int) -> None:
    content = bytearray(
        pack_header(EntryKind.DATA, 7, b"bytes", 1, synced=0, unit=NO_UNIT) + b"bytes"
    )
    content[bit // 8] ^= 1 << bit % 8
    entry = parse_header(content, 0, 7)
    assert entry is None or not is_intact(entry, memoryview(content), 0)


@given(positions, positions)
def test_a_header_counts_only_at_its_own_position(position: int, other: int) -> None:
    header = pack_header(EntryKind.END, position, b"", synced=0, unit=0)
    assert (parse_header(header, 0, other) is None) == (position != other)


@pytest.mark.parametrize("size", range(HEADER_SIZE))
def test_a_header_that_is_cut_is_none(size: int) -> None:
    header = pack_header(EntryKind.DATA, 0, b"", synced=0, unit=NO_UNIT)
    assert parse_header(header[:size], 0, 0) is None
