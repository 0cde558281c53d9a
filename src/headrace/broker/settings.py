"""What can be set on an embedded broker, and how much it gives to its clients before it says no."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal

from headrace._setting import SHORTEST, DeclaredSettings, setting
from headrace.broker.replication.remote import PeerSecurity
from headrace.store.settings import KeepingSettings

_KIB = 1024
_MIB = 1024 * 1024


def _limit(default: int | timedelta, unit: str, doc: str) -> Any:
    least = SHORTEST if isinstance(default, timedelta) else 1
    return setting(default, doc=doc, unit=unit, minimum=least)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(DeclaredSettings):
    """Bounds that hold whatever clients do.

    Each is an option too: ``--limit max_connections=500``; a duration without a unit is in seconds.

    Raises
    ------
    SettingsError
        When a limit is not positive.

    Examples
    --------
    >>> Limits(max_connections=500).max_connections
    500
    """

    VARIABLES = ""

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

    @property
    def shortest_timeout(self) -> timedelta:
        """The shortest of the time limits."""
        return min(self.greeting_timeout, self.frame_timeout, self.idle_timeout, self.stall_timeout)


TlsMode = Literal["disabled", "permissive", "enforcing"]
"""Whether a port takes TLS: never, as well as plain connections, or nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings(KeepingSettings):
    """How an embedded broker behaves.

    Raises
    ------
    SettingsError
        When a value cannot work; the message names the setting, its value and why.

    Examples
    --------
    >>> BrokerSettings(retention="forever", limits=["max_connections=500"]).limits.max_connections
    500
    """

    VARIABLES = "HEADRACE_BROKER_"
    PANELS: ClassVar[Mapping[str, str]] = {
        "segment_size": "What is kept",
        "broker_name": "Cluster",
        "host": "Port, accounts and TLS",
        "create_topics": "Topics, messages and clients",
        "follow": "Replication",
    }

    broker_name: str = setting(
        "broker-a",
        doc="Name of the broker, in routes and queue names; unique in its cluster.",
        variable="HEADRACE_BROKER_NAME",
    )
    cluster: str = setting("DefaultCluster", doc="Name of the cluster that it belongs to.")
    name_servers: tuple[str, ...] = setting(
        (),
        doc="Name servers to register with, beside the one that this broker is.",
        unit="host:port",
        option="--register-with",
    )
    register_interval: timedelta = setting(
        timedelta(seconds=30),
        doc="A broker registers with name servers so often, and with every change of its topics.",
        minimum=SHORTEST,
    )
    broker_expiry: timedelta = setting(
        timedelta(seconds=120),
        doc="A broker that registered here and says nothing for so long is gone.",
    )
    host: str = setting("127.0.0.1", doc="Address to listen on.")
    advertised_host: str | None = setting(
        None, doc="Address that clients are told to use.", shown="the address listened on"
    )
    acl: Path | None = setting(
        None,
        doc="File with accounts and what each may do, such as RocketMQ's plain_acl.yml; without "
        "one everybody may do everything.",
        variable="HEADRACE_ACL",
    )
    allow_anyone: bool = setting(
        default=False,
        doc="Whether to listen on addresses other than loopback without accounts: anyone who "
        "reaches them may do everything.",
    )
    tls: bool = setting(
        default=False, doc="Whether to take TLS, too; without a certificate, by a self-made one."
    )
    tls_certificate: Path | None = setting(
        None, doc="File of the certificate and its chain, PEM; it implies tls."
    )
    tls_key: Path | None = setting(None, doc="File of the certificate's key, PEM.")
    tls_mode: TlsMode = setting(
        "permissive", doc="Whether a port with TLS takes plain connections, too."
    )
    create_topics: bool = setting(
        default=True, doc="Whether a topic is made when a producer sends to it for the first time."
    )
    default_queues: int = setting(8, doc="Queues of a topic that a first message makes.", minimum=1)
    create_groups: bool = setting(
        default=True, doc="Whether a consumer group is made when it is heard of for the first time."
    )
    delay_levels: str = setting(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        doc="How long a message waits at each delay level, from level 1 on.",
        unit="numbers with s, m, h, d or ms",
    )
    max_delay: timedelta = setting(
        timedelta(days=3), doc="A message may not be delayed for longer than this."
    )
    max_timers: int = setting(
        2_000_000,
        doc="So many messages may wait for times of their own: each takes 44 bytes of memory.",
        unit="messages",
    )
    transaction_timeout: timedelta = setting(
        timedelta(seconds=6),
        doc="The producer of a half message is asked about it when it is that old.",
    )
    transaction_check_interval: timedelta = setting(
        timedelta(seconds=30),
        doc="A producer of its group is asked about it again after so long.",
    )
    transaction_max_checks: int = setting(
        15, doc="After so many questions the message goes to a topic of its own.", unit="questions"
    )
    max_pull_size: int = setting(
        8 * _MIB, doc="Most bytes of messages in one answer.", unit="bytes", minimum=1
    )
    client_expiry: timedelta = setting(
        timedelta(seconds=120), doc="A client that says nothing for so long is gone."
    )
    lock_expiry: timedelta = setting(
        timedelta(seconds=60), doc="A queue lock that is not renewed ends after so long."
    )
    save_interval: timedelta = setting(
        timedelta(seconds=5), doc="Consumer offsets are written to disk so often.", minimum=SHORTEST
    )
    limits: Limits = setting(
        make=Limits,
        doc="Bounds on what clients may take.",
        unit="NAME=VALUE",
        shown="each has its own",
        option="--limit",
    )
    follow: str | None = setting(
        None,
        doc="Broker to follow: its log is copied, and only reads are served.",
        unit="host:port",
    )
    follow_from: Literal["oldest", "newest"] = setting(
        "oldest", doc="File of the primary's log that an empty follower begins with."
    )
    follow_interval: timedelta = setting(
        timedelta(seconds=1),
        doc="A follower asks for changed topics, offsets and groups so often.",
        minimum=SHORTEST,
    )
    min_replicas: int = setting(
        0,
        doc="So many followers must have a message on disk before it is answered.",
        unit="followers",
    )
    replica_timeout: timedelta = setting(
        timedelta(seconds=3), doc="How long an answer waits for followers."
    )
    replica_expiry: timedelta = setting(
        timedelta(seconds=15), doc="A follower that says nothing for so long is gone."
    )
    replica_hold: int = setting(
        16 << 30,
        doc="Retention keeps at most so many bytes of the log's end for followers that are there.",
        unit="bytes",
    )
    rebuild_expiry: timedelta = setting(
        timedelta(minutes=2),
        doc="A follower that rebuilds a compaction log and asks for nothing more for so long begins "
        "again.",
    )
    #: How this broker proves to the others of its log who it is; variables of clients say it.
    peers: PeerSecurity = field(default_factory=PeerSecurity)
