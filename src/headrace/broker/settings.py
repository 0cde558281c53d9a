"""What can be set on an embedded broker, and how much it gives to its clients before it says no."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from headrace._setting import named_values
from headrace.broker.replication.remote import PeerSecurity
from headrace.errors import SettingsError
from headrace.store.compaction import CompactionSettings

_KIB = 1024
_MIB = 1024 * 1024


def _limit(default: int | timedelta, unit: str, doc: str) -> Any:
    return dataclasses.field(default=default, metadata={"unit": unit, "doc": doc})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds that hold whatever clients do.

    Each is an option too: ``--limit max_connections=500``; durations are given in seconds there.

    Raises
    ------
    SettingsError
        When a limit is not positive.

    Examples
    --------
    >>> Limits(max_connections=500).max_connections
    500
    """

    max_frame: int = _limit(16 * _MIB, "bytes", "Largest frame.")
    max_header: int = _limit(256 * _KIB, "bytes", "Largest header of a frame.")
    max_fields: int = _limit(256, "fields", "Most fields of a header.")
    max_json_body: int = _limit(4 * _MIB, "bytes", "Largest JSON body of a request.")
    max_json_items: int = _limit(200_000, "items", "Most items of a JSON body.")
    max_batch_growth: int = _limit(
        64 * _MIB, "bytes", "Most bytes that one batch of messages takes once it is unpacked."
    )
    max_connections: int = _limit(
        10_000, "connections", "Most connections in all; fewer where descriptors are few."
    )
    max_connections_per_address: int = _limit(
        2_000, "connections", "Most connections from one address."
    )
    greeting_timeout: timedelta = _limit(
        timedelta(seconds=30), "seconds", "A new connection must say something within this time."
    )
    frame_timeout: timedelta = _limit(
        timedelta(seconds=60), "seconds", "A frame that has begun must end within this time."
    )
    idle_timeout: timedelta = _limit(
        timedelta(seconds=120), "seconds", "A connection that is silent for so long is closed."
    )
    stall_timeout: timedelta = _limit(
        timedelta(seconds=30),
        "seconds",
        "A client that takes nothing of its answers for so long is cut off.",
    )
    max_in_flight: int = _limit(
        1_024, "requests", "Requests of a connection that are worked on; more are not read."
    )
    max_polls: int = _limit(16_384, "requests", "Most requests of a connection that wait.")
    max_polls_in_all: int = _limit(131_072, "requests", "Most requests that wait for messages.")
    max_held: int = _limit(
        64 * _MIB, "bytes", "Requests of a connection that are worked on; more are not read."
    )
    max_held_in_all: int = _limit(
        512 * _MIB, "bytes", "Requests that are worked on; no more is read until some are done."
    )
    max_receiving_in_all: int = _limit(
        256 * _MIB, "bytes", "Frames that have not come whole; a further large one has to wait."
    )
    max_unsent: int = _limit(
        _MIB, "bytes", "Answers that a client has not taken; its next requests wait."
    )
    max_unsent_in_all: int = _limit(
        512 * _MIB, "bytes", "Answers that nobody takes; the slowest clients are cut off."
    )
    max_topics: int = _limit(
        50_000, "topics", "From so many topics on, none is created by a message or a heartbeat."
    )
    max_groups: int = _limit(20_000, "groups", "Most consumer groups, and most producer groups.")
    max_groups_per_client: int = _limit(1_000, "groups", "Most groups that a client is in.")
    max_subscriptions: int = _limit(
        200_000, "subscriptions", "Most subscriptions of all groups together."
    )
    max_staged_bytes: int = _limit(
        64 << 30, "bytes", "Most bytes that the jobs of an account have staged and not committed."
    )
    max_staged_parts: int = _limit(
        100_000, "parts", "Most parts that they have staged, which are files."
    )
    max_locks: int = _limit(200_000, "queues", "Most queues that are locked.")

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if value <= type(value)():
                message = f"the limit {each.name} is {value}: it must be positive"
                raise SettingsError(message, hint=each.metadata["doc"])

    @property
    def shortest_timeout(self) -> timedelta:
        """The shortest of the time limits."""
        return min(self.greeting_timeout, self.frame_timeout, self.idle_timeout, self.stall_timeout)

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Limits:
        """Read limits given as ``name=value``.

        Raises
        ------
        SettingsError
            When one has no such name or no such value.

        Examples
        --------
        >>> Limits.parse(["idle_timeout=30"]).idle_timeout
        datetime.timedelta(seconds=30)
        """
        fields = {each.name: each for each in dataclasses.fields(cls)}
        given: dict[str, Any] = {}
        for name, value in named_values(texts, fields, "there is no limit {}"):
            limit = fields[name]
            try:
                number = float(value)
            except ValueError:
                message = f"the limit {name} is {value!r}, which is no number"
                hint = f"Write {name}=NUMBER, in {limit.metadata['unit']}."
                raise SettingsError(message, hint=hint) from None
            duration = isinstance(limit.default, timedelta)
            given[name] = timedelta(seconds=number) if duration else int(number)
        return cls(**given)

    @classmethod
    def table(cls) -> str:
        """Write the table of all limits, as docs/guides/operate/security.md has it."""
        lines = ["| limit | default | unit | meaning |", "| --- | --- | --- | --- |"]
        for each in dataclasses.fields(cls):
            default = each.default
            shown = (
                f"{default.total_seconds():g}" if isinstance(default, timedelta) else f"{default:,}"
            )
            meta = each.metadata
            lines.append(f"| `{each.name}` | {shown} | {meta['unit']} | {meta['doc']} |")
        return "\n".join(lines)


TlsMode = Literal["disabled", "permissive", "enforcing"]
"""Whether a port takes TLS: never, as well as plain connections, or nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """How an embedded broker behaves."""

    #: Name of the broker, in routes and queue names; unique in its cluster.
    broker_name: str = "broker-a"
    #: Name of the cluster that it belongs to.
    cluster: str = "DefaultCluster"
    #: Name servers (``host:port``) to register with, beside the one that this broker is.
    name_servers: tuple[str, ...] = ()
    #: A broker registers with them so often, and with every change of its topics.
    register_interval: timedelta = timedelta(seconds=30)
    #: A broker that registered here and says nothing for so long is gone.
    broker_expiry: timedelta = timedelta(seconds=120)
    #: Address to listen on.
    host: str = "127.0.0.1"
    #: Address that clients are told to use; None: the address that the broker listens on.
    advertised_host: str | None = None
    #: "sync": an answer means on disk; "async": on disk within ``flush_interval``.
    flush: Literal["sync", "async"] = "sync"
    #: Longest time that an answered message may be off disk when ``flush`` is "async".
    flush_interval: timedelta = timedelta(milliseconds=500)
    #: Bytes per file of the commit log.
    segment_size: int = 256 * 1024 * 1024
    #: Largest message, and largest batch of messages, in bytes.
    max_message_size: int = 4 * 1024 * 1024
    #: Messages older than this are deleted, a file of the commit log at a time; None: never.
    retention: timedelta | None = timedelta(hours=72)
    #: The oldest files go while the commit log has more bytes than this; None: no limit.
    retention_size: int | None = None
    #: They also go, before their time, while more than this share of the disk is used.
    disk_watermark: float = 0.9
    #: How topics that keep the newest message of each key are kept.
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    #: Free bytes below which nothing more is written; None: the store's own default.
    min_free_space: int | None = None
    #: Create a topic when a producer sends to it for the first time.
    create_topics: bool = True
    #: Queues of a topic that is created that way.
    default_queues: int = 8
    #: Create a consumer group when it is heard of for the first time.
    create_groups: bool = True
    #: How long a message waits at each delay level, from level 1 on: numbers with s, m, h, d or ms.
    delay_levels: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    #: A message may not be delayed for longer than this.
    max_delay: timedelta = timedelta(days=3)
    #: So many messages may wait for times of their own: each takes 44 bytes of memory.
    max_timers: int = 2_000_000
    #: The producer of a half message is asked about it when it is that old.
    transaction_timeout: timedelta = timedelta(seconds=6)
    #: It, or another producer of its group, is asked again after so long.
    transaction_check_interval: timedelta = timedelta(seconds=30)
    #: After so many questions the message goes to a topic of its own.
    transaction_max_checks: int = 15
    #: Most bytes of messages in one answer.
    max_pull_size: int = 8 * 1024 * 1024
    #: A client that says nothing for so long is gone.
    client_expiry: timedelta = timedelta(seconds=120)
    #: A queue lock that is not renewed ends after so long.
    lock_expiry: timedelta = timedelta(seconds=60)
    #: Consumer offsets are written to disk so often.
    save_interval: timedelta = timedelta(seconds=5)
    #: File with accounts and their permissions, such as plain_acl.yml; None: everybody may all.
    acl: Path | None = None
    #: Whether the broker may listen on other addresses than loopback without accounts.
    allow_anyone: bool = False
    #: Whether connections may use TLS, with a self-made certificate unless one is given.
    tls: bool = False
    #: Certificate, with its chain, and its key in PEM format; a certificate implies ``tls``.
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    #: Whether a port with a certificate takes plain connections, too.
    tls_mode: TlsMode = "permissive"
    #: Bounds on what clients may take.
    limits: Limits = field(default_factory=Limits)
    #: ``host:port`` of the broker to follow; None: be a primary.
    follow: str | None = None
    #: How this broker proves to the others of its log who it is.
    peers: PeerSecurity = field(default_factory=PeerSecurity)
    #: An empty follower begins with the primary's "oldest" or "newest" file of the log.
    follow_from: Literal["oldest", "newest"] = "oldest"
    #: So many followers must have a message on disk before it is answered.
    min_replicas: int = 0
    #: How long an answer waits for them.
    replica_timeout: timedelta = timedelta(seconds=3)
    #: A follower that says nothing for so long is gone.
    replica_expiry: timedelta = timedelta(seconds=15)
    #: Retention keeps at most so many bytes of the log's end for followers that are there.
    replica_hold: int = 16 * 1024 * 1024 * 1024
    #: A follower that rebuilds a compaction log and asks for nothing more for so long begins again.
    rebuild_expiry: timedelta = timedelta(minutes=2)
    #: A follower asks for changed topics, offsets and groups so often.
    follow_interval: timedelta = timedelta(seconds=1)
