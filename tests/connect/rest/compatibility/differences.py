"""Every difference from Kafka Connect: what the requests have shown, and what they cannot show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["DIFFERENCES", "Aspect", "Difference", "aspects_that_differ", "table"]

Aspect = Literal["status", "type", "location", "message", "body"]
"""In what two answers differ; where the status does, all else is no matter."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A row of the table."""

    kafka: str
    here: str
    why: str
    #: In what the answers differ to which requests.
    shown: Mapping[Aspect, tuple[str, ...]] = field(default_factory=dict)


DIFFERENCES = (
    Difference(
        "a body that is missing, malformed, of the wrong shape or has unknown fields: 500",
        "400",
        "it is the client's mistake",
        {
            "status": (
                *("create-no-body", "create-not-json", "create-list", "create-text"),
                *("create-null", "create-no-config", "create-null-config", "create-list-config"),
                *("create-nested-value", "create-unknown-field", "create-unknown-state"),
                *("put-no-body", "validate-no-body", "validate-list", "offsets-no-body"),
                "logger-no-body",
            )
        },
    ),
    Difference(
        "a name with `/` or `%` is taken, and can then not be addressed",
        "400",
        "a connector that nobody can delete helps nobody",
        {
            "status": (
                *("create-odd-signs", "created-odd-signs", "deleted-odd-signs"),
                *("create-slash-name", "created-slash-name", "deleted-slash-name"),
            )
        },
    ),
    Difference(
        "no name, one that cannot be, and a value that is null are told as problems of the config",
        "they are told as mistakes of the request",
        "no plugin need be asked for it",
        {
            "message": (
                *("create-no-name", "create-empty-name", "create-null-name"),
                *("create-control-name", "create-null-value", "put-null-value"),
            )
        },
    ),
    Difference(
        "what is wrong with a key is told as `Invalid value 0 for configuration tasks.max`, some of"
        " it twice",
        "each problem once, with what the key means",
        "whoever reads it need not look the key up",
        {
            "message": (
                *("create-wrong-number", "create-no-tasks", "create-no-topic"),
                *("create-sink-no-topics", "create-sink-both-topics", "create-bad-converter"),
                *("create-bad-transform", "create-bad-tolerance", "put-invalid", "patch-invalid"),
            )
        },
    ),
    Difference(
        "a config without `connector.class` is quoted in the answer",
        "its name alone is",
        "its values may be secret",
        {"message": ("create-no-class", "create-empty-class", "put-no-class")},
    ),
    Difference(
        "that there is no such class begins with the name of a Java exception",
        "it begins with `Failed to find any class`",
        "there is no Java",
        {"message": ("create-unknown-class",)},
    ),
    Difference(
        "`PATCH` may give a config another name than its connector's",
        "400",
        "nobody finds it by that name",
        {"status": ("patch-name",), "body": ("patch-empty", "patched")},
    ),
    Difference(
        "`validate` without a `connector.class`: 500",
        "the class in the path counts",
        "the path says it already",
        {"status": ("validate-no-class", "validate-empty")},
    ),
    Difference(
        "`validate` for a plugin that is not there: 500",
        "404",
        "the path names nothing",
        {"status": ("validate-unknown-plugin",)},
    ),
    Difference(
        "`validate` answers with the plugin's name as it was asked for",
        "with its class, with groups of our own, and with `warnings`, such as of unknown keys",
        "a key that nobody reads is mostly misspelt",
        {
            "body": (
                *("validate", "validate-missing", "validate-wrong-number"),
                *("validate-two-wrong", "validate-unknown-transform"),
            )
        },
    ),
    Difference(
        "converters list a key `converter.type`",
        "they do not",
        "the runtime sets it",
        {"body": ("plugin-config-converter",)},
    ),
    Difference(
        "a path that is not there, a method or media type that is not for it: no `Content-Type`;"
        " while it starts, HTML",
        "JSON, always",
        "clients parse it",
        {
            "type": (
                *("unknown-path", "root-delete", "connectors-delete", "connectors-put"),
                *("absent-tasks-config", "tasks-config", "logger-delete", "create-form"),
            )
        },
    ),
    Difference(
        "`//`: 400 in HTML",
        "a slash at the end changes nothing",
        "addresses are put together carelessly",
        {"status": ("root-slash",)},
    ),
    Difference(
        "`OPTIONS`: 200 with a description in XML",
        "204 with `Allow`",
        "`/openapi.json` is the description",
        {"status": ("connectors-options",)},
    ),
    Difference(
        "a parameter that is no truth counts as false; an unknown `expand` or `scope` is passed"
        " over",
        "400",
        "a word that is misspelt must not do something else",
        {
            "status": (
                *("connectors-expand-unknown", "plugins-misspelt", "restart-misspelt"),
                "logger-unknown-scope",
            )
        },
    ),
    Difference(
        "topics of a connector that is not there: an empty list, and 202 for the reset",
        "404",
        "a name that is misspelt must not look like an idle connector",
        {"status": ("absent-topics", "absent-topics-reset")},
    ),
    Difference(
        "restarting a stopped connector does nothing: 204, 202",
        "409",
        "who asks for nothing should hear of it",
        {"status": ("stopped-restart", "stopped-restart-tasks")},
    ),
    Difference(
        "offsets that a source refuses: 500 where its code raises",
        "400",
        "refusing is what it was asked for",
        {"status": ("offsets-wrong-partition", "offsets-wrong-offset")},
    ),
    Difference(
        "offsets of a sink: `kafka_topic`, `kafka_partition`, `kafka_offset`",
        "`rocketmq_topic`, `rocketmq_broker`, `rocketmq_queue_id`, `rocketmq_queue_offset`",
        "those are the words of a queue",
        {"message": ("sink-offsets-wrong-key",)},
    ),
    Difference(
        "a task gets what its connector puts into its config, and `tasks` shows that",
        "`tasks` shows the same, and the task gets all that the connector was told, too",
        "converters and error handling must reach it",
        {"body": ("created-tasks",)},
    ),
    Difference(
        "409 while workers rebalance",
        "reads work, changes are decided by the log",
        "there is no leader to wait for",
    ),
    Difference(
        "after `stop`, `status` says `STOPPED` at once",
        "when the last process of the connector and its tasks is proven gone; offsets can be changed"
        " from then on",
        "so that whoever waits for it can rely on it",
    ),
    Difference(
        "a config that is put again as it is starts the connector again",
        "nothing is restarted",
        "a pipeline is often applied unchanged",
    ),
    Difference(
        "what a worker ran that is gone stays `RUNNING` until it moves",
        "`UNASSIGNED`, as soon as the others know that the worker is gone",
        "nobody says that it runs",
    ),
    Difference(
        "a connector that gets the name of a deleted one goes on where that was",
        "it begins anew, unless that one was deleted with `?keepOffsets=true`",
        "who deletes something means to be rid of it",
    ),
    Difference("offsets after a reset may hold `null`", "the list is empty", ""),
    Difference(
        "a task that waits for a topic or a broker is `RUNNING`, and its log says why nothing"
        " comes",
        "`RUNNING` with `waits_for`, which says for what",
        "so that whoever asks need not read logs",
    ),
    Difference(
        "`exactly.once.support=required` needs a setting of every worker",
        "it needs the connector's class to declare `exactly_once`",
        "records and positions are one commit anyway",
    ),
    Difference(
        "`GET /admin/loggers` lists the loggers of connectors",
        "once their level was set",
        "plugins log in processes of their own",
    ),
)


def aspects_that_differ(kafka: Mapping[str, Any], here: Mapping[str, Any]) -> set[Aspect]:
    """Tell in what two answers differ.

    A message has Kafka Connect's words where it begins with them: what to do may follow.
    """
    if kafka["status"] != here["status"]:
        return {"status"}
    aspects: tuple[Aspect, ...] = ("type", "location", "body")
    found = {one for one in aspects if kafka.get(one) != here.get(one)}
    words, ours = kafka.get("message", ""), here.get("message", "")
    if ours.partition("\n  → ")[0] != words and not ours.startswith(f"{words}: "):
        found.add("message")
    return found


def table() -> str:
    """Write the differences down as they stand in the docs."""
    rows = [f"| {one.kafka} | {one.here} | {one.why} |" for one in DIFFERENCES]
    return "\n".join(["| Kafka Connect | here | why |", "| --- | --- | --- |", *rows])
