"""Bytes into lines: whole Arrow columns, in any encoding."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ConfigurationError, DeserializationError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["LineFormat"]

_BYTES = "bytes"
_BOMS = {"utf-8": codecs.BOM_UTF8, "utf-8-sig": codecs.BOM_UTF8}


class LineFormat:
    r"""How a file's bytes become lines.

    Parameters
    ----------
    encoding
        Name of the encoding, or ``bytes``: lines as they are.
    errors
        What to do with bytes that are no text: ``strict``, ``replace`` or ``ignore``.

    Examples
    --------
    >>> from pathlib import Path
    >>> lines = LineFormat("utf-8")
    >>> lines.split(b"one\r\ntwo\n", Path("a.txt"), 0).to_pylist()
    ['one', 'two']
    """

    def __init__(self, encoding: str = "utf-8", errors: str = "strict") -> None:
        self._errors = errors
        self._bytes = encoding == _BYTES
        self._encoding = "latin-1" if self._bytes else _canonical(encoding)
        self._newline = "\n".encode(self._encoding)
        self._bom = _BOMS.get(self._encoding, "\ufeff".encode(self._encoding, "ignore"))
        self._plain = self._newline == b"\n"
        self._quick = self._bytes or self._encoding in {"utf-8", "utf-8-sig"}

    def end(self, data: bytes, most: int | None = None) -> int:
        """Give the length of the whole lines in some bytes, ``most`` of them at most."""
        end = self._last(data)
        if most is None or self._count(data[:end]) <= most:
            return end
        end = 0
        for _ in range(most):
            if (following := self._next(data, end)) is None:
                break
            end = following
        return end

    def split(self, data: bytes, path: Path, position: int) -> pa.Array:
        """Split whole lines, the last of which may lack its end.

        Raises
        ------
        DeserializationError
            Where bytes are no text in the encoding.
        """
        if position == 0 and self._bom and not self._bytes:
            data = data.removeprefix(self._bom)
        if self._quick:
            return self._split_bytes(data, path, position)
        text = self._decoded(data, path, position).replace("\r\n", "\n")
        return pa.array(text.removesuffix("\n").split("\n"), pa.string())

    def _split_bytes(self, data: bytes, path: Path, position: int) -> pa.Array:
        data = data.replace(b"\r\n", b"\n") if b"\r" in data else data
        whole = pa.array([data.removesuffix(b"\n")], pa.binary())
        lines = pc.split_pattern(whole, b"\n").values
        if self._bytes:
            return lines
        try:
            return lines.cast(pa.string())
        except pa.ArrowInvalid:
            text = self._decoded(data, path, position)
            return pa.array(text.removesuffix("\n").split("\n"), pa.string())

    def _decoded(self, data: bytes, path: Path, position: int) -> str:
        try:
            return data.decode(self._encoding, self._errors)
        except UnicodeDecodeError as error:
            shown = data[error.start : error.start + 16]
            message = (
                f"{path}: the bytes {shown!r} about position {position + error.start} are no "
                f"{self._encoding}."
            )
            hint = "Name the file's encoding, or set encoding.errors=replace or encoding=bytes."
            raise DeserializationError(message, hint=hint) from error

    def _last(self, data: bytes) -> int:
        width = len(self._newline)
        at = data.rfind(self._newline)
        while at > 0 and at % width:
            at = data.rfind(self._newline, 0, at + width - 1)
        return 0 if at < 0 else at + width

    def _next(self, data: bytes, start: int) -> int | None:
        width = len(self._newline)
        at = data.find(self._newline, start)
        while at > 0 and at % width:
            at = data.find(self._newline, at + 1)
        return None if at < 0 else at + width

    def _count(self, data: bytes) -> int:
        # In wide encodings a newline's bytes may also straddle two others: one more at most each.
        return data.count(self._newline)


def _canonical(encoding: str) -> str:
    try:
        name = codecs.lookup(encoding).name
    except LookupError:
        message = f"There is no encoding {encoding!r}."
        hint = "Use a name that Python knows, such as utf-8, latin-1, utf-16-le, gb18030 or bytes."
        raise ConfigurationError(message, hint=hint) from None
    # These look for a byte order mark at the start of every piece: files have one at their start.
    return {"utf-16": "utf-16-le", "utf-32": "utf-32-le"}.get(name, name)
