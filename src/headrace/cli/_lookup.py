"""``headrace message``: finds single messages by id, by key or by place."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli._cluster import DataDir, NameServer, cluster
from headrace.cli._terminal import terminal
from headrace.errors import ConfigurationError

if TYPE_CHECKING:
    from headrace.client import Client, StoredMessage

__all__ = ["message"]


def message(
    topic: Annotated[str, typer.Argument(help="The topic's name.")],
    offset_id: Annotated[
        str | None, typer.Option("--id", help="The id that a send returned.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="One of the keys of the messages.")] = None,
    queue: Annotated[int | None, typer.Option(min=0, help="Number of a queue.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="Offset in that queue.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one a line.")] = False,
    namesrv: NameServer = None,
    data_dir: DataDir = None,
) -> None:
    """Show messages: by --id, by --key, or by --queue and --offset."""
    if sum((offset_id is not None, key is not None, queue is not None)) != 1 or (
        (queue is None) != (offset is None)
    ):
        raise ConfigurationError(
            "one way to find the message is needed",
            hint="give --id, --key, or --queue and --offset",
        )
    with cluster(namesrv, data_dir) as client:
        for found in _find(client, topic, offset_id, key, (queue, offset)):
            if as_json:
                typer.echo(json.dumps(_as_data(found)))
            else:
                _show(found)


def _find(
    client: Client,
    topic: str,
    offset_id: str | None,
    key: str | None,
    place: tuple[int | None, int | None],
) -> list[StoredMessage]:
    from headrace.client import Admin

    admin = Admin(client)
    if offset_id is not None:
        return [admin.message_by_id(topic, offset_id)]
    if key is not None:
        return admin.messages_by_key(topic, key)
    number, offset = place
    queues = [queue for queue in client.queues(topic) if queue.queue_id == number]
    if not queues or offset is None:
        raise ConfigurationError(
            f"topic {topic!r} has no queue {number}", hint=f"`headrace topic status {topic}`"
        )
    return [admin.message(queue, offset) for queue in queues]


def _as_data(message: StoredMessage) -> dict[str, object]:
    return {
        "topic": message.topic,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "id": message.offset_id,
        "born": _time(message.born),
        "stored": _time(message.stored),
        "reconsume_times": message.reconsume_times,
        "properties": message.properties,
        "body": message.body.decode(errors="backslashreplace"),
    }


def _show(message: StoredMessage) -> None:
    from rich.table import Table

    shown = Table(show_header=False, box=None, pad_edge=False)
    for name, value in _as_data(message).items():
        if isinstance(value, dict):
            for property_name, text in sorted(value.items()):
                shown.add_row(property_name, str(text), style="dim")
        else:
            shown.add_row(name, str(value))
    terminal().print(shown, markup=False)
    typer.echo()


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
