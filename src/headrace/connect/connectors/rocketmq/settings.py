"""How the replicator reaches the other cluster, and what the clusters are called."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from headrace.client import Client, ClientSettings
from headrace.connect import Config, Secret, declare, key
from headrace.errors import ConnectorConfigError

__all__ = [
    "CLUSTER_KEYS",
    "TOPIC_KEYS",
    "check_answers",
    "client_settings",
    "connected",
    "remote_name",
]

CLUSTER_KEYS = declare(
    key(
        "rocketmq.namesrv",
        str,
        "Name servers of the other cluster, as host:port, by semicolons.",
        required=True,
        group="Other cluster",
    ),
    key("rocketmq.access.key", str, "The account there, if it asks for one.", group="Security"),
    key("rocketmq.secret.key", Secret, "The account's secret.", group="Security"),
    key("rocketmq.security.token", Secret, "The token of a temporary account.", group="Security"),
    key("rocketmq.tls", bool, "Whether to use TLS.", default=False, group="Security"),
    key(
        "rocketmq.tls.verify",
        bool,
        "Whether its certificates must be trusted and hold its brokers' names.",
        default=True,
        group="Security",
    ),
    key(
        "rocketmq.tls.ca", Path, "File of the certificates to trust, in PEM form.", group="Security"
    ),
    key(
        "remote.cluster",
        str,
        "What the other cluster is called in the marks that keep records from going in circles;"
        " what it calls itself where none is given.",
        group="Loops",
    ),
)

TOPIC_KEYS = declare(
    key(
        "topic.format",
        str,
        "The name of a topic at its goal: ${topic} stands for its name at its origin.",
        default="${topic}",
        group="Topics",
    ),
    key(
        "topic.rename.regex",
        re.Pattern,
        "Topics whose whole name matches are renamed by topic.rename.replacement, in place of"
        " topic.format.",
        group="Topics",
    ),
    key(
        "topic.rename.replacement",
        str,
        r"What such a topic is called: \1 or \g<name> stand for groups of the pattern.",
        group="Topics",
    ),
)


#: A try ends so soon: logs tell of brokers that are gone, and what waits for them goes on trying.
_TRIED = timedelta(seconds=5)


def client_settings(config: Config) -> ClientSettings:
    """Make the client's settings from a config."""

    def revealed(name: str) -> str | None:
        secret = config[name]
        return secret.reveal() if secret else None

    return ClientSettings(
        access_key=config["rocketmq.access.key"],
        secret_key=revealed("rocketmq.secret.key"),
        security_token=revealed("rocketmq.security.token"),
        tls=config["rocketmq.tls"],
        tls_verify=config["rocketmq.tls.verify"],
        tls_ca=config["rocketmq.tls.ca"],
        retry_timeout=_TRIED,
    )


def connected(config: Config) -> Client:
    """Give a client of the other cluster."""
    return Client(config["rocketmq.namesrv"], client_settings(config))


def check_answers(config: Config) -> None:
    """Return when a name server of the other cluster answers.

    Raises
    ------
    HeadraceError
        None does, within five seconds each.
    """
    settings = replace(client_settings(config), request_timeout=_TRIED, connect_timeout=_TRIED)
    with Client(config["rocketmq.namesrv"], settings) as client:
        client.cluster_info()


def remote_name(config: Config, client: Client) -> str:
    """Give the other cluster's name.

    Raises
    ------
    ConnectorConfigError
        It is called as this one is, so that records could not be told apart.
    """
    name: str | None = config["remote.cluster"]
    if not name:
        name = "+".join(sorted(client.cluster_info().cluster_addr_table)) or "unnamed"
    if name == config["local.cluster"]:
        message = (
            f"Both clusters are called {name!r}, so that a record that has come back cannot be"
            " told from one that never left: give the other one a name of its own by"
            " remote.cluster."
        )
        raise ConnectorConfigError.of([("remote.cluster", message)])
    return name
