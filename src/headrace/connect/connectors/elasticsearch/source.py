"""``elasticsearch-source`` and ``opensearch-source``: new documents, in the order of a field."""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

import msgspec
import orjson

from headrace.connect import (
    Config,
    ConfigDeclaration,
    ConfigProblem,
    Secret,
    SourceConnector,
    SourceRecord,
    SourceTask,
    between,
    declare,
    key,
    matching,
)
from headrace.connect.connectors.http.sink import (
    SENDING_KEYS,
    RefusedError,
    Retries,
    Sender,
    client,
)
from headrace.errors import ConnectionFailedError, ConnectorConfigError, DeserializationError

if TYPE_CHECKING:
    import httpx


# Where a source stands in the order of a field, and how it asks for what follows.

#: Documents that share a value of the field are told apart by their ids, which are kept.
_MOST_IDS = 10_000


@dataclass(frozen=True, slots=True)
class Cursor:
    """The value of the last document that was read, and the ids of all that have it.

    Examples
    --------
    >>> Cursor().behind(7, "a").behind(7, "b")
    Cursor(value=7, ids=('a', 'b'))
    >>> Cursor(7, ("a", "b")).behind(9, "c").offset()
    {'value': 9, 'ids': ['c']}
    """

    value: Any = None
    ids: tuple[str, ...] = ()

    @classmethod
    def of(cls, offset: Mapping[str, Any] | None) -> Cursor:
        """Read it out of a committed offset."""
        return cls() if offset is None else cls(offset["value"], tuple(offset.get("ids", ())))

    def offset(self) -> dict[str, Any]:
        """Write it as an offset that is committed."""
        return {"value": self.value, "ids": list(self.ids)}

    def behind(self, value: Any, document: str) -> Cursor:
        """Go on behind a document.

        Raises
        ------
        DeserializationError
            Where too many documents share a value.
        """
        if value != self.value:
            return Cursor(value, (document,))
        if len(self.ids) == _MOST_IDS:
            message = f"More than {_MOST_IDS} documents have the value {value!r} of cursor.field."
            raise DeserializationError(message, hint="Choose a field that tells documents apart.")
        return Cursor(value, (*self.ids, document))


def request(
    cursor: Cursor, field: str, *, most: int, until: str | None, filters: Sequence[Any] = ()
) -> dict[str, Any]:
    """Ask for the documents behind a cursor, in the order of the field.

    Parameters
    ----------
    most
        Most documents.
    until
        Leaves out documents from this time on, in the words of the cluster, such as ``now-5s``.
    filters
        What documents have to meet besides.
    """
    bounds = {
        **({} if cursor.value is None else {"gte": cursor.value}),
        **({} if until is None else {"lt": until}),
    }
    wanted = {"range": {field: bounds}} if bounds else {"exists": {"field": field}}
    return {
        "size": most,
        # An index whose documents have not had the field yet has none to give.
        "sort": [{field: {"order": "asc", "unmapped_type": "long"}}],
        "track_total_hits": False,
        "query": {
            "bool": {
                "filter": [wanted, *filters],
                "must_not": [{"ids": {"values": list(cursor.ids)}}],
            }
        },
    }


# How the connectors reach a cluster: config keys, and the client made of them.

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
    """Return the URL of a path of the cluster."""
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


_HEADERS = {"content-type": "application/json"}


class ElasticsearchSourceTask(SourceTask):
    """Asks for documents behind the last one, again and again."""

    def start(self, config: Config) -> None:
        """Go on behind the last document that was committed."""
        self._config = config
        self._client = cluster_client(config)
        self._sender = Sender(self._client, "POST", Retries.of(config), self.context.stopping)
        index = quote(config["index"], safe=",*-")
        self._url = cluster_url(config, f"{index}/_search?ignore_unavailable=true")
        self._filters = [msgspec.json.decode(config["query"])] if config["query"] else []
        self._partition = {"index": config["index"], "field": config["cursor.field"]}
        self._cursor = Cursor.of(self.context.offsets.get(self._partition))
        self._next = float("-inf")

    def poll(self) -> Sequence[SourceRecord] | None:
        """Return the next documents."""
        wait = self._next - time.monotonic()
        if wait > 0:
            self.context.stopping.wait(min(wait, 0.5))
            return None
        hits = self._search()
        if len(hits) < self._config["batch.max.records"]:
            self._next = time.monotonic() + self._config["poll.interval.ms"].total_seconds()
        return [self._record(hit) for hit in hits]

    def stop(self) -> None:
        """Close the connections."""
        if made := getattr(self, "_client", None):
            made.close()

    def _search(self) -> list[dict[str, Any]]:
        # The cluster reckons in seconds.
        delay = math.ceil(self._config["delay.ms"].total_seconds())
        asked = request(
            self._cursor,
            self._config["cursor.field"],
            most=self._config["batch.max.records"],
            until=f"now-{delay}s" if delay else None,
            filters=self._filters,
        )
        try:
            answer = msgspec.json.decode(
                self._sender.send(self._url, orjson.dumps(asked), _HEADERS).content
            )
        except RefusedError as error:
            hint = "Check cursor.field, query and delay.ms: the field has to be one that sorts."
            raise ConnectorConfigError(error.message, hint=hint) from error
        if answer["timed_out"] or answer["_shards"]["failed"]:
            # Documents of the parts that did not answer would be passed over.
            reasons = answer["_shards"].get("failures", "the search timed out")
            message = f"Not all parts of {self._config['index']} answered: {reasons}"
            raise ConnectionFailedError(message, hint="See to the health of the cluster.")
        found: list[dict[str, Any]] = answer["hits"]["hits"]
        return found

    def _record(self, hit: Mapping[str, Any]) -> SourceRecord:
        self._cursor = self._cursor.behind(hit["sort"][0], hit["_id"])
        return SourceRecord(
            partition=self._partition,
            offset=self._cursor.offset(),
            topic=self._config["topic"],
            key=hit["_id"],
            value=hit["_source"],
        )


class ElasticsearchSourceConnector(SourceConnector):
    """Reads documents in the order of a field."""

    version = "1.0"
    task = ElasticsearchSourceTask
    # Only of documents that become visible in the order of the field.
    exactly_once = False
    config: ClassVar[ConfigDeclaration] = CLUSTER_KEYS | declare(
        key("topic", str, "The topic that the documents go to.", required=True),
        key("index", str, "The index, or several: names and patterns, by commas.", required=True),
        key(
            "cursor.field",
            str,
            "The field by which new documents are found: each has a value that is not below those "
            "before it, such as a number that rises or the time at which it was written.",
            required=True,
        ),
        key("query", str, "What documents have to meet besides, as JSON of the query language."),
        key(
            "delay.ms",
            timedelta,
            "With a time as cursor.field, leaves out documents that are younger than this, since "
            "others of the same time may still become visible; whole seconds.",
            default=timedelta(0),
        ),
        key(
            "batch.max.records",
            int,
            "Most documents of a poll.",
            default=1000,
            valid=between(1, 10_000),
        ),
        key(
            "poll.interval.ms",
            timedelta,
            "How long to wait once there are no more documents.",
            default=timedelta(seconds=1),
            importance="low",
        ),
    )

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        """Start one task: the order of the field is one."""
        del max_tasks
        return [{}]

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Name what does not fit together."""
        yield from cluster_problems(config)
        try:
            msgspec.json.decode(config["query"] or "{}")
        except (ValueError, RecursionError) as error:
            yield ConfigProblem("query", f"The key query is no JSON: {error}.")
