"""What a worker answers to the requests, without what differs from run to run."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Mapping
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.connect.rest.compatibility.requests import GROUPS, Asked, Until

__all__ = ["answers_of"]

Answer = dict[str, Any]
"""Status, media type and location of an answer, its message or the shape of its body."""

_PATIENCE = 60.0
#: Values that are each side's own.
_OWN = {
    *("worker_id", "version", "commit", "kafka_cluster_id", "trace", "last_modified"),
    # Of the keys of plugins.
    *("documentation", "default_value", "importance", "width", "order", "display_name", "group"),
}
#: What there is more of on one side than on the other: what they have in common is told.
_MANY = ({"class", "type", "version"}, {"definition", "value"}, {"level", "last_modified"})
#: What the description of a key has.
_KEY = "display_name"


def answers_of(url: str, folder: Path) -> dict[str, Answer]:
    """Ask all; the file of the source lies in a folder."""
    (folder / "in.txt").write_text("".join(f"line {number}\n" for number in range(20)))
    found: dict[str, Answer] = {}
    for steps in GROUPS.values():
        for step in steps:
            if isinstance(step, Asked):
                found[step.id] = _ask(url, step, folder)
            else:
                _wait(url, step)
    return found


def _ask(url: str, asked: Asked, folder: Path) -> Answer:
    body = asked.raw
    if body is None and asked.json is not None:
        body = json.dumps(_filled(asked.json, folder)).encode()
    headers = {"Content-Type": asked.kind} if asked.kind and body is not None else {}
    status, given, text = _call(url, asked.method, asked.path, body, headers)
    answer: Answer = {"status": status}
    if (kind := given.get("Content-Type")) is not None:
        answer["type"] = kind.partition(";")[0]
    if "Location" in given:
        # Kafka Connect puts its own address before it.
        answer["location"] = urlsplit(given["Location"]).path
    if text:
        answer |= _told(text, folder)
    return answer


def _told(text: str, folder: Path) -> Answer:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    if isinstance(value, dict) and value.keys() == {"error_code", "message"}:
        message = str(value["message"]).replace(str(folder), "FOLDER")
        # Each side has connectors of its own, and a column depends on the folder's name.
        message = re.sub(r"(?<=available connectors are: ).*", "...", message)
        return {"message": re.sub(r"(?<=column: )\d+", "...", message)}
    return {"body": _shape(value, folder)}


def _shape(value: Any, folder: Path) -> Any:
    """Keep names, and values that are the API's own."""
    if isinstance(value, dict):
        parts = list(value.values())
        if parts and all(isinstance(one, dict) and one.keys() in _MANY for one in parts):
            return _united(parts)
        return {
            key: key.upper() if key in _OWN else _shape(one, folder) for key, one in value.items()
        }
    if isinstance(value, list):
        if value and all(isinstance(one, dict) for one in value):
            kinds = [one.keys() for one in value]
            # A connector has many keys; those of a transform are compared one by one.
            if all(one in _MANY for one in kinds) or (len(value) > 5 and _KEY in kinds[0]):
                return _united(value)
        return [_shape(one, folder) for one in value]
    return value.replace(str(folder), "FOLDER") if isinstance(value, str) else value


def _united(parts: list[Any]) -> dict[str, Any]:
    """Say which keys all parts have."""
    keys = {key for part in parts for key in part}
    return {"each has": sorted(key for key in keys if all(key in part for part in parts))}


def _wait(url: str, until: Until) -> None:
    deadline = time.monotonic() + _PATIENCE
    path = f"/connectors/{until.connector}"
    while True:
        status = _read(url, f"{path}/status")
        topics = _read(url, f"{path}/topics") if until.topics else {}
        used = sum(len(one["topics"]) for one in topics.values())
        if status and _is(status, until) and used == until.topics:
            return
        assert time.monotonic() < deadline, f"{until} is not reached: {status}"
        time.sleep(0.05)


def _read(url: str, path: str) -> dict[str, Any]:
    status, _, text = _call(url, "GET", path, None, {})
    found: dict[str, Any] = json.loads(text) if status == 200 else {}
    return found


def _is(status: Mapping[str, Any], until: Until) -> bool:
    wanted = until.task_state or until.state
    tasks = [task["state"] for task in status["tasks"]]
    enough = until.tasks is None or len(tasks) == until.tasks
    return status["connector"]["state"] == until.state and enough and set(tasks) <= {wanted}


def _call(
    url: str, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
) -> tuple[int, Message, str]:
    """Send a request as it is: a client of more comfort would mend its path."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=100)
    try:
        connection.request(method, path, body, dict(headers) | {"Accept": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def _filled(value: Any, folder: Path) -> Any:
    if isinstance(value, dict):
        return {key: _filled(one, folder) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, folder) for one in value]
    return value.replace("${folder}", str(folder)) if isinstance(value, str) else value
