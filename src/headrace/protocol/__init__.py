"""The bytes of RocketMQ's remoting protocol and values made of them; nothing here does I/O.

======================  ====================================================================
``codes``               numbers of requests, responses and flags
``frames``              commands from a stream of bytes and back
``properties``          a message's properties
``messages``            messages one by one
``columns``             blocks of messages as columns, and records made from columns
``batches``             batches of messages, as producers send them
``routes``              topics, routes and clusters (JSON bodies)
``groups``              clients and consumer groups (JSON bodies)
``stats``               figures about topics, groups and brokers (JSON bodies)
``attributes``          the string that changes a topic's attributes
``allocation``          how the members of a group share queues
``transactions``        Headrace's own commit protocol
======================  ====================================================================
"""

from __future__ import annotations

from headrace.protocol.codes import VERSION, Perm, RequestCode, ResponseCode, SysFlag
from headrace.protocol.columns import MessageColumns, decode_columns
from headrace.protocol.frames import MAX_FRAME, Buffer, Command, FrameBuffer, decode, encode
from headrace.protocol.groups import average_rule, java_hash
from headrace.protocol.layout import record_starts
from headrace.protocol.messages import Message, StoredMessage, decode_messages, encode_batch
from headrace.protocol.properties import (
    UniqueKeys,
    decode_offset_id,
    decode_properties,
    encode_offset_id,
    encode_properties,
)
from headrace.protocol.records import (
    RecordFields,
    Records,
    batch_to_records,
    encode_record,
    encode_records,
    join_records,
    record_sizes,
)
from headrace.protocol.routes import QueueRef, apply_attributes, dumps, loads, write_attributes
from headrace.protocol.stamps import stamp_records, tag_hashes

__all__ = [
    "MAX_FRAME",
    "VERSION",
    "Buffer",
    "Command",
    "FrameBuffer",
    "Message",
    "MessageColumns",
    "Perm",
    "QueueRef",
    "RecordFields",
    "Records",
    "RequestCode",
    "ResponseCode",
    "StoredMessage",
    "SysFlag",
    "UniqueKeys",
    "apply_attributes",
    "average_rule",
    "batch_to_records",
    "decode",
    "decode_columns",
    "decode_messages",
    "decode_offset_id",
    "decode_properties",
    "dumps",
    "encode",
    "encode_batch",
    "encode_offset_id",
    "encode_properties",
    "encode_record",
    "encode_records",
    "java_hash",
    "join_records",
    "loads",
    "record_sizes",
    "record_starts",
    "stamp_records",
    "tag_hashes",
    "write_attributes",
]
