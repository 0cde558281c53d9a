"""``headrace produce`` and ``headrace consume``: small conveniences for looking and trying."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.cli._cluster import asynchronous, cluster
from headrace.cli._terminal import message_line, say
from headrace.durations import read_duration
from headrace.errors import ConfigurationError, ProtocolError

if TYPE_CHECKING:
    from headrace.client import AsyncPullConsumer, Client, Message, MessageQueue, PullResult


_CHUNK = 10_000
_POLL = timedelta(seconds=10)

TopicName = Annotated[str, typer.Argument(help="The topic's name.")]


def produce(
    topic: TopicName,
    messages: Annotated[
        list[str] | None, typer.Argument(help="The messages; without any, the lines of stdin.")
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Text between a message's key and its value."),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Key of all these messages.")] = None,
    sharding_key: Annotated[
        str | None, typer.Option(help="Messages with the same one go to one queue.")
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Tag of all these messages.")] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="A property; several are possible."),
    ] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="TIME", help='Show them this much later, e.g. "30 s".')
    ] = None,
    delay_level: Annotated[
        int, typer.Option(min=0, max=18, help="RocketMQ's delay level, 1 (1 s) to 18 (2 h).")
    ] = 0,
) -> None:
    """Send messages, or every line of stdin, to a topic."""
    from headrace.client import Producer

    template = _template(topic, key, sharding_key, tag, properties, delay, delay_level)
    lines = iter(messages) if messages else (line.rstrip("\n") for line in sys.stdin)
    # A user who types wants each line sent at once.
    size = 1 if messages is None and sys.stdin.isatty() else _CHUNK
    sent = 0
    with cluster() as client, Producer(client) as producer:
        while chunk := list(islice(lines, size)):
            sending = _messages(template, chunk, key_separator)
            if template.is_delayed:
                for message in sending:
                    producer.send(message)
            else:
                producer.send_many(sending)
            sent += len(chunk)
    say(f"Sent {sent:,} messages to {topic}.")


def consume(
    topic: TopicName,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start at the first message.")
    ] = False,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Stop at the last message there is now.")
    ] = False,
    max_messages: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many messages.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(help="Read as a member of this group, and commit what is printed."),
    ] = None,
    committed: Annotated[
        bool,
        typer.Option("--committed", help="Print only committed messages of jobs, each once."),
    ] = False,
) -> None:
    """Print a topic's messages as key, tab, value; until Ctrl-C, or to the end."""
    printer = _Printer(max_messages)
    with cluster() as client:
        if group is not None:
            from headrace.cli._groups import print_group
            from headrace.client import PushOptions

            start: Literal["first", "last"] = "first" if from_beginning else "last"
            options = PushOptions(start=start, concurrency=256, committed=committed)
            printing = print_group(client, group, topic, options, max_messages, until_end=until_end)
            asyncio.run(printing)
            return
        reading = _TopicReading(first=from_beginning, until_end=until_end, committed=committed)
        asyncio.run(_print_topic(client, topic, printer, reading))


def _template(
    topic: str,
    key: str | None,
    sharding_key: str | None,
    tag: str | None,
    properties: list[str] | None,
    delay: str | None,
    delay_level: int,
) -> Message:
    """Return a message with what all messages have in common."""
    from headrace.client import Message

    return Message(
        topic=topic,
        keys=key,
        sharding_key=sharding_key,
        tags=tag,
        properties=dict(_pair(text) for text in properties or ()),
        delay=None if delay is None else read_duration("--delay", delay),
        delay_level=delay_level,
    )


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise ConfigurationError(f"The property {text!r} has no '='.", hint="Write NAME=VALUE.")
    return name, value


def _messages(template: Message, lines: list[str], separator: str | None) -> Iterator[Message]:
    for line in lines:
        if separator is None:
            yield replace(template, body=line.encode())
        else:
            key, value = _split(line, separator)
            yield replace(template, keys=key, body=value.encode())


def _split(line: str, separator: str) -> tuple[str, str]:
    key, found, value = line.partition(separator)
    if not found:
        message = f"The line {line!r} has no {separator!r} between key and value."
        raise ConfigurationError(message, hint="Correct it, or leave out --key-separator.")
    return key, value


class _EnoughError(Exception):
    """Raised when as many messages are printed as were asked for."""


class _Printer:
    """Writes messages to stdout, up to a number of them."""

    def __init__(self, limit: int | None) -> None:
        self._left = limit

    @property
    def done(self) -> bool:
        """Whether the limit is reached."""
        return self._left == 0

    def print(self, result: PullResult, end: int | None) -> None:
        """Write a block's messages whose offset is below ``end``."""
        for line in islice(_lines(result, end), self._left):
            sys.stdout.write(line)
            if self._left is not None:
                self._left -= 1
        sys.stdout.flush()


def _lines(result: PullResult, end: int | None) -> Iterator[str]:
    from headrace.keys import EXACT_KEY, KEYS, keys_from_columns
    from headrace.runtime.sources.messages import without_watermarks

    columns = without_watermarks(result.columns())
    keys = keys_from_columns(columns.property(KEYS), columns.property(EXACT_KEY))
    for row, (offset, key) in enumerate(zip(columns.queue_offset.tolist(), keys, strict=True)):
        if end is not None and offset >= end:
            continue
        try:
            yield message_line(key, columns.readable_body(row))
        except ProtocolError as error:
            say(f"{result.queue}, offset {offset}: left out: {error}")


async def print_queues(client: Client, positions: Mapping[MessageQueue, int]) -> None:
    """Print the messages of queues from offsets on, until Ctrl-C."""
    from headrace.client import AsyncPullConsumer

    async with asynchronous(client) as connection:
        consumer, printer = AsyncPullConsumer(connection), _Printer(None)
        await asyncio.gather(
            *(_print_queue(consumer, q, offset, None, printer) for q, offset in positions.items())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TopicReading:
    """How a topic is read: where reading begins and ends, and whether only committed messages."""

    first: bool
    until_end: bool
    committed: bool


async def _print_topic(
    client: Client, topic: str, printer: _Printer, reading: _TopicReading
) -> None:
    from headrace.client import AsyncPullConsumer

    async with asynchronous(client) as connection:
        consumer = AsyncPullConsumer(connection, committed=reading.committed)
        queues = await connection.queues(topic)
        ends = await consumer.end_offsets(queues)
        starts = await consumer.begin_offsets(queues) if reading.first else ends
        prints = [
            _print_queue(
                consumer, queue, starts[queue], ends[queue] if reading.until_end else None, printer
            )
            for queue in queues
        ]
        with contextlib.suppress(_EnoughError):
            await asyncio.gather(*prints)


async def _print_queue(
    consumer: AsyncPullConsumer,
    queue: MessageQueue,
    offset: int,
    end: int | None,
    printer: _Printer,
) -> None:
    from headrace.client import PullStatus

    while end is None or offset < end:
        result = await consumer.pull(queue, offset, wait=_POLL)
        if result.status is PullStatus.FOUND:
            printer.print(result, end)
        if printer.done:
            # The other queues may be waiting for messages that are not wanted any more.
            raise _EnoughError
        offset = result.next_offset
