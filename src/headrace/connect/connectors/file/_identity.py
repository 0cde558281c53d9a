"""Which file is which: a file keeps its identity when it is renamed, and when it is copied."""

from __future__ import annotations

import codecs
import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ConfigurationError, DeserializationError

# Bytes into lines: whole Arrow columns, in any encoding.

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
        """Return the length of the whole lines in some bytes, ``most`` of them at most."""
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


#: How a name goes on once the file has been rotated: ``.1``, ``-20260131``, ``.2026-01-31``.
_ROTATED = re.compile(r"[.\-][0-9][0-9._T\-]*|\.old")
_HEAD = 1024
_TAIL = 64


@dataclass(frozen=True, slots=True)
class FilePosition:
    """Where a reader stands: a byte of a file, and what tells that it is the same file.

    Parameters
    ----------
    position
        Bytes read so far.
    inode
        The file's number on its disk; ``None`` for a place that somebody set by hand.
    proof
        Digest of what stands before the position; see :class:`Proof`.
    """

    position: int
    inode: int | None = None
    proof: str | None = None

    @classmethod
    def of(cls, offset: Mapping[str, Any], path: Path) -> FilePosition:
        """Read a place out of a committed offset, or of one that somebody set by hand."""
        position = offset.get("position")
        if not isinstance(position, int) or isinstance(position, bool) or position < 0:
            message = f"The offset of {path} has the position {position!r}; it must be bytes ≥ 0."
            raise ConfigurationError(message, hint='Set an offset such as {"position": 0}.')
        return cls(position, offset.get("inode"), offset.get("proof"))

    @classmethod
    def at_end(cls, path: Path) -> FilePosition:
        """Return the place behind all that a file holds."""
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            state = os.fstat(file)
            return cls(state.st_size, state.st_ino, Proof.read(file, state.st_size).digest())
        finally:
            os.close(file)

    def offset(self) -> dict[str, Any]:
        """Write the place as an offset that is committed."""
        if self.inode is None:
            return {"position": self.position}
        return {"position": self.position, "inode": self.inode, "proof": self.proof}


class Proof:
    """What stands before a position: the file's first bytes and those right before it.

    An appended file keeps it, whatever its name; a file that was cut off or written anew does
    not.  It is made from what was read, so a file that changes meanwhile cannot spoil it.
    """

    def __init__(self, head: bytes = b"", tail: bytes = b"") -> None:
        self._head = head
        self._tail = tail

    @classmethod
    def read(cls, file: int, position: int) -> Proof:
        """Read from a file what stands before a position."""
        head = os.pread(file, min(_HEAD, position), 0)
        length = min(_TAIL, position)
        return cls(head, os.pread(file, length, position - length))

    def add(self, read: bytes) -> None:
        """Go on behind what was read next."""
        if len(self._head) < _HEAD:
            self._head += read[: _HEAD - len(self._head)]
        self._tail = (self._tail + read[-_TAIL:])[-_TAIL:]

    def digest(self) -> str:
        """Return it as short text."""
        return hashlib.blake2b(self._head + b"\0" + self._tail, digest_size=8).hexdigest()


def has_proof(file: int, place: FilePosition) -> bool:
    """Whether an open file goes on from a place: what stands before it is still there."""
    if os.fstat(file).st_size < place.position:
        return False
    return place.proof is None or Proof.read(file, place.position).digest() == place.proof


def is_past_of(name: str, live: str) -> bool:
    """Whether a file's name is that of a rotated past of another.

    >>> is_past_of("app.log.1", "app.log"), is_past_of("app.log-20260131", "app.log")
    (True, True)
    >>> is_past_of("app.log.gz", "app.log"), is_past_of("app.log-other", "app.log")
    (False, False)
    """
    return name.startswith(live) and _ROTATED.fullmatch(name, len(live)) is not None


def history(path: Path) -> list[Path]:
    """Return the rotated pasts of a file, the oldest first, and the file itself if it is there."""
    try:
        beside = [one for one in path.parent.iterdir() if is_past_of(one.name, path.name)]
    except FileNotFoundError:
        return []
    written: list[tuple[int, str, Path]] = []
    for one in beside:
        try:
            written.append((one.stat().st_mtime_ns, one.name, one))
        except (
            FileNotFoundError
        ):  # rotated on at this moment: its next name comes with the next look
            continue
    found = [one for *_, one in sorted(written)]
    return [*found, path] if path.exists() else found


def locate(files: Iterable[Path], place: FilePosition) -> Path | None:
    """Find the file in which a place stands, among a file and its pasts, the oldest first.

    The inode decides where the proof holds; a copy of the file is recognised by the proof alone.
    """
    candidates = list(files)[::-1]
    copies = []
    for one in candidates:
        try:
            file = os.open(one, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            if not has_proof(file, place):
                continue
            if place.inode is None or os.fstat(file).st_ino == place.inode:
                return one
        finally:
            os.close(file)
        if place.position:
            copies.append(one)
    return copies[0] if copies else None
