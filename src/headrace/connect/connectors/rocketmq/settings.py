"""How the replicator reaches the other cluster, and what the clusters are called."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Self

from headrace.client import Admin, Client, ClientSettings
from headrace.connect import Config, ConfigProblem, Secret, declare, key
from headrace.connect.connectors.sharing import chosen_topics
from headrace.errors import ConnectorConfigError
from headrace.protocol.routes import is_of_brokers

# Topics of two clusters: which are replicated, and what they are called on the other side.

#: For answers, and what jobs of Headrace keep for themselves.
_INTERNAL = re.compile(r".*_REPLY_TOPIC|.*-(state|commit|journal|batch|done)Topic")


def is_internal(name: str) -> bool:
    """Return whether brokers, groups or jobs keep a topic of this name for themselves.

    >>> is_internal("%RETRY%readers"), is_internal("words-commitTopic"), is_internal("orders")
    (True, True, False)
    """
    return is_of_brokers(name) or _INTERNAL.fullmatch(name) is not None


def replicated_topics(wanted: list[str], admin: Admin) -> list[str]:
    """Return the topics of the other cluster that names and patterns mean."""
    info = admin.cluster_info()
    # Stock brokers have topics that are called like themselves and like their cluster.
    names = {*info.broker_addr_table, *info.cluster_addr_table}
    return chosen_topics(
        wanted,
        admin.topics(),
        key="rocketmq.topics",
        system="The other cluster",
        hidden=lambda name: name in names or is_internal(name),
    )


@dataclass(frozen=True, slots=True)
class Renaming:
    r"""What a topic is called at its goal.

    Examples
    --------
    >>> Renaming("eu.${topic}")("orders")
    'eu.orders'
    >>> renaming = Renaming("${topic}", re.compile("(.*)-eu"), r"\1-world")
    >>> renaming("orders-eu"), renaming("returns")
    ('orders-world', 'returns')
    """

    form: str
    pattern: re.Pattern[str] | None = None
    replacement: str = ""

    @classmethod
    def of(cls, config: Config) -> Self:
        """Read it from a config."""
        return cls(
            config["topic.format"],
            config["topic.rename.regex"],
            config["topic.rename.replacement"] or "",
        )

    def __call__(self, topic: str) -> str:
        """Return the name at the goal."""
        found = self.pattern.fullmatch(topic) if self.pattern is not None else None
        if found is not None:
            return found.expand(self.replacement)
        return self.form.replace("${topic}", topic)

    @classmethod
    def problems(cls, config: Config, topics: list[str]) -> Iterator[ConfigProblem]:
        """Name what is wrong with the keys."""
        pattern, replacement = config["topic.rename.regex"], config["topic.rename.replacement"]
        if bool(pattern) != bool(replacement):
            missing = "topic.rename.replacement" if pattern else "topic.rename.regex"
            yield ConfigProblem(missing, f"The key {missing} is missing: the two belong together.")
        elif pattern:
            yield from _template_problems(pattern, replacement)
        several = len(topics) > 1 or any(one.startswith("^") for one in topics)
        if several and "${topic}" not in config["topic.format"]:
            message = "topic.format without ${topic} sends all topics into one; name one topic."
            yield ConfigProblem("topic.format", message)


def _template_problems(pattern: re.Pattern[str], replacement: str) -> Iterator[ConfigProblem]:
    # The template alone can be checked against a pattern with the same groups that matches.
    names = {number: name for name, number in pattern.groupindex.items()}
    groups = [f"(?P<{names[n]}>)" if n in names else "()" for n in range(1, pattern.groups + 1)]
    try:
        re.sub("".join(groups), replacement, "")
    except (re.error, IndexError) as error:
        message = f"topic.rename.replacement does not fit its pattern: {error}."
        yield ConfigProblem("topic.rename.replacement", message)


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
    """Return a client of the other cluster."""
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
    """Return the other cluster's name.

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
