"""``headrace topic``: makes, lists, shows and deletes topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli._cluster import DataDir, NameServer, cluster
from headrace.cli._security import connecting
from headrace.cli._terminal import say, show, terminal

if TYPE_CHECKING:
    from headrace.client import Client

__all__ = ["app"]

app = typer.Typer(
    help="Make, list, show and delete topics.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

# RocketMQ's own topics; besides, each cluster and each broker has one of its own name.
_OF_BROKERS = (
    "%",
    "BenchmarkTest",
    "OFFSET_MOVED_EVENT",
    "RMQ_SYS_",
    "SCHEDULE_TOPIC_XXXX",
    "SELF_TEST_TOPIC",
    "TBW102",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "rmq_sys_",
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
    namesrv: NameServer = None,
    data_dir: DataDir = None,
) -> None:
    """Make a topic, or change its number of queues."""
    from headrace.client import Admin

    attributes = {"cleanup.policy": "COMPACTION"} if compaction else None
    with cluster(namesrv, data_dir) as client:
        Admin(client).create_topic(topic, queues=queues, attributes=attributes)
    say(f"Topic {topic} has {queues} queues.")


@app.command()
@connecting
def delete(topic: TopicName, namesrv: NameServer = None, data_dir: DataDir = None) -> None:
    """Delete a topic and its messages."""
    from headrace.client import Admin

    with cluster(namesrv, data_dir) as client:
        admin = Admin(client)
        # Brokers delete a topic that is not there without a word: a typo would look like success.
        client.route(topic)
        admin.delete_topic(topic)
    say(f"Topic {topic} is deleted.")


@app.command("list")
@connecting
def list_topics(
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that brokers keep for themselves.")
    ] = False,
    namesrv: NameServer = None,
    data_dir: DataDir = None,
) -> None:
    """List the topics, one a line."""
    from headrace.client import Admin

    with cluster(namesrv, data_dir) as client:
        own = set() if everything else _topics_of_brokers(client)
        for topic in sorted(Admin(client).topics()):
            if topic not in own and (everything or not topic.startswith(_OF_BROKERS)):
                show(topic)


@app.command()
@connecting
def status(topic: TopicName, namesrv: NameServer = None, data_dir: DataDir = None) -> None:
    """Show the offsets of a topic's queues."""
    from rich.table import Table

    from headrace.client import PullConsumer

    table = Table("queue", "first", "end", "messages", title=topic)
    for column in table.columns[1:]:
        column.justify = "right"
    with cluster(namesrv, data_dir) as client:
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
def describe(topic: TopicName, namesrv: NameServer = None, data_dir: DataDir = None) -> None:
    """Show a topic's settings on each broker, and the groups that read it."""
    from rich.table import Table

    from headrace.client import Admin

    table = Table(show_header=False, box=None, pad_edge=False)
    with cluster(namesrv, data_dir) as client:
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
