"""Properties of a message: names with values, as one string on the wire.

Each is ``name 0x01 value 0x02``.  Of equal names the last one counts; a pair without a name or
without a value does not count at all.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import MessageRejectedError

KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
UNIQ_KEY = "UNIQ_KEY"
DELAY = "DELAY"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_OUT_MS = "TIMER_OUT_MS"
TRAN_MSG = "TRAN_MSG"
PGROUP = "PGROUP"
TRANSACTION_ID = "__transactionId__"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
CHECK_IMMUNITY_TIME = "CHECK_IMMUNITY_TIME_IN_SECONDS"
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
SHARDING_KEY = "__SHARDINGKEY"
MSG_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
CLUSTER = "CLUSTER"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
CONSUME_START_TIME = "CONSUME_START_TIME"
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
MSG_TYPE = "MSG_TYPE"
INNER_NUM = "INNER_NUM"
INNER_BASE = "INNER_BASE"

#: All names above.
NAMES = frozenset(
    value for name, value in globals().items() if name.isupper() and isinstance(value, str)
)

#: Longest properties string, in bytes: its length is a signed 16-bit number.
MAX_PROPERTIES = 32_767

_AFTER_NAME = "\x01"
_AFTER_VALUE = "\x02"


def encode_properties(properties: Mapping[str, str]) -> bytes:
    r"""Write properties as one string.

    Raises
    ------
    MessageRejectedError
        A name or value is empty or holds one of the two separators, or all are too long.

    Examples
    --------
    >>> encode_properties({"KEYS": "k1"})
    b'KEYS\x01k1\x02'
    """
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    count = len(properties)
    plain = text.count(_AFTER_NAME) == count == text.count(_AFTER_VALUE)
    if not plain or "" in properties or "" in properties.values():
        _explain(properties)
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise MessageRejectedError(f"a property is not valid text: {error}") from error
    if len(encoded) > MAX_PROPERTIES:
        raise MessageRejectedError(
            f"the properties take {len(encoded)} bytes, {MAX_PROPERTIES} are possible",
            hint="put large values into the body",
        )
    return encoded


def _explain(properties: Mapping[str, str]) -> None:
    for name, value in properties.items():
        if not name or not value:
            raise MessageRejectedError(
                f"property {name!r} has the value {value!r}: neither may be empty",
                hint="leave the property out",
            )
        if any(mark in name + value for mark in (_AFTER_NAME, _AFTER_VALUE)):
            raise MessageRejectedError(
                f"property {name!r} holds U+0001 or U+0002, which separate properties",
                hint="encode the value, for example as base64",
            )


def decode_properties(encoded: bytes | memoryview) -> dict[str, str]:
    r"""Read a properties string; bytes that are no UTF-8 become U+FFFD, as in Java.

    >>> decode_properties(b"KEYS\x01k1\x02TAGS\x01red\x02KEYS\x01k2\x02EMPTY\x01\x02")
    {'KEYS': 'k2', 'TAGS': 'red'}
    """
    properties: dict[str, str] = {}
    for pair in str(encoded, "utf-8", "replace").split(_AFTER_VALUE):
        name, _, value = pair.partition(_AFTER_NAME)
        if name and value:
            properties[name] = value
    return properties
