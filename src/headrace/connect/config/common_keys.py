"""The declarations of the keys that every connector has."""

from __future__ import annotations

import re
from datetime import timedelta

from headrace.connect.config.checks import at_least, matching, one_of
from headrace.connect.config.declaration import declare
from headrace.connect.config.keys import key
from headrace.connect.config.kinds import PluginName, Size

__all__ = ["COMMON", "SINK", "SOURCE"]

_NEVER = timedelta(milliseconds=-1)

COMMON = declare(
    key(
        "name",
        str,
        "The connector's name, unique among all connectors.",
        required=True,
        # What lifecycle names allow is decided where they are made; here only what no form takes.
        valid=matching(r"(?s).*\S.*", "a name that is not blank"),
        group="Common",
    ),
    key(
        "connector.class",
        PluginName("connectors"),
        "The connector's class, or one of its other names, such as `file-source`.",
        required=True,
        group="Common",
        width="long",
    ),
    key(
        "tasks.max",
        int,
        "Most tasks that the connector may share its work out to.",
        default=1,
        valid=at_least(1),
        importance="high",
        group="Common",
        width="short",
        aliases=("max.tasks",),
    ),
    key(
        "key.converter",
        PluginName("converters"),
        "How keys become bytes and bytes become keys; its own keys follow after `key.converter.`.",
        group="Common",
        importance="low",
    ),
    key(
        "value.converter",
        PluginName("converters"),
        "How values become bytes and bytes become values; its own keys follow after "
        "`value.converter.`.",
        group="Common",
        importance="low",
    ),
    key(
        "header.converter",
        PluginName("header_converters"),
        "How headers become properties of a message; its own keys follow after "
        "`header.converter.`.",
        group="Common",
        importance="low",
    ),
    key(
        "transforms",
        list,
        "Names of the transforms that every record passes, in this order.",
        default=[],
        group="Transforms",
        importance="low",
    ),
    key(
        "predicates",
        list,
        "Names of the predicates that decide which records a transform sees.",
        default=[],
        group="Predicates",
        importance="low",
    ),
    key(
        "config.action.reload",
        str,
        "What becomes of the connector when a value from outside, such as `${file:...}`, changes: "
        "`restart` starts it and its tasks again within some 10 s; `none` leaves them with the old "
        "value until they are started anew.",
        default="restart",
        valid=one_of("none", "restart", ignore_case=True),
        group="Common",
        importance="low",
    ),
    key(
        "errors.retry.timeout",
        timedelta,
        "How long a failed step is tried again; 0 never, -1 for ever. What waits for a peer that is "
        "away (see status) does so for ever, unless this is set.",
        default=timedelta(0),
        valid=at_least(_NEVER),
        group="Errors",
    ),
    key(
        "errors.retry.delay.max.ms",
        timedelta,
        "Longest pause between two tries; pauses grow from 300 ms to it, and to 5 s while a peer is "
        "away, unless this is set.",
        default=timedelta(minutes=1),
        valid=at_least(_NEVER),
        group="Errors",
    ),
    key(
        "errors.tolerance",
        str,
        "What a record that fails does: `none` stops the task, `all` lets it go on without.",
        default="none",
        valid=one_of("none", "all", ignore_case=True),
        group="Errors",
    ),
    key(
        "errors.log.enable",
        bool,
        "Whether each record that fails is logged, also when it is tolerated.",
        default=False,
        group="Errors",
    ),
    key(
        "errors.log.include.messages",
        bool,
        "Whether that log line holds the record itself.",
        default=False,
        group="Errors",
    ),
    # The worker itself reads these, so they are plain whole numbers.
    key(
        "task.shutdown.graceful.timeout.ms",
        int,
        "Milliseconds that a task or connector may take to stop by itself before it is forced; "
        "the worker's setting where none is given.",
        valid=at_least(0),
        group="Limits",
        importance="low",
    ),
    key(
        "task.start.timeout.ms",
        int,
        "Milliseconds that a task or connector may take to start before it is forced; the "
        "worker's setting where none is given.",
        valid=at_least(1),
        group="Limits",
        importance="low",
    ),
    key(
        "task.memory.mb",
        int,
        "Most memory of a task or connector in megabytes; one that wants more is killed, alone. The "
        "worker's setting where none is given.",
        valid=at_least(1),
        group="Limits",
        importance="low",
    ),
    key(
        "restart.max.attempts",
        int,
        "How often in a row the worker restarts a task or connector that failed: 0 never, -1 "
        "always.",
        default=0,
        valid=at_least(-1),
        group="Restarts",
        importance="low",
    ),
    key(
        "restart.pause.ms",
        int,
        "Milliseconds before the first of these restarts; the pause doubles each time.",
        default=1_000,
        valid=at_least(0),
        group="Restarts",
        importance="low",
    ),
    key(
        "restart.pause.max.ms",
        int,
        "Longest of these pauses in milliseconds; who runs for longer than it is well again.",
        default=60_000,
        valid=at_least(0),
        group="Restarts",
        importance="low",
    ),
)

SOURCE = declare(
    key(
        "exactly.once.support",
        str,
        "A source's records and its positions are always one commit. `required` refuses a "
        "connector that does not say that it gives every record again from its positions, as "
        "otherwise some may be missing or doubled in spite of that.",
        default="requested",
        valid=one_of("requested", "required", ignore_case=True),
        group="Exactly once",
        importance="low",
    ),
    key(
        "topic.creation.default.partitions",
        int,
        "Queues of the topics that the source makes, where they are missing.",
        default=4,
        valid=at_least(1),
        group="Topics",
        importance="low",
    ),
)

SINK = declare(
    key(
        "topics",
        list,
        "The topics that the connector reads.",
        default=[],
        importance="high",
        group="Common",
        width="long",
        aliases=("connect.topicnames", "connect.topicname"),
    ),
    key(
        "topics.regex",
        re.Pattern,
        "Reads all topics whose whole name matches, in place of `topics`.",
        importance="high",
        group="Common",
    ),
    key(
        "errors.deadletterqueue.topic.name",
        str,
        "The topic that gets the records that failed, with `errors.tolerance=all`; empty: none.",
        default="",
        group="Errors",
    ),
    key(
        "errors.deadletterqueue.topic.queues",
        int,
        "Queues of that topic where it has to be created.",
        default=8,
        valid=at_least(1),
        group="Errors",
        aliases=(
            "errors.deadletterqueue.write.queue.nums",
            "errors.deadletterqueue.read.queue.nums",
        ),
    ),
    key(
        "errors.deadletterqueue.context.headers.enable",
        bool,
        "Whether dead letters tell in `__connect.errors.*` headers what happened, and where.",
        default=True,
        group="Errors",
        aliases=("errors.deadletterqueue.context.properties.enable",),
    ),
    key(
        "errors.put.tolerance",
        str,
        "What a record does that the sink itself refuses: `none` stops the task; `all` finds the "
        "record by halving the batch, and treats it as `errors.tolerance=all` treats others.",
        default="none",
        valid=one_of("none", "all", ignore_case=True),
        group="Errors",
    ),
    key(
        "consume.from.where",
        str,
        "Where the sink begins in queues of which no offset was ever committed: `first` "
        "(`earliest`), `latest`, or a time with its zone, such as `2026-05-01T12:00:00Z`. A queue "
        "that comes while the sink runs is read from its first message.",
        default="first",
        valid=matching(
            r"(?i)first|earliest|latest|\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)",
            "first, earliest, latest or a time such as 2026-05-01T12:00:00Z",
        ),
        group="Common",
        importance="low",
        aliases=("consumer.override.auto.offset.reset",),
    ),
    key(
        "batch.max.records",
        int,
        "Most records that one call of `put` gets.",
        default=10_000,
        valid=at_least(1),
        group="Limits",
        importance="low",
        aliases=("consumer.override.max.poll.records",),
    ),
    key(
        "batch.max.bytes",
        Size,
        "Most bytes of keys and values that one call of `put` gets; a larger record comes alone.",
        default=16 << 20,
        valid=at_least(1),
        group="Limits",
        importance="low",
    ),
)
