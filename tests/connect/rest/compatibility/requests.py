"""Requests that Kafka Connect and Headrace are asked, one after the other, in groups.

Groups stand apart: each makes the connectors that it needs and deletes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["GROUPS", "LINES", "OTHERS", "Asked", "Step", "Until"]

LINES, OTHERS = "beside-lines", "beside-others"
SOURCE = "FileStreamSource"
SINK = "FileStreamSink"
FULL = "org.apache.kafka.connect.file.FileStreamSourceConnector"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    #: What it is called in the table of differences.
    id: str
    method: str
    path: str
    #: The body, as JSON or as it is.
    json: Any = None
    raw: bytes | None = None
    kind: str | None = "application/json"


@dataclass(frozen=True, slots=True)
class Until:
    """Wait until a connector and its tasks are in a state."""

    connector: str
    state: str
    #: How many tasks there are then, and their state where it is another one.
    tasks: int | None = None
    task_state: str = ""
    #: How many topics it has used then.
    topics: int = 0


Step = Asked | Until


def source(**more: Any) -> dict[str, Any]:
    """A source that reads a file of twenty lines."""
    return {
        "connector.class": SOURCE,
        "tasks.max": "1",
        "file": "${folder}/in.txt",
        "topic": LINES,
        **more,
    }


def sink(**more: Any) -> dict[str, Any]:
    """A sink that writes a file."""
    return {
        "connector.class": SINK,
        "tasks.max": "1",
        "file": "${folder}/out.txt",
        "topics": LINES,
        **more,
    }


def made(name: str, config: Mapping[str, Any], state: str | None = None) -> dict[str, Any]:
    """The body that makes a connector."""
    body: dict[str, Any] = {"name": name, "config": dict(config)}
    return body if state is None else body | {"initial_state": state}


def create(what: str, body: Any) -> Asked:
    return Asked(what, "POST", "/connectors", body)


def get(what: str, path: str) -> Asked:
    return Asked(what, "GET", path)


def put(what: str, path: str, body: Any = None) -> Asked:
    return Asked(what, "PUT", path, body)


def delete(what: str, path: str) -> Asked:
    return Asked(what, "DELETE", path)


def post(what: str, path: str) -> Asked:
    return Asked(what, "POST", path)


def patch(what: str, path: str, body: Any) -> Asked:
    return Asked(what, "PATCH", path, body)


GROUPS: Mapping[str, Sequence[Step]] = {
    "the worker": (
        get("root", "/"),
        get("root-slash", "//"),
        get("health", "/health"),
        get("unknown-path", "/nope"),
        Asked("root-delete", "DELETE", "/"),
        Asked("connectors-delete", "DELETE", "/connectors"),
        Asked("connectors-put", "PUT", "/connectors", {}),
        Asked("connectors-head", "HEAD", "/connectors"),
        Asked("connectors-options", "OPTIONS", "/connectors"),
        get("connectors-empty", "/connectors"),
        get("connectors-slash", "/connectors/"),
        get("connectors-expand-empty", "/connectors?expand=info&expand=status"),
        get("connectors-expand-unknown", "/connectors?expand=all"),
    ),
    "plugins": (
        get("plugins", "/connector-plugins"),
        get("plugins-slash", "/connector-plugins/"),
        get("plugins-all", "/connector-plugins?connectorsOnly=false"),
        get("plugins-only", "/connector-plugins?connectorsOnly=true"),
        get("plugins-misspelt", "/connector-plugins?connectorsOnly=perhaps"),
        get("plugin-config", f"/connector-plugins/{SOURCE}/config"),
        get("plugin-config-full", f"/connector-plugins/{FULL}/config"),
        get("plugin-config-class", f"/connector-plugins/{SOURCE}Connector/config"),
        get(
            "plugin-config-transform",
            "/connector-plugins/org.apache.kafka.connect.transforms.RegexRouter/config",
        ),
        get(
            "plugin-config-converter",
            "/connector-plugins/org.apache.kafka.connect.storage.StringConverter/config",
        ),
        get(
            "plugin-config-predicate",
            "/connector-plugins/org.apache.kafka.connect.transforms.predicates.TopicNameMatches"
            "/config",
        ),
        get("plugin-config-unknown", "/connector-plugins/Nope/config"),
        get("plugin-config-unknown-full", "/connector-plugins/org.example.Nope/config"),
        put("validate", f"/connector-plugins/{SOURCE}/config/validate", {"name": "v", **source()}),
        put(
            "validate-no-class",
            f"/connector-plugins/{SOURCE}/config/validate",
            {"name": "v", "topic": LINES},
        ),
        put(
            "validate-missing",
            f"/connector-plugins/{SOURCE}/config/validate",
            {"name": "v", "connector.class": SOURCE, "tasks.max": "1"},
        ),
        put(
            "validate-wrong-number",
            f"/connector-plugins/{SOURCE}/config/validate",
            {"name": "v", **source(), "tasks.max": "many"},
        ),
        put(
            "validate-two-wrong",
            f"/connector-plugins/{SOURCE}/config/validate",
            {"name": "v", **source(), "tasks.max": "0", "errors.tolerance": "some"},
        ),
        put(
            "validate-other-class",
            f"/connector-plugins/{SINK}/config/validate",
            {"name": "v", **source()},
        ),
        put(
            "validate-unknown-transform",
            f"/connector-plugins/{SOURCE}/config/validate",
            {"name": "v", **source(), "transforms": "a", "transforms.a.type": "Nope"},
        ),
        put(
            "validate-unknown-plugin",
            "/connector-plugins/Nope/config/validate",
            {"name": "v", "connector.class": "Nope"},
        ),
        put("validate-empty", f"/connector-plugins/{SOURCE}/config/validate", {}),
        Asked("validate-no-body", "PUT", f"/connector-plugins/{SOURCE}/config/validate"),
        put("validate-list", f"/connector-plugins/{SOURCE}/config/validate", []),
    ),
    "making": (
        create("create", made("made", source())),
        Until("made", "RUNNING", 1),
        create("create-again", made("made", source())),
        create("create-again-other", made("made", source(topic=OTHERS))),
        get("created", "/connectors/made"),
        get("created-config", "/connectors/made/config"),
        get("created-tasks", "/connectors/made/tasks"),
        get("created-status", "/connectors/made/status"),
        get("created-task-status", "/connectors/made/tasks/0/status"),
        get("created-listed", "/connectors"),
        get("created-expanded", "/connectors?expand=info&expand=status"),
        get("created-expanded-info", "/connectors?expand=info"),
        delete("created-deleted", "/connectors/made"),
        create("create-in-spaces", made("  spaces  ", source())),
        Until("spaces", "RUNNING", 1),
        get("created-in-spaces", "/connectors/spaces"),
        delete("deleted-in-spaces", "/connectors/spaces"),
        create("create-odd", made("odd é ü", source())),
        Until("odd%20%C3%A9%20%C3%BC", "RUNNING", 1),
        get("created-odd", "/connectors/odd%20%C3%A9%20%C3%BC"),
        delete("deleted-odd", "/connectors/odd%20%C3%A9%20%C3%BC"),
        create("create-stopped", made("stopped", source(), "STOPPED")),
        Until("stopped", "STOPPED", 0),
        get("created-stopped", "/connectors/stopped/status"),
        delete("deleted-stopped", "/connectors/stopped"),
        create("create-paused", made("paused", source(), "paused")),
        Until("paused", "PAUSED"),
        delete("deleted-paused", "/connectors/paused"),
        create("create-name-in-config", made("named", source(name="named"))),
        delete("deleted-named", "/connectors/named"),
        create("create-numbers", made("numbers", source(**{"tasks.max": 1, "batch.size": 10}))),
        get("created-numbers", "/connectors/numbers/config"),
        delete("deleted-numbers", "/connectors/numbers"),
    ),
    "making what cannot be": (
        create("create-no-class", made("x", {"topic": LINES})),
        create("create-unknown-class", made("x", source(**{"connector.class": "Nope"}))),
        create("create-empty-class", made("x", source(**{"connector.class": ""}))),
        create("create-no-name", {"config": source()}),
        create("create-empty-name", made("", source())),
        create("create-null-name", {"name": None, "config": source()}),
        create("create-control-name", made("a\u0001b", source())),
        create("create-other-name", made("x", source(name="y"))),
        create("create-no-config", {"name": "x"}),
        create("create-null-config", {"name": "x", "config": None}),
        create("create-empty-config", {"name": "x", "config": {}}),
        create("create-list-config", {"name": "x", "config": []}),
        create("create-nested-value", made("x", source(extra={"a": 1}))),
        create("create-null-value", made("x", source(extra=None))),
        create("create-unknown-field", made("x", source()) | {"colour": "red"}),
        create("create-unknown-state", made("x", source(), "ASLEEP")),
        create("create-wrong-number", made("x", source(**{"tasks.max": "many"}))),
        create("create-no-tasks", made("x", source(**{"tasks.max": "0"}))),
        create("create-no-topic", made("x", {"connector.class": SOURCE, "file": "f"})),
        create("create-sink-no-topics", made("x", {"connector.class": SINK, "file": "f"})),
        create("create-sink-both-topics", made("x", sink(**{"topics.regex": "l.*"}))),
        create("create-bad-converter", made("x", source(**{"value.converter": "Nope"}))),
        create(
            "create-bad-transform",
            made("x", source(transforms="a", **{"transforms.a.type": "Nope"})),
        ),
        create("create-bad-tolerance", made("x", source(**{"errors.tolerance": "some"}))),
        Asked("create-no-body", "POST", "/connectors"),
        Asked("create-not-json", "POST", "/connectors", raw=b'{"name": '),
        Asked("create-list", "POST", "/connectors", []),
        Asked("create-text", "POST", "/connectors", "made"),
        Asked("create-null", "POST", "/connectors", raw=b"null"),
        Asked("create-form", "POST", "/connectors", raw=b"name=x", kind="text/plain"),
        get("none-is-made", "/connectors"),
    ),
    "what is not there": (
        get("absent", "/connectors/nope"),
        get("absent-config", "/connectors/nope/config"),
        get("absent-status", "/connectors/nope/status"),
        get("absent-tasks", "/connectors/nope/tasks"),
        get("absent-tasks-config", "/connectors/nope/tasks-config"),
        get("absent-task-status", "/connectors/nope/tasks/0/status"),
        get("absent-topics", "/connectors/nope/topics"),
        get("absent-offsets", "/connectors/nope/offsets"),
        put("absent-topics-reset", "/connectors/nope/topics/reset"),
        put("absent-pause", "/connectors/nope/pause"),
        put("absent-resume", "/connectors/nope/resume"),
        put("absent-stop", "/connectors/nope/stop"),
        post("absent-restart", "/connectors/nope/restart"),
        post("absent-restart-tasks", "/connectors/nope/restart?includeTasks=true"),
        post("absent-task-restart", "/connectors/nope/tasks/0/restart"),
        delete("absent-delete", "/connectors/nope"),
        patch("absent-patch", "/connectors/nope/config", {"a": "b"}),
        patch(
            "absent-offsets-patch",
            "/connectors/nope/offsets",
            {"offsets": [{"partition": {"filename": "f"}, "offset": {"position": 1}}]},
        ),
        delete("absent-offsets-reset", "/connectors/nope/offsets"),
    ),
    "configs": (
        put("put-new", "/connectors/put/config", source()),
        Until("put", "RUNNING", 1),
        put("put-same", "/connectors/put/config", source()),
        Until("put", "RUNNING", 1),
        put("put-other", "/connectors/put/config", source(topic=OTHERS)),
        get("put-read", "/connectors/put/config"),
        put("put-with-name", "/connectors/put/config", source(name="put")),
        put("put-other-name", "/connectors/put/config", source(name="other")),
        put("put-no-class", "/connectors/put/config", {"topic": LINES}),
        put("put-invalid", "/connectors/put/config", source(**{"tasks.max": "many"})),
        put("put-null-value", "/connectors/put/config", source(extra=None)),
        Asked("put-no-body", "PUT", "/connectors/put/config"),
        get("put-kept", "/connectors/put/config"),
        patch("patch", "/connectors/put/config", {"topic": LINES, "batch.size": "7"}),
        patch("patch-out", "/connectors/put/config", {"batch.size": None}),
        patch("patch-invalid", "/connectors/put/config", {"tasks.max": "many"}),
        patch("patch-name", "/connectors/put/config", {"name": "other"}),
        patch("patch-empty", "/connectors/put/config", {}),
        get("patched", "/connectors/put/config"),
        delete("put-deleted", "/connectors/put"),
        delete("put-deleted-twice", "/connectors/put"),
        get("put-gone", "/connectors/put/status"),
    ),
    "states": (
        create("states-create", made("states", source())),
        Until("states", "RUNNING", 1),
        post("restart-failed", "/connectors/states/restart?onlyFailed=true"),
        post(
            "restart-failed-tasks",
            "/connectors/states/restart?includeTasks=true&onlyFailed=true",
        ),
        put("pause", "/connectors/states/pause"),
        Until("states", "PAUSED", 1),
        get("paused-status", "/connectors/states/status"),
        put("pause-twice", "/connectors/states/pause"),
        put("resume", "/connectors/states/resume"),
        Until("states", "RUNNING", 1),
        put("resume-twice", "/connectors/states/resume"),
        post("restart", "/connectors/states/restart"),
        Until("states", "RUNNING", 1),
        post("restart-tasks", "/connectors/states/restart?includeTasks=true"),
        Until("states", "RUNNING", 1),
        post("restart-misspelt", "/connectors/states/restart?includeTasks=perhaps"),
        Until("states", "RUNNING", 1),
        post("task-restart", "/connectors/states/tasks/0/restart"),
        Until("states", "RUNNING", 1),
        post("task-restart-absent", "/connectors/states/tasks/7/restart"),
        post("task-restart-no-number", "/connectors/states/tasks/one/restart"),
        get("task-status-absent", "/connectors/states/tasks/7/status"),
        get("task-status-no-number", "/connectors/states/tasks/one/status"),
        get("tasks-config", "/connectors/states/tasks-config"),
        put("stop", "/connectors/states/stop"),
        Until("states", "STOPPED", 0),
        get("stopped-status", "/connectors/states/status"),
        get("stopped-tasks", "/connectors/states/tasks"),
        put("stop-twice", "/connectors/states/stop"),
        post("stopped-restart", "/connectors/states/restart"),
        post("stopped-restart-tasks", "/connectors/states/restart?includeTasks=true"),
        put("stopped-resume", "/connectors/states/resume"),
        Until("states", "RUNNING", 1),
        delete("states-deleted", "/connectors/states"),
    ),
    "offsets and topics": (
        create("offsets-create", made("offsets", source())),
        Until("offsets", "RUNNING", 1, topics=1),
        get("topics", "/connectors/offsets/topics"),
        put("topics-reset", "/connectors/offsets/topics/reset"),
        patch(
            "offsets-running",
            "/connectors/offsets/offsets",
            {
                "offsets": [
                    {"partition": {"filename": "${folder}/in.txt"}, "offset": {"position": 2}}
                ]
            },
        ),
        delete("offsets-running-reset", "/connectors/offsets/offsets"),
        put("offsets-stop", "/connectors/offsets/stop"),
        Until("offsets", "STOPPED", 0),
        patch(
            "offsets-set",
            "/connectors/offsets/offsets",
            {
                "offsets": [
                    {"partition": {"filename": "${folder}/in.txt"}, "offset": {"position": 2}}
                ]
            },
        ),
        get("offsets", "/connectors/offsets/offsets"),
        patch(
            "offsets-wrong-partition",
            "/connectors/offsets/offsets",
            {"offsets": [{"partition": {"file": "f"}, "offset": {"position": 2}}]},
        ),
        patch(
            "offsets-wrong-offset",
            "/connectors/offsets/offsets",
            {"offsets": [{"partition": {"filename": "f"}, "offset": {"position": "two"}}]},
        ),
        patch("offsets-none", "/connectors/offsets/offsets", {"offsets": []}),
        patch("offsets-empty", "/connectors/offsets/offsets", {}),
        Asked("offsets-no-body", "PATCH", "/connectors/offsets/offsets"),
        patch(
            "offsets-null",
            "/connectors/offsets/offsets",
            {"offsets": [{"partition": {"filename": "${folder}/in.txt"}, "offset": None}]},
        ),
        delete("offsets-reset", "/connectors/offsets/offsets"),
        get("offsets-after-reset", "/connectors/offsets/offsets"),
        delete("offsets-deleted", "/connectors/offsets"),
        create("sink-create", made("sink", sink(), "STOPPED")),
        Until("sink", "STOPPED", 0),
        patch(
            "sink-offsets-wrong-key",
            "/connectors/sink/offsets",
            {"offsets": [{"partition": {"topic": LINES}, "offset": {"offset": 1}}]},
        ),
        delete("sink-offsets-reset", "/connectors/sink/offsets"),
        delete("sink-deleted", "/connectors/sink"),
    ),
    "a task that fails": (
        create("failing-create", made("failing", sink(file="/no/such/folder/out.txt"))),
        Until("failing", "RUNNING", 1, "FAILED"),
        get("failing-status", "/connectors/failing/status"),
        post("failing-restart-failed", "/connectors/failing/restart?onlyFailed=true"),
        delete("failing-deleted", "/connectors/failing"),
    ),
    "loggers": (
        get("loggers", "/admin/loggers"),
        put("logger-set", "/admin/loggers/beside.a", {"level": "DEBUG"}),
        get("logger", "/admin/loggers/beside.a"),
        put("logger-lower", "/admin/loggers/beside.a", {"level": "warn"}),
        put("logger-unknown-level", "/admin/loggers/beside.a", {"level": "LOUD"}),
        put("logger-no-level", "/admin/loggers/beside.a", {}),
        Asked("logger-no-body", "PUT", "/admin/loggers/beside.a"),
        put("logger-worker", "/admin/loggers/beside.a?scope=worker", {"level": "INFO"}),
        put("logger-cluster", "/admin/loggers/beside.a?scope=cluster", {"level": "INFO"}),
        put("logger-unknown-scope", "/admin/loggers/beside.a?scope=all", {"level": "INFO"}),
        get("logger-absent", "/admin/loggers/no.such.logger"),
        delete("logger-delete", "/admin/loggers/beside.a"),
    ),
    # Kafka Connect never gets rid of these, so they come last.
    "names that no path can have": (
        create("create-odd-signs", made("odd %", source())),
        get("created-odd-signs", "/connectors/odd%20%25"),
        delete("deleted-odd-signs", "/connectors/odd%20%25"),
        create("create-slash-name", made("a/b", source())),
        get("created-slash-name", "/connectors/a%2Fb"),
        delete("deleted-slash-name", "/connectors/a%2Fb"),
    ),
}
