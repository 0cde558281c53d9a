"""``headrace topic``: makes, lists, shows and deletes topics."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli._cluster import cluster, connecting
from headrace.cli._terminal import message_line, say, show, terminal
from headrace.errors import ConfigurationError, NotFoundError

if TYPE_CHECKING:
    from headrace.client import Client, StoredMessage


# ``headrace table``: looks into a compaction topic as a table of keys and values.


def table(
    topic: Annotated[str, typer.Argument(help="The topic's name.")],
    key: Annotated[
        str | None, typer.Argument(help="Print this key's value only; without it, all.")
    ] = None,
    prefix: Annotated[str, typer.Option(help="Only keys that begin with this.")] = "",
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with every change, until Ctrl-C.")
    ] = False,
) -> None:
    """Print the last value of each key as key, tab, value; a deleted key has no value."""
    from headrace.client import TableReader

    if follow and (key is not None or prefix):
        raise ConfigurationError(
            "--follow shows all keys", hint="leave out the key and --prefix, or pipe into grep"
        )
    with cluster() as client:
        with TableReader(client, topic) as reader:
            reader.caught_up()
        # The table reads no more: following begins where it stands.
        positions = reader.statistics().positions
        if key is not None:
            _print_value(topic, key, reader.get(key))
            return
        for name, value in sorted(reader.items(prefix), key=lambda item: str(item[0])):
            sys.stdout.write(message_line(name, value))
        sys.stdout.flush()
        if follow:
            from headrace.cli._messages import print_queues

            asyncio.run(print_queues(client, positions))


def _print_value(topic: str, key: str, value: bytes | None) -> None:
    if value is None:
        raise NotFoundError(
            f"the table of topic {topic!r} has no key {key!r}",
            hint=f"`headrace table {topic}` prints all keys",
        )
    sys.stdout.buffer.write(value + b"\n")
    sys.stdout.flush()


# ``headrace message``: finds single messages by id, by key or by place.


def message(
    topic: Annotated[str, typer.Argument(help="The topic's name.")],
    offset_id: Annotated[
        str | None, typer.Option("--id", help="The id that a send returned.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="One of the keys of the messages.")] = None,
    queue: Annotated[int | None, typer.Option(min=0, help="Number of a queue.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="Offset in that queue.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one a line.")] = False,
) -> None:
    """Show messages: by --id, by --key, or by --queue and --offset."""
    if sum((offset_id is not None, key is not None, queue is not None)) != 1 or (
        (queue is None) != (offset is None)
    ):
        raise ConfigurationError(
            "one way to find the message is needed",
            hint="give --id, --key, or --queue and --offset",
        )
    with cluster() as client:
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


app = typer.Typer(
    help="Make, list, show and delete topics.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

TopicName = Annotated[str, typer.Argument(help="The topic's name.")]


@app.command()
@connecting
def create(
    topic: TopicName,
    queues: Annotated[int, typer.Option(min=1, help="Number of queues.")] = 4,
    compaction: Annotated[
        bool, typer.Option("--compaction", help="Keep the last message of each key only.")
    ] = False,
) -> None:
    """Make a topic, or change its number of queues."""
    from headrace.client import Admin
    from headrace.protocol.routes import COMPACTED

    attributes = COMPACTED if compaction else None
    with cluster() as client:
        Admin(client).create_topic(topic, queues=queues, attributes=attributes)
    say(f"Topic {topic} has {queues} queues.")


@app.command()
@connecting
def delete(topic: TopicName) -> None:
    """Delete a topic and its messages."""
    from headrace.client import Admin

    with cluster() as client:
        admin = Admin(client)
        # Brokers silently delete a topic that does not exist: a typo would look like success.
        client.route(topic)
        admin.delete_topic(topic)
    say(f"Topic {topic} is deleted.")


@app.command("list")
@connecting
def list_topics(
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that brokers keep for themselves.")
    ] = False,
) -> None:
    """List the topics, one a line."""
    from headrace.client import Admin
    from headrace.protocol.routes import is_of_brokers

    with cluster() as client:
        own = set() if everything else _topics_of_brokers(client)
        for topic in sorted(Admin(client).topics()):
            if everything or not (topic in own or is_of_brokers(topic)):
                show(topic)


@app.command()
@connecting
def status(topic: TopicName) -> None:
    """Show the offsets of a topic's queues."""
    from rich.table import Table

    from headrace.client import PullConsumer

    table = Table("queue", "first", "end", "messages", title=topic)
    for column in table.columns[1:]:
        column.justify = "right"
    with cluster() as client:
        queues = client.queues(topic)
        consumer = PullConsumer(client)
        begins, ends = consumer.begin_offsets(queues), consumer.end_offsets(queues)
    for queue in queues:
        begin, end = begins[queue], ends[queue]
        table.add_row(
            f"{queue.broker} {queue.queue_id}", f"{begin:,}", f"{end:,}", f"{end - begin:,}"
        )
    table.add_section()
    table.add_row("all", "", "", f"{sum(ends.values()) - sum(begins.values()):,}")
    terminal().print(table)


@app.command()
@connecting
def describe(topic: TopicName) -> None:
    """Show a topic's settings on each broker, and the groups that read it."""
    from rich.table import Table

    from headrace.client import Admin

    table = Table(show_header=False, box=None, pad_edge=False)
    with cluster() as client:
        admin = Admin(client)
        configs, groups = admin.topic_config(topic), admin.topic_groups(topic)
    for broker, config in configs.items():
        table.add_row("broker", broker)
        table.add_row(
            "queues", f"{config.read_queue_nums} to read, {config.write_queue_nums} to write"
        )
        for name, value in sorted(config.attributes.items()):
            table.add_row(name, value)
    table.add_row("groups", ", ".join(groups) or "none")
    terminal().print(table)


def _topics_of_brokers(client: Client) -> set[str]:
    info = client.cluster_info()
    return {*info.cluster_addr_table, *info.broker_addr_table}
