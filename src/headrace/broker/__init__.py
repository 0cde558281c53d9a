"""The embedded broker: name server and broker of a RocketMQ cluster in one Python process."""

from headrace.broker.embedded import BrokerProcess, EmbeddedBroker, spawn_broker
from headrace.broker.replication.remote import PeerSecurity
from headrace.broker.server import BrokerServer, BrokerStatistics
from headrace.broker.settings import BrokerSettings, Limits

__all__ = [
    "BrokerProcess",
    "BrokerServer",
    "BrokerSettings",
    "BrokerStatistics",
    "EmbeddedBroker",
    "Limits",
    "PeerSecurity",
    "spawn_broker",
]
