"""Headers of the binary kind (ROCKETMQ), which some clients write instead of JSON."""

from __future__ import annotations

import struct

from headrace.errors import ProtocolError

__all__ = ["read_header"]

_FIXED = struct.Struct(">hBhii")
_LENGTH = struct.Struct(">i")
_SHORT = struct.Struct(">h")


def read_header(
    data: memoryview,
) -> tuple[int, int, int, int, int, str | None, dict[str, str]]:
    """Read code, number of the language, version, opaque, flag, remark and fields.

    Raises
    ------
    ProtocolError
        The bytes are no such header.
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
