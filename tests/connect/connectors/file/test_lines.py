from __future__ import annotations

from pathlib import Path

import pytest

from headrace.connect.connectors.file._identity import LineFormat
from headrace.errors import ConfigurationError, DeserializationError

PATH = Path("some.txt")


def split(
    data: bytes, encoding: str = "utf-8", errors: str = "strict", position: int = 0
) -> object:
    return LineFormat(encoding, errors).split(data, PATH, position).to_pylist()


def test_lines_end_with_newline_or_carriage_return_and_newline() -> None:
    assert split(b"one\r\n\ntwo\nthr\ree\n") == ["one", "", "two", "thr\ree"]


def test_last_line_may_lack_its_end() -> None:
    assert split(b"one\ntwo") == ["one", "two"]


def test_byte_order_mark_at_the_start_is_no_text() -> None:
    assert split(b"\xef\xbb\xbfone\n") == ["one"]
    assert split(b"\xef\xbb\xbfone\n", position=7) == ["\ufeffone"]
    assert split("\ufeffone\n".encode("utf-16-le"), "utf-16") == ["one"]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8", "utf-16-le", "utf-16-be", "gb18030"])
def test_every_encoding_gives_the_same_lines(encoding: str) -> None:
    lines = ["é", "", "two ÿ"]
    data = "".join(f"{line}\n" for line in lines).encode(encoding)
    assert split(data, encoding) == lines


def test_whole_lines_of_wide_characters_end_at_characters() -> None:
    lines = LineFormat("utf-16-le")
    # U+0A00 and U+000A share bytes: a newline's bytes may straddle two characters.
    data = "a\n\u0a00b\u0a00".encode("utf-16-le")
    assert lines.end(data) == 4
    straddling = b"\x00\x0a\x00\x00"
    assert LineFormat("utf-16-le").end(straddling) == 0
    assert LineFormat("utf-16-le").end(straddling + "\nx\n".encode("utf-16-le"), 1) == 6


def test_only_so_many_lines_are_whole() -> None:
    assert LineFormat().end(b"a\nb\nc\nd", 2) == 4
    assert LineFormat().end(b"a\nb\nc\nd", 9) == 6
    assert LineFormat().end(b"torn") == 0


def test_bytes_stay_as_they_are() -> None:
    assert split(b"\xff\x00\n\n", "bytes") == [b"\xff\x00", b""]


def test_bytes_that_are_no_text_name_their_place() -> None:
    with pytest.raises(DeserializationError, match=r"some\.txt: the bytes b'\\xff.* position 104"):
        split(b"one\n\xff\n", position=100)
    assert split(b"one\n\xff\n", errors="replace") == ["one", "\ufffd"]


def test_unknown_encoding_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no encoding 'utf-9'"):
        LineFormat("utf-9")
