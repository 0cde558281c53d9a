"""What is fuzzed: each decoder with the errors that it may raise."""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace.broker.access import read_rules
from headrace.broker.requests import Request
from headrace.broker.settings import Limits
from headrace.errors import (
    HeadraceError,
    InvalidParameterError,
    ProtocolError,
    SettingsError,
    StateError,
)
from headrace.protocol.codes import SysFlag
from headrace.protocol.columns import decode_columns
from headrace.protocol.frames import Command, FrameBuffer, encode
from headrace.protocol.groups import (
    ConsumerConnections,
    ConsumeStats,
    Heartbeat,
    LockRequest,
    TopicStats,
    split_tags,
)
from headrace.protocol.layout import locate, record_starts
from headrace.protocol.messages import decode_messages, decompress
from headrace.protocol.properties import decode_offset_id, decode_properties
from headrace.protocol.records import Records, batch_to_records, largest_records
from headrace.protocol.routes import (
    ClusterInfo,
    RegisterBroker,
    TopicConfigTable,
    TopicRoute,
    apply_attributes,
    loads,
)
from headrace.protocol.stamps import stamp_records, tag_hashes
from headrace.protocol.transactions import (
    CommitRequest,
    OpenRequest,
    PlanRequest,
    commit_in,
    decode_sections,
    split_queue_name,
    stored_commit,
)
from headrace.runtime.jobs.reset import _entry
from headrace.runtime.state.local import read_changes
from tests.fuzz import corpus

__all__ = ["TARGETS", "Target"]

_HOST = ("127.0.0.1", 9876)
_LIMIT = 1 << 20


@dataclass(frozen=True)
class Target:
    """A decoder."""

    name: str
    corpus: Callable[[], Sequence[bytes]]
    #: Raises one of the allowed errors, or nothing.
    run: Callable[[bytes], None]
    allowed: tuple[type[BaseException], ...] = (ProtocolError,)
    #: Most memory that one call may take besides what it is given, in bytes.
    memory: int = 32 << 20
    #: Whether what fails is worth making smaller.
    shrinks: bool = True
    #: Further inputs that random change would hardly find.
    extreme: Sequence[bytes] = field(default=())


def _frames(data: bytes) -> None:
    buffer = FrameBuffer(_LIMIT, 1 << 16, 64)
    cut = len(data) // 3
    for piece in (data[:cut], data[cut : 2 * cut], data[2 * cut :]):
        for command in buffer.feed(piece):
            # What was read can be answered and written.
            encode(command.reply(1, command.remark, dict(command.ext)))
            encode(command)


def _fastjson(data: bytes) -> None:
    value = loads(data)
    msgspec.json.encode(value)


_KINDS = (
    Heartbeat,
    LockRequest,
    TopicRoute,
    ClusterInfo,
    TopicConfigTable,
    RegisterBroker,
    TopicStats,
    ConsumeStats,
    ConsumerConnections,
)


def _typed(data: bytes) -> None:
    for kind in _KINDS:
        try:
            loads(data, kind)
        except ProtocolError:
            continue


class _Peer:
    """The other end of a request."""

    number = 1
    address = ("127.0.0.1", 1)
    limits = Limits()

    def send(self, command: Command) -> None:
        """Drop it."""

    def hold(self, size: int) -> None:
        """Count nothing."""

    def release(self, size: int) -> None:
        """Count nothing."""


def _jobs(data: bytes) -> None:
    request = Request(Command(28_001, body=data), _Peer())
    for kind in (OpenRequest, CommitRequest, PlanRequest):
        try:
            request.strict_body(kind)
        except InvalidParameterError:
            continue


def _properties(data: bytes) -> None:
    for name, value in decode_properties(data).items():
        assert name
        assert value


def _messages(data: bytes) -> None:
    for message in decode_messages(data):
        assert message.queue_id is not None
        _ = message.body, message.properties, message.offset_id


def _columns(data: bytes) -> None:
    columns = decode_columns(data)
    for name in ("KEYS", "TAGS", "UNIQ_KEY"):
        assert len(columns.property(name)) == len(columns)


def _both_decoders_agree(data: bytes) -> None:
    """Columns and single messages read the same, or both refuse."""
    try:
        one_by_one: int | None = len(decode_messages(data))
    except ProtocolError:
        one_by_one = None
    try:
        together: int | None = len(decode_columns(data))
    except ProtocolError:
        together = None
    assert one_by_one == together or None in (one_by_one, together)


def _batches(data: bytes) -> None:
    largest_records(data, "lines", 100, enough=1000)
    records = batch_to_records(data, "lines", 0, extra_properties=b"WAIT\x01true\x02")
    stamp_records(records, 5, 1000, 17, _HOST)
    assert len(decode_messages(bytes(records.data))) == len(records)


def _large_batches(data: bytes) -> None:
    # From 128 KiB on another way is taken.
    _batches(data * (1 + (128 * 1024) // max(1, len(data))))


def _sections(data: bytes) -> None:
    for section in decode_sections(data):
        starts = record_starts(section.records)
        locate(section.records, starts)
        records = Records(bytearray(section.records), starts)
        tag_hashes(records)
        stamp_records(records, 5, 1000, 17, _HOST)
        assert len(decode_messages(bytes(records.data))) == len(starts)


def _compressed(data: bytes) -> None:
    for flag in (SysFlag.ZLIB, SysFlag.LZ4, SysFlag.ZSTD, 0):
        try:
            assert len(decompress(data, int(flag), _LIMIT)) <= _LIMIT
        except ProtocolError:
            continue


def _texts(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for read in (
        lambda: apply_attributes({"cleanup.policy": "DELETE"}, text),
        lambda: apply_attributes(None, text),
        lambda: decode_offset_id(text),
        lambda: split_tags(text),
        lambda: Request(Command(1, {"n": text}), _Peer()).number("n"),
    ):
        try:
            read()
        except (HeadraceError, ValueError) as error:
            assert isinstance(error, HeadraceError), error  # noqa: PT017


def _rules(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for suffix in (".yml", ".json", ".toml"):
        try:
            read_rules(text, suffix)
        except (SettingsError, ValueError):
            continue


def _commits(data: bytes) -> None:
    """Whatever lies in a commit topic is a commit of which all can be used, or none."""
    found = stored_commit(data)
    if found is not None:
        record, message = found
        for queue in record.offsets:
            split_queue_name(queue)
        assert message.properties is not None
        msgspec.json.encode(record)
        commit_in(message)


def _state_lines(data: bytes) -> None:
    for entry in enumerate(data.decode("utf-8", "replace").splitlines(), start=1):
        key, value = _entry(entry)
        assert isinstance(key + value, bytes)


def _change_files(data: bytes) -> None:
    """A damaged change file is no change file, also where its checksum is right."""
    for content in (data, zlib.crc32(data[4:]).to_bytes(4, "big") + data[4:]):
        with tempfile.NamedTemporaryFile(dir=_memory()) as file:
            file.write(content)
            file.flush()
            read_changes(Path(file.name), b"base", b"content")


def _memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


_DEEP = b'{"a":' * 5000 + b"1" + b"}" * 5000
_WIDE = b"[" + b"{}," * 5000 + b"{}]"

TARGETS = (
    Target("frames", corpus.frames, _frames),
    Target("fastjson", corpus.bodies, _fastjson, extreme=(_DEEP, _WIDE, b"[" * 100_000)),
    Target("bodies", corpus.bodies, _typed, extreme=(_DEEP, _WIDE)),
    Target("jobs", corpus.job_bodies, _jobs, extreme=(_DEEP,)),
    Target("properties", corpus.properties, _properties),
    Target("messages", corpus.records, _messages),
    Target("columns", corpus.records, _columns),
    Target("agreement", corpus.records, _both_decoders_agree),
    Target("batches", corpus.batches, _batches, (HeadraceError,)),
    Target("large batches", corpus.batches, _large_batches, (HeadraceError,)),
    Target("sections", corpus.sections, _sections),
    Target("compression", corpus.compressed, _compressed),
    Target("texts", corpus.texts, _texts),
    Target("access rules", corpus.acl_files, _rules),
    Target("commits", corpus.commits, _commits, extreme=(_DEEP,)),
    Target("state lines", corpus.state_lines, _state_lines, (StateError,)),
    Target("change files", corpus.change_files, _change_files, memory=64 << 20),
)
"""Every decoder of bytes that come from outside."""
