"""How a broker tells a name server what it has: the body of REGISTER_BROKER, packed or not."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

from headrace.errors import ProtocolError
from headrace.protocol.bodies import loads
from headrace.protocol.routes import (
    DataVersion,
    MappingInfo,
    RegisterBroker,
    TopicConfig,
    TopicConfigTable,
)

if TYPE_CHECKING:
    from headrace.protocol.frames import Buffer

__all__ = ["body_checksum", "read_registration"]

#: Most bytes that a packed body may unpack to.
_MOST_BYTES = 64 * 1024 * 1024
#: First byte of packed bytes; JSON begins with another.
_ZLIB = b"\x78"
_INT = struct.Struct(">i")
#: From this version on a packed body also holds mappings of static topics.
_WITH_MAPPINGS = 413


def body_checksum(body: Buffer) -> int:
    """Compute what the field ``bodyCrc32`` holds."""
    return zlib.crc32(body) & 0x7FFF_FFFF


def read_registration(body: Buffer, *, compressed: bool, version: int) -> RegisterBroker:
    """Read the body of REGISTER_BROKER.

    Parameters
    ----------
    body
        As it came.
    compressed
        Whether the header says that it is packed.
    version
        The broker's version, from the header.

    Raises
    ------
    ProtocolError
        It is not such a body, or unpacks to more than 64 MiB.
    """
    if not len(body):
        return RegisterBroker()
    # RocketMQ 5.3.3 packs when told to (compressedRegister), but its header says that it did not.
    if not compressed and bytes(body[:1]) != _ZLIB:
        return loads(bytes(body), RegisterBroker)
    parts = _WireParts(_unpacked(body))
    data_version = loads(parts.take(), DataVersion)
    configs = [_topic_config(parts.take()) for _ in range(parts.count())]
    filters = loads(parts.take() or b"[]", list[str])
    table = TopicConfigTable(
        topic_config_table={config.topic_name: config for config in configs},
        data_version=data_version,
    )
    if version >= _WITH_MAPPINGS:
        infos = [loads(parts.take(), MappingInfo) for _ in range(parts.count())]
        table.topic_queue_mapping_info_map = {info.topic: info for info in infos}
    return RegisterBroker(filter_server_list=filters, topic_config_serialize_wrapper=table)


def _unpacked(body: Buffer) -> bytes:
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(body, _MOST_BYTES)
    except zlib.error as error:
        raise ProtocolError(f"a packed registration cannot be unpacked: {error}") from error
    if inflater.unconsumed_tail:
        raise ProtocolError(f"a packed registration unpacks to more than {_MOST_BYTES} bytes")
    return content


class _WireParts:
    """Numbers, and texts with their lengths in front, one after the other."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def count(self) -> int:
        """Read a number of things to come."""
        end = self._at + _INT.size
        if end > len(self._content):
            raise ProtocolError("a packed registration ends too early")
        (number,) = _INT.unpack_from(self._content, self._at)
        if number < 0 or number > len(self._content) - end:
            raise ProtocolError(f"a packed registration claims {number} bytes or things to come")
        self._at = end
        return int(number)

    def take(self) -> bytes:
        """Read a text."""
        size = self.count()
        self._at += size
        return self._content[self._at - size : self._at]


def _topic_config(text: bytes) -> TopicConfig:
    """Read a topic's settings as brokers pack them: words with blanks between."""
    words = text.decode(errors="replace").split(" ", 5)
    try:
        name, reads, writes, perm, kind = words[:5]
        attributes = loads(words[5].encode(), dict[str, str]) if len(words) > 5 else {}
        return TopicConfig(
            topic_name=name,
            read_queue_nums=int(reads),
            write_queue_nums=int(writes),
            perm=int(perm),
            topic_filter_type=kind,
            attributes=attributes,
        )
    except ValueError as error:
        raise ProtocolError(f"{text!r} in a packed registration is no topic: {error}") from error
