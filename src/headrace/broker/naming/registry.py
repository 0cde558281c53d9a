"""The name server's knowledge of other brokers: who registered, with which topics.

No I/O: registrations go in, routes come out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.broker.snapshots import load_snapshot, save_snapshot
from headrace.protocol.codes import Perm
from headrace.protocol.routes import (
    BrokerData,
    DataVersion,
    MappingInfo,
    QueueData,
    TopicConfig,
    TopicConfigTable,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


_MASTER = 0


@dataclass(frozen=True, slots=True)
class BrokerPlace:
    """One broker process: its cluster and its address."""

    cluster: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a broker says of itself."""

    name: str
    place: BrokerPlace
    #: 0 for the one that takes messages, others for its replicas.
    broker_id: int = 0
    #: Address that replicas copy from.
    ha_address: str = ""
    #: Seconds of silence after which it is gone; None: the name server's own number.
    expiry: float | None = None
    acting_master: bool | None = None
    zone: str | None = None


@dataclass(slots=True)
class _Live:
    registration: Registration
    #: Number of the connection that it registered on.
    peer: int
    expiry: float
    seen: float
    version: DataVersion


@dataclass(slots=True)
class _Broker:
    """All processes of one name."""

    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    acting_master: bool = False
    zone: str | None = None


class BrokerRegistry:
    """All brokers that registered, and their topics.

    Parameters
    ----------
    expiry
        Seconds of silence after which a broker is gone, unless it says otherwise.

    Examples
    --------
    >>> from headrace.protocol.routes import TopicConfig, TopicConfigTable
    >>> registry = BrokerRegistry(120)
    >>> told = Registration(name="b", place=BrokerPlace("c", "127.0.0.1:1"))
    >>> table = TopicConfigTable(topic_config_table={"t": TopicConfig(topic_name="t")})
    >>> registry.register(told, table, peer=1, now=0)
    >>> registry.queues("t")[0].broker_name, registry.brokers()["b"].broker_addrs
    ('b', {'0': '127.0.0.1:1'})
    """

    def __init__(self, expiry: float) -> None:
        self._expiry = expiry
        self._brokers: dict[str, _Broker] = {}
        self._live: dict[BrokerPlace, _Live] = {}
        self._queues: dict[str, dict[str, QueueData]] = {}
        self._mappings: dict[str, dict[str, MappingInfo]] = {}

    def __len__(self) -> int:
        return len(self._live)

    def brokers(self) -> dict[str, BrokerData]:
        """Describe all brokers, by name."""
        return {name: _data(name, broker) for name, broker in sorted(self._brokers.items())}

    def topics(self, cluster: str | None = None) -> list[str]:
        """List the topics, of all clusters or of one."""
        return sorted(
            topic
            for topic, queues in self._queues.items()
            if cluster is None or any(self._brokers[name].cluster == cluster for name in queues)
        )

    def queues(self, topic: str) -> list[QueueData]:
        """Return how many queues of a topic each broker has."""
        return [data for _, data in sorted(self._queues.get(topic, {}).items())]

    def mappings(self, topic: str) -> dict[str, MappingInfo]:
        """Return which queues of a static topic each broker has."""
        return dict(self._mappings.get(topic, {}))

    def master(self, name: str) -> tuple[str, str] | None:
        """Return address and copying address of the broker that takes messages."""
        broker = self._brokers.get(name)
        address = broker.addresses.get(_MASTER) if broker else None
        if broker is None or address is None:
            return None
        live = self._live.get(BrokerPlace(broker.cluster, address))
        return address, live.registration.ha_address if live else ""

    def register(
        self, told: Registration, table: TopicConfigTable, *, peer: int, now: float
    ) -> None:
        """Take what a broker says; what it does not mention any more stays.

        Topics that are known are taken again only with another data version.
        """
        broker = self._brokers.setdefault(told.name, _Broker(told.place.cluster))
        broker.cluster, broker.zone = told.place.cluster, told.zone
        broker.acting_master = bool(told.acting_master)
        for broker_id, address in list(broker.addresses.items()):
            moved = address == told.place.address and broker_id != told.broker_id
            if moved:
                del broker.addresses[broker_id]
        is_new = broker.addresses.get(told.broker_id) is None
        before = broker.addresses.get(told.broker_id, told.place.address)
        if before != told.place.address:
            # Another process has taken over this place.
            self._live.pop(BrokerPlace(told.place.cluster, before), None)
        broker.addresses[told.broker_id] = told.place.address
        changed = is_new or self.has_changed(told.place, table.data_version)
        if told.broker_id == _MASTER or (
            told.acting_master and told.broker_id == min(broker.addresses)
        ):
            self._take(told, table, changed=changed)
        expiry = self._expiry if told.expiry is None else told.expiry
        self._live[told.place] = _Live(told, peer, expiry, now, table.data_version)

    def _take(self, told: Registration, table: TopicConfigTable, *, changed: bool) -> None:
        for topic, config in table.topic_config_table.items():
            queues = self._queues.setdefault(topic, {})
            if changed or told.name not in queues:
                queues[told.name] = _queue_data(told.name, config, told.broker_id)
        if changed:
            for topic, info in table.topic_queue_mapping_info_map.items():
                self._mappings.setdefault(topic, {})[info.bname or told.name] = info

    def has_changed(self, place: BrokerPlace, version: DataVersion) -> bool:
        """Return whether a broker has another data version than the one known here."""
        return self.version(place) != version

    def version(self, place: BrokerPlace) -> DataVersion | None:
        """Return the data version that a broker told last."""
        live = self._live.get(place)
        return None if live is None else live.version

    def touch(self, place: BrokerPlace, *, now: float) -> None:
        """Take a sign of life."""
        live = self._live.get(place)
        if live is not None:
            live.seen = now

    def unregister(self, name: str, broker_id: int, place: BrokerPlace) -> None:
        """Let a broker go; with the last of its name go its topics."""
        self._live.pop(place, None)
        broker = self._brokers.get(name)
        if broker is None or broker.addresses.get(broker_id) != place.address:
            return
        del broker.addresses[broker_id]
        if broker.addresses:
            return
        del self._brokers[name]
        for tables in (self._queues, self._mappings):
            _drop(tables, name)

    def disconnect(self, peer: int) -> list[str]:
        """Let the brokers of a closed connection go; their names."""
        return self._end(live for live in self._live.values() if live.peer == peer)

    def expire(self, *, now: float) -> list[str]:
        """Let brokers go that have been silent for too long; their names."""
        return self._end(live for live in self._live.values() if now - live.seen > live.expiry)

    def _end(self, gone: Iterable[_Live]) -> list[str]:
        ended = [live.registration for live in gone]
        for told in ended:
            self.unregister(told.name, told.broker_id, told.place)
        return [told.name for told in ended]

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, in all clusters or in one."""
        for tables in (self._queues, self._mappings):
            brokers: dict[str, QueueData] | dict[str, MappingInfo] = tables.get(topic, {})
            for name in list(brokers):
                broker = self._brokers.get(name)
                if cluster is None or (broker is not None and broker.cluster == cluster):
                    del brokers[name]
            if not brokers:
                tables.pop(topic, None)

    def add_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Take note of a topic of brokers that are known."""
        for data in queues:
            if data.broker_name in self._brokers:
                self._queues.setdefault(topic, {})[data.broker_name] = data

    def set_writable(self, name: str, *, writable: bool) -> int:
        """Let routes say that all topics of a broker take messages, or none; how many."""
        changed = 0
        for queues in self._queues.values():
            data = queues.get(name)
            if data is not None:
                data.perm = data.perm | Perm.WRITE if writable else data.perm & ~Perm.WRITE
                changed += 1
        return changed


def _data(name: str, broker: _Broker) -> BrokerData:
    return BrokerData(
        cluster=broker.cluster,
        broker_name=name,
        broker_addrs={str(number): broker.addresses[number] for number in sorted(broker.addresses)},
        enable_acting_master=broker.acting_master,
        zone_name=broker.zone,
    )


def _queue_data(name: str, config: TopicConfig, broker_id: int) -> QueueData:
    # A replica that stands in for its master takes no messages.
    perm = config.perm if broker_id == _MASTER else config.perm & ~Perm.WRITE
    return QueueData(
        broker_name=name,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=perm,
        topic_sys_flag=config.topic_sys_flag,
    )


def _drop(
    tables: dict[str, dict[str, QueueData]] | dict[str, dict[str, MappingInfo]], name: str
) -> None:
    for topic in list(tables):
        tables[topic].pop(name, None)
        if not tables[topic]:
            del tables[topic]


# What the name server keeps beside topics of its own: other brokers, and keys with values.

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
"""Namespace of keys that say which queues of an ordered topic exist, by topic."""


class NameServer:
    """The name server's own tables.

    Parameters
    ----------
    folder
        Where keys are kept.
    expiry
        Seconds of silence after which a broker is gone.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> names = NameServer(Path(tempfile.mkdtemp()), 120)
    >>> names.put("ORDER_TOPIC_CONFIG", "t", "broker-a:4")
    >>> names.order("t"), names.get("ORDER_TOPIC_CONFIG", "u")
    ('broker-a:4', None)
    """

    def __init__(self, folder: Path, expiry: float) -> None:
        self.registry = BrokerRegistry(expiry)
        #: Whether routes say that this broker itself takes messages.
        self.is_writable = True
        #: Settings that tools have sent; they are kept and told, and change nothing.
        self.properties: dict[str, str] = {}
        self._file = folder / "names.json"
        self._values = load_snapshot(self._file, dict[str, dict[str, str]]) or {}

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, None when there is none."""
        return self._values.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str]:
        """Return all values of a namespace, by key."""
        return dict(self._values.get(namespace, {}))

    def order(self, topic: str) -> str | None:
        """Return which queues of an ordered topic exist, ``broker:count;...``; None: all there are."""
        return self.get(ORDER_NAMESPACE, topic)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value, durably."""
        self._values.setdefault(namespace, {})[key] = value
        save_snapshot(self._file, self._values)

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value, durably; one that is not there is removed already."""
        if self._values.get(namespace, {}).pop(key, None) is not None:
            save_snapshot(self._file, self._values)
