"""Requests of tools for single messages: by id and by key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import NotFoundError
from headrace.protocol.codes import RequestCode, ResponseCode
from headrace.protocol.columns import decode_columns
from headrace.protocol.properties import KEYS, UNIQ_KEY

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.broker.requests import Request
    from headrace.protocol.frames import Command

__all__ = ["HANDLERS"]

_SCAN_COUNT = 20_000
_SCAN_BYTES = 8 * 1024 * 1024
_MOST_MATCHES = 64


def view_message(core: Core, request: Request) -> Command:
    """Give the message at a position of the commit log."""
    try:
        record = core.store.read_at(request.number("offset"))
    except NotFoundError as error:
        return request.reply(ResponseCode.SYSTEM_ERROR, str(error))
    return request.reply(body=record)


async def query_message(core: Core, request: Request) -> Command:
    """Find messages of a topic by key or unique id, the newest first.

    There is no index of keys: queues are read, within the time asked for.
    """
    topic = request.text("topic")
    queues = range(core.topics.get(topic).read_queue_nums)
    name = UNIQ_KEY if request.flag("_UNIQUE_KEY_QUERY") else KEYS
    span = (request.number("beginTimestamp"), request.number("endTimestamp"))
    count = min(request.number("maxNum"), _MOST_MATCHES)
    found: list[bytes] = []
    for queue_id in queues:
        queue = (topic, queue_id)
        found += await core.in_thread(_find, core, queue, name, request.text("key"), span, count)
    if not found:
        return request.reply(
            ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct"
        )
    ext = {
        "indexLastUpdateTimestamp": str(core.now()),
        "indexLastUpdatePhyoffset": str(core.store.statistics().end),
    }
    return request.reply(ext=ext, body=b"".join(found[:count]))


def _find(
    core: Core, queue: tuple[str, int], name: str, key: str, span: tuple[int, int], count: int
) -> list[bytes]:
    """Read a queue from a time on and give the messages whose property holds a word."""
    offset = core.store.offset_at(*queue, max(span[0], 0))
    end = core.store.bounds(*queue).max_offset
    found: list[bytes] = []
    while offset < end:
        result = core.store.read(*queue, offset, _SCAN_COUNT, _SCAN_BYTES)
        if not result.count:
            break
        columns = decode_columns(b"".join(result.slices))
        hits = np.flatnonzero(_holds(columns.property(name), key))
        rows = hits[columns.stored[hits] <= span[1]]
        found += [core.store.read_at(int(columns.position[row])) for row in rows]
        offset = result.next_offset
    return found[-count:][::-1]


def _holds(values: pa.BinaryArray, word: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Tell which values, of words with blanks between, hold a word."""
    blank = pa.scalar(b" ")
    padded = pc.binary_join_element_wise(blank, values, blank, pa.scalar(b""))
    held = pc.match_substring(padded, f" {word} ")
    return np.asarray(pc.fill_null(held, pa.scalar(value=False)).to_numpy(zero_copy_only=False))


HANDLERS = {
    RequestCode.VIEW_MESSAGE_BY_ID: view_message,
    RequestCode.QUERY_MESSAGE: query_message,
}
