"""``elasticsearch-sink`` and ``opensearch-sink``: records as documents, each of them once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar

from headrace.connect import (
    Config,
    ConfigDeclaration,
    ConfigProblem,
    Queue,
    SchemaError,
    SinkConnector,
    SinkRecord,
    SinkTask,
    Size,
    at_least,
    between,
    declare,
    key,
    one_of,
)
from headrace.connect.connectors.elasticsearch._bulk import Bulk
from headrace.connect.connectors.elasticsearch._operations import Operation, Operations
from headrace.connect.connectors.elasticsearch.connection import (
    CLUSTER_KEYS,
    cluster_client,
    cluster_problems,
    cluster_url,
)
from headrace.connect.connectors.offsets import Progress
from headrace.connect.connectors.sending import Retries

__all__ = ["ElasticsearchSinkConnector", "ElasticsearchSinkTask"]


class ElasticsearchSinkTask(SinkTask):
    """Sends records as they are put; returns when each is a document or was reported."""

    def start(self, config: Config) -> None:
        """Make a client."""
        self._operations = Operations.of_config(config)
        self._client = cluster_client(config)
        pipeline = config["pipeline"]
        self._client.params = {"pipeline": pipeline} if pipeline else {}
        self._bulk = Bulk(
            self._client,
            cluster_url(config, "_bulk"),
            Retries.of(config),
            stopping=self.context.stopping,
            report=self.context.report,
            most_records=config["request.max.records"],
            most_bytes=config["request.max.bytes"],
        )
        self._progress = Progress({})

    def open(self, queues: Collection[Queue]) -> None:
        """Begin anew: what was sent before may be asked for again, and is the same document."""
        del queues
        self._progress = Progress({})

    def put(self, records: Sequence[SinkRecord]) -> None:
        """Have the records made documents."""
        fresh = self._progress.fresh(records)
        operations: list[Operation] = []
        for record in fresh:
            try:
                operation = self._operations.of(record)
            except (SchemaError, TypeError) as error:
                self.context.report(record, error)
            else:
                operations += [operation] if operation else []
        self._bulk.send(operations)
        self._progress.take(fresh)

    def stop(self) -> None:
        """Close the connections."""
        if made := getattr(self, "_client", None):
            made.close()


class ElasticsearchSinkConnector(SinkConnector):
    """Writes records as documents of Elasticsearch or OpenSearch; see docs/connect-storage.md."""

    version = "1.0"
    task = ElasticsearchSinkTask
    config: ClassVar[ConfigDeclaration] = CLUSTER_KEYS | declare(
        key(
            "index",
            str,
            "The index, alias or data stream; {topic} and {date} are filled in, and all is in "
            "small letters.",
            default="{topic}",
        ),
        key(
            "index.date.format",
            str,
            "What {date} is: the record's time in UTC, as strftime writes it.",
            default="%Y.%m.%d",
        ),
        key(
            "write",
            str,
            "What a record does: index puts the document in the place of an earlier one, "
            "create keeps the earlier one, upsert sets the fields that it has.",
            default="index",
            valid=one_of("index", "create", "upsert"),
        ),
        key(
            "document.id",
            str,
            "What the document's id is: the record's place (topic, queue and offset), which "
            "makes a document of each record, or its key.",
            default="offset",
            valid=one_of("offset", "key"),
        ),
        key(
            "version",
            str,
            "With document.id=key and write=index: offset gives documents the offset as their "
            "version, so that no earlier record ever takes a later one's place; none does not.",
            default="offset",
            valid=one_of("offset", "none"),
        ),
        key(
            "tombstones",
            str,
            "What a record without a value does: delete removes its key's document, ignore "
            "leaves it out, fail takes it for a bad record.",
            default="fail",
            valid=one_of("delete", "ignore", "fail"),
        ),
        key("pipeline", str, "The ingest pipeline that documents pass."),
        key(
            "request.max.records",
            int,
            "Most records of a request.",
            default=1000,
            valid=between(1, 100_000),
        ),
        key(
            "request.max.bytes",
            Size,
            "Most bytes of a request, unless one record has more.",
            default=5 << 20,
            valid=at_least(1),
        ),
    )

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Name what does not fit together."""
        if config["tombstones"] == "delete" and config["document.id"] != "key":
            message = "tombstones=delete needs document.id=key: a deletion names what it deletes."
            yield ConfigProblem("tombstones", message)
        yield from cluster_problems(config)
