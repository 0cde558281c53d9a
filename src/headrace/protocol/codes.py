"""Numbers of RocketMQ's remoting protocol, and of the requests that only Headrace's broker knows."""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.protocol.frames import Buffer, Command


# Signatures of requests, as RocketMQ's access control has them.
#
# What is signed: the values of all fields but the signature, in the order of their names, and then
# the body.  The signature is the Base64 text of an HMAC-SHA1 under the secret key.

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"  # noqa: S105  (the name of a field)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who sends requests; the secrets in it are never printed.

    >>> Credentials("app", "12345678")
    Credentials(access_key='app')
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)


def signature(ext: dict[str, str], body: Buffer, secret_key: str) -> str:
    """Compute the signature of a request.

    >>> signature({"topic": "lines", "AccessKey": "app"}, b"", "12345678")
    'vKf+83l/zxSKqpBzz3SBNYcWmyw='
    """
    text = "".join([ext[name] for name in sorted(ext) if name != SIGNATURE])
    mac = hmac.new(secret_key.encode(), text.encode("utf-8", "surrogatepass"), "sha1")
    mac.update(body)
    return base64.b64encode(mac.digest()).decode("ascii")


def sign(command: Command, credentials: Credentials) -> None:
    """Add access key and signature to a request that is complete but for them."""
    # Fields are shared between the tries of a request.
    ext = dict(command.ext)
    ext[ACCESS_KEY] = credentials.access_key
    if credentials.security_token is not None:
        ext[SECURITY_TOKEN] = credentials.security_token
    ext[SIGNATURE] = signature(ext, command.payload, credentials.secret_key)
    command.ext = ext


def is_signed_with(command: Command, secret_key: str) -> bool:
    """Tell whether a request carries the signature that the secret key makes."""
    given = command.ext.get(SIGNATURE, "")
    right = signature(command.ext, command.payload, secret_key)
    # In constant time: how far they agree must not show.
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), right.encode())


#: Ordinal of RocketMQ 5.3.3 in the protocol's list of versions: sent in every header.
VERSION = 479


class RequestCode(IntEnum):
    """What a request asks for.

    >>> RequestCode(310).name
    'SEND_MESSAGE_V2'
    """

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    UPDATE_AND_CREATE_TOPIC_LIST = 18
    GET_ALL_TOPIC_CONFIG = 21
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_DELAY_OFFSET = 45
    CHECK_CLIENT_CONFIG = 46
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    REGISTER_TOPIC_IN_NAMESRV = 217
    GET_KVLIST_BY_NAMESPACE = 219
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223
    GET_TOPICS_BY_CLUSTER = 224
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = 225
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    QUERY_CONSUME_TIME_SPAN = 303
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    CLEAN_EXPIRED_CONSUMEQUEUE = 306
    GET_CONSUMER_RUNNING_INFO = 307
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    CLONE_GROUP_OFFSET = 314
    VIEW_BROKER_STATS_DATA = 315
    CLEAN_UNUSED_TOPIC = 316
    GET_BROKER_CONSUME_STATS = 317
    UPDATE_NAMESRV_CONFIG = 318
    GET_NAMESRV_CONFIG = 319
    SEND_BATCH_MESSAGE = 320
    QUERY_DATA_VERSION = 322
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_ALL_PRODUCER_INFO = 328
    DELETE_EXPIRED_COMMITLOG = 329
    QUERY_TOPICS_BY_CONSUMER = 343
    QUERY_SUBSCRIPTION_BY_CONSUMER = 345
    GET_TOPIC_CONFIG = 351
    GET_SUBSCRIPTIONGROUP_CONFIG = 352
    LITE_PULL_MESSAGE = 361
    QUERY_ASSIGNMENT = 400
    SET_MESSAGE_REQUEST_MODE = 401
    UPDATE_AND_CREATE_STATIC_TOPIC = 513
    GET_BROKER_MEMBER_GROUP = 901
    BROKER_HEARTBEAT = 904
    #: From here on: Headrace's own broker only.
    HEADRACE_CAPABILITIES = 28_000
    OPEN_JOB = 28_001
    STAGE = 28_002
    COMMIT_BATCH = 28_003
    PLAN_BATCH = 28_004
    LIST_JOBS = 28_005
    GREET_PRIMARY = 28_010
    FOLLOW_LOG = 28_011
    FOLLOW_TABLES = 28_012
    PROMOTE = 28_013
    FENCE = 28_014
    LIST_REPLICAS = 28_015
    PULL_RECORDS = 28_016


class ResponseCode(IntEnum):
    """How a request ended."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29
    CONSUMER_NOT_ONLINE = 206
    FLOW_CONTROL = 215
    NOT_LEADER_FOR_QUEUE = 501
    ILLEGAL_OPERATION = 604
    GO_AWAY = 1500
    #: From here on: Headrace's own broker only.
    FENCED = 28_101
    PREDECESSOR_MISMATCH = 28_102
    STAGED_PART_MISSING = 28_103
    STORAGE_FAILED = 28_104
    COMMIT_LOST = 28_105
    INPUT_MISSING = 28_106


class Perm(IntFlag):
    """What a topic allows; a topic that new topics may copy has INHERIT."""

    INHERIT = 1
    WRITE = 2
    READ = 4


class SysFlag(IntFlag):
    """Bits of a stored message's system flag."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    PREPARED = 0x4
    COMMITTED = 0x8
    ROLLED_BACK = 0xC
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    NEED_UNWRAP = 0x40
    INNER_BATCH = 0x80
    LZ4 = 0x100
    ZSTD = 0x200
    ZLIB = 0x300
