"""How connectors reach Kafka: config keys, and librdkafka's settings made of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from headrace.connect import Config, Secret, declare, key
from headrace.errors import ConnectionFailedError

_PREFIX = "kafka."
#: How long a probe waits for an answer, s.
_ANSWER = 3.0

KAFKA_KEYS = declare(
    key(
        "kafka.bootstrap.servers",
        str,
        "Brokers to begin with, as host:port, by commas. Every other key that begins with kafka. is"
        " handed to librdkafka without that prefix, such as kafka.security.protocol.",
        required=True,
        group="Kafka",
    ),
    key("kafka.sasl.password", Secret, "The password of SASL.", group="Kafka"),
    key("kafka.ssl.key.password", Secret, "The password of the client's key.", group="Kafka"),
)
#: Keys with that prefix that are ours.
_OURS = frozenset({"kafka.topics", "kafka.topics.regex", "kafka.topic.format"})


def client_settings(config: Config, name: str, **more: Any) -> dict[str, Any]:
    """Make librdkafka's settings; what the connector itself needs comes last and wins."""
    given: Mapping[str, str] = {
        text.removeprefix(_PREFIX): value
        for text, value in config.texts.items()
        if text.startswith(_PREFIX) and text not in _OURS
    }
    settings = {"client.id": f"headrace-{name}", "socket.keepalive.enable": True, **given}
    for secret in ("kafka.sasl.password", "kafka.ssl.key.password"):
        if value := config[secret]:
            settings[secret.removeprefix(_PREFIX)] = value.reveal()
    logger = logging.getLogger(f"headrace.kafka.{name}")
    logger.setLevel(logging.ERROR)

    def complain(error: KafkaError) -> None:
        logger.warning("%s", error)

    return {**settings, "error_cb": complain, "logger": logger, **more}


_PASSING = frozenset(
    {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT}  # noqa: SLF001
)


def is_outage(error: KafkaError) -> bool:
    """Tell whether an error passes by itself: brokers are away, start, stop or change places."""
    return not error.fatal() and (
        error.retriable() or error.txn_requires_abort() or error.code() in _PASSING
    )


def unreachable(config: Config, error: KafkaException) -> ConnectionFailedError:
    """Make an error that says which brokers did not answer."""
    servers = config["kafka.bootstrap.servers"]
    return ConnectionFailedError(
        f"Kafka at {servers} does not answer: {error}",
        hint="Check kafka.bootstrap.servers, the network, and the security settings.",
    )


def check_answers(config: Config) -> None:
    """Return when a broker answers to a client of its own: one that polls has no ear for others.

    Raises
    ------
    ConnectionFailedError
        None does.
    """
    try:
        AdminClient(client_settings(config, "probe")).list_topics(timeout=_ANSWER)
    except KafkaException as error:
        raise unreachable(config, error) from error
