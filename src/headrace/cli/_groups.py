"""``headrace group``: lists groups, shows how far they are behind, resets and deletes them."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.cli._cluster import asynchronous, cluster, connecting
from headrace.cli._terminal import length, message_line, say, terminal
from headrace.durations import parse_duration
from headrace.errors import ConfigurationError, NotFoundError
from headrace.watched import watched_task

if TYPE_CHECKING:
    from rich.table import Table

    from headrace.client import (
        Admin,
        AsyncPushConsumer,
        Client,
        GroupLag,
        MessageQueue,
        PushOptions,
        StoredMessage,
    )


# ``headrace consume --group``: prints as a member of a consumer group.

_PAUSE = 0.05


async def print_group(
    client: Client,
    group: str,
    topic: str,
    options: PushOptions,
    limit: int | None,
    *,
    until_end: bool,
) -> None:
    """Print the messages that a member of a group gets; only printed ones count as read."""
    from headrace.client import AsyncPullConsumer, AsyncPushConsumer
    from headrace.topology.operators.core import WATERMARK

    async with asynchronous(client) as connection:
        ends = await AsyncPullConsumer(connection).end_offsets(await connection.queues(topic))
        async with AsyncPushConsumer(connection, group, [topic], options=options) as consumer:
            failures: list[BaseException] = []

            def fail(error: BaseException) -> None:
                failures.append(error)
                consumer.close_soon()

            watch = None
            if until_end:
                work = _close_at(consumer, ends)
                watch = watched_task(work, name="until-end", on_failure=fail)
            left = limit
            async for delivery in consumer:
                shown = WATERMARK not in delivery.message.properties
                if shown:
                    _write(delivery.message)
                delivery.ack()
                if not shown:
                    continue
                if left is not None:
                    left -= 1
                    if not left:
                        break
            if watch is not None:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
            for failure in failures:
                raise failure


async def _close_at(consumer: AsyncPushConsumer, ends: Mapping[MessageQueue, int]) -> None:
    """Close the consumer when it has read its own queues up to their ends."""
    while True:
        await asyncio.sleep(_PAUSE)
        statistics = consumer.statistics()
        positions = {} if statistics is None else statistics.positions
        mine = [queue for queue in ends if queue in positions]
        if all(positions[queue] >= ends[queue] for queue in mine):
            # Not awaited: the loop that prints ends by it, and would wait for itself.
            consumer.close_soon()
            return


def _write(message: StoredMessage) -> None:
    from headrace.keys import key_from_properties

    sys.stdout.write(message_line(key_from_properties(message.properties), message.body))
    sys.stdout.flush()


app = typer.Typer(
    help="List groups, show their lag, reset and delete them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

# Groups that brokers and tools have for themselves.
_OF_BROKERS = re.compile(r"^(CID_|TOOLS_CONSUMER|FILTERSRV_|SELF_TEST_|__MONITOR|%SYS)")
_INTERVAL = 2.0

GroupName = Annotated[str, typer.Argument(help="The group's name.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Topic = Annotated[str | None, typer.Option(help="Only this topic.")]


@app.command("list")
@connecting
def list_groups(
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that brokers keep for themselves.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the groups with their members and their lag."""
    from rich.table import Table

    from headrace.client import Admin

    table = Table("group", "members", "lag", "behind")
    for column in table.columns[1:]:
        column.justify = "right"
    rows: list[dict[str, object]] = []
    with cluster() as client:
        admin = Admin(client)
        for group in admin.groups():
            if everything or not _OF_BROKERS.match(group):
                members, lag = len(admin.group_members(group)), _lag_or_none(admin, group)
                rows.append({"group": group, "members": members} | _totals(lag))
                shown = ("", "") if lag is None else (f"{lag.total:,}", length(lag.behind))
                table.add_row(group, str(members), *shown)
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        terminal().print(table)


@app.command()
@connecting
def lag(
    group: GroupName,
    topic: Topic = None,
    as_json: AsJson = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again every two seconds, until Ctrl-C.")
    ] = False,
) -> None:
    """Show how far a group is behind in each queue; it need not be connected."""
    from headrace.client import Admin

    with cluster() as client:
        admin = Admin(client)

        def show() -> None:
            found = admin.lag(group, topic)
            if as_json:
                typer.echo(json.dumps(_as_data(found)))
            else:
                terminal().print(_table(found))

        _repeat(show, forever=watch)


@app.command()
@connecting
def reset(
    group: GroupName,
    topic: Annotated[str, typer.Option(help="The topic in which the group is reset.")],
    to: Annotated[
        str,
        typer.Option(help='"first", "last", a time (2026-11-21T08:00) or an age ("30 min").'),
    ],
) -> None:
    """Set a group back or ahead; running members hear of it."""
    from headrace.client import Admin

    place = parse_place(to)
    with cluster() as client:
        offsets = Admin(client).reset_group(group, topic, place)
    for queue, offset in sorted(offsets.items()):
        say(f"Group {group} goes on at {offset:,} in queue {queue.queue_id} of {queue.topic}.")


@app.command()
@connecting
def delete(group: GroupName) -> None:
    """Delete a group and its offsets."""
    from headrace.client import Admin

    with cluster() as client:
        admin = Admin(client)
        # Brokers silently delete a group that does not exist: a typo would look like success.
        if group not in admin.groups():
            raise NotFoundError(
                f"there is no group {group!r}", hint="`headrace group list` shows all groups"
            )
        members = admin.group_members(group)
        if members:
            raise ConfigurationError(
                f"group {group!r} has {len(members)} members: {', '.join(members)}",
                hint="stop them first: they would commit their offsets again",
            )
        admin.delete_group(group)
    say(f"Group {group} is deleted.")


def parse_place(text: str) -> datetime | Literal["first", "last"]:
    """Read where a group must go on.

    >>> parse_place("first"), parse_place("2026-11-21T08:00+00:00").hour
    ('first', 8)
    """
    if text == "first":
        return "first"
    if text == "last":
        return "last"
    try:
        return datetime.now(UTC) - parse_duration(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise ConfigurationError(
            f"{text!r} is no place in a topic",
            hint='write first, last, a time such as 2026-11-21T08:00, or an age such as "30 min"',
        ) from None


def _repeat(show: Callable[[], None], *, forever: bool) -> None:
    show()
    try:
        while forever:
            time.sleep(_INTERVAL)
            show()
    except KeyboardInterrupt:
        return


def _lag_or_none(admin: Admin, group: str) -> GroupLag | None:
    try:
        return admin.lag(group)
    except NotFoundError:
        # Nothing tells what it reads.
        return None


def _totals(lag: GroupLag | None) -> dict[str, object]:
    if lag is None:
        return {"lag": None, "behind_seconds": None}
    return {"lag": lag.total, "behind_seconds": round(lag.behind.total_seconds(), 3)}


def _as_data(lag: GroupLag) -> dict[str, object]:
    queues = [
        {
            "topic": queue.topic,
            "broker": queue.broker,
            "queue": queue.queue_id,
            "offset": part.offset,
            "begin": part.begin,
            "end": part.end,
            "lag": part.lag,
            "behind_seconds": round(part.behind.total_seconds(), 3),
        }
        for queue, part in lag.queues.items()
    ]
    return {"group": lag.group} | _totals(lag) | {"queues": queues}


def _table(lag: GroupLag) -> Table:
    from rich.table import Table

    table = Table("topic", "queue", "offset", "end", "lag", "behind", title=lag.group)
    for column in table.columns[2:]:
        column.justify = "right"
    for queue, part in lag.queues.items():
        offset = "–" if part.offset is None else f"{part.offset:,}"
        table.add_row(
            queue.topic,
            f"{queue.broker} {queue.queue_id}",
            offset,
            f"{part.end:,}",
            f"{part.lag:,}",
            length(part.behind),
        )
    table.add_section()
    table.add_row("all", "", "", "", f"{lag.total:,}", length(lag.behind))
    return table
