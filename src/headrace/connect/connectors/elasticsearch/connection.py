"""How the connectors reach a cluster: config keys, and the client made of them."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.connect import Config, ConfigProblem, Secret, declare, key, matching
from headrace.connect.connectors.sending import SENDING_KEYS, client

if TYPE_CHECKING:
    import httpx

__all__ = ["CLUSTER_KEYS", "cluster_client", "cluster_problems", "cluster_url"]

CLUSTER_KEYS = (
    declare(
        key(
            "url",
            str,
            "Where the cluster is: a node that takes requests, or what stands before several.",
            required=True,
            valid=matching("https?://[^@]+", "a URL such as https://search:9200, without a user"),
        ),
        key("username", str, "Who asks, with a password."),
        key("password", Secret, "The password of username."),
        key("api.key", Secret, "An API key, in place of a password."),
    )
    | SENDING_KEYS
)


def cluster_client(config: Config) -> httpx.Client:
    """Make a client that is allowed to ask."""
    return client(config, _authorization(config))


def cluster_url(config: Config, path: str) -> str:
    """Give the URL of a path of the cluster."""
    return f"{config['url'].rstrip('/')}/{path}"


def _authorization(config: Config) -> dict[str, str]:
    if (token := config["api.key"]) is not None:
        return {"authorization": f"ApiKey {token.reveal()}"}
    if config["username"] is None:
        return {}
    password = config["password"]
    pair = f"{config['username']}:{password.reveal() if password else ''}"
    return {"authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def cluster_problems(config: Config) -> Iterable[ConfigProblem]:
    """Name what does not fit together."""
    ways = [name for name in ("username", "api.key", "auth.token") if config[name] is not None]
    if len(ways) > 1:
        yield ConfigProblem(ways[1], f"Give one of {' and '.join(ways)}.")
