"""Names of operators and of the topics that a job makes for itself.

Names end up in topic names, so both share the broker's rules: letters, digits, ``%``, ``|``, ``-``
and ``_``, at most 127 characters.
"""

from __future__ import annotations

import re

from headrace.errors import TopologyError

MAX_TOPIC_LENGTH = 127
"""The broker refuses longer topic names."""

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_ALLOWED = "letters, digits, '%', '|', '-' and '_'"


def state_topic(job: str, operator: str) -> str:
    """Return the name of the compaction topic that holds the state of an operator.

    Examples
    --------
    >>> state_topic("word-count", "count-lines")
    'word-count-count-lines-stateTopic'
    """
    return f"{job}-{operator}-stateTopic"


def commit_topic(job: str) -> str:
    """Return the name of the topic that holds the commit records of a job.

    Examples
    --------
    >>> commit_topic("word-count")
    'word-count-commitTopic'
    """
    return f"{job}-commitTopic"


def journal_topic(job: str) -> str:
    """Return the name of the job's journal, where tasks stage on stock RocketMQ.

    Examples
    --------
    >>> journal_topic("word-count")
    'word-count-journalTopic'
    """
    return f"{job}-journalTopic"


def batch_topic(job: str, operator: str) -> str:
    """Return the name of the topic from which an operator's committed batches are read back.

    Examples
    --------
    >>> batch_topic("word-count", "to-parquet")
    'word-count-to-parquet-batchTopic'
    """
    return f"{job}-{operator}-batchTopic"


def done_topic(job: str, operator: str) -> str:
    """Return the name of the topic that records how far an operator has handed over its batches.

    Examples
    --------
    >>> done_topic("word-count", "to-parquet")
    'word-count-to-parquet-doneTopic'
    """
    return f"{job}-{operator}-doneTopic"


def shuffle_topic(job: str, number: int) -> str:
    """Return the name of a visible shuffle topic, as RIP-58 has it, by its place in the graph.

    Examples
    --------
    >>> shuffle_topic("word-count", 4)
    'word-count-ROCKETMQ-THROUGH-00004-shuffleTopic'
    """
    return f"{job}-ROCKETMQ-THROUGH-{number:05}-shuffleTopic"


def spout_topic(job: str, spout: str) -> str:
    """Return the name of the topic that takes the tuples of a spout that cannot replay.

    Examples
    --------
    >>> spout_topic("site", "clicks")
    'site-clicks-spoutTopic'
    """
    return f"{job}-{spout}-spoutTopic"


def check_job_name(name: str, given: str = "StreamBuilder(name)") -> None:
    """Refuse a job name that no topic could be named after; ``given`` says where it came from.

    Raises
    ------
    TopologyError
        The name is empty, too long, or has a character that topics cannot have.
    """
    _check(f"the job name {name!r}", name, given)
    longest = MAX_TOPIC_LENGTH - len(commit_topic(""))
    if len(name) > longest:
        raise TopologyError(
            f"the job name {name!r} has {len(name)} characters; at most {longest} leave room for"
            f" its commit topic '{commit_topic(name)}'",
            hint=f"choose a shorter name in {given}",
        )


def check_topic(topic: str, where: str) -> None:
    """Refuse a name that no topic can have.

    Raises
    ------
    TopologyError
        The name is empty, too long, or has a character that topics cannot have.
    """
    _check(f"the topic {topic!r} of {where}", topic, "the topic")
    if len(topic) > MAX_TOPIC_LENGTH:
        raise TopologyError(
            f"the topic {topic!r} of {where} has {len(topic)} characters; the broker allows at most"
            f" {MAX_TOPIC_LENGTH}",
            hint="choose a shorter topic name",
        )


def check_operator_name(job: str, name: str, where: str, *, stateful: bool) -> None:
    """Refuse an operator's name that cannot be part of the name of its state topic.

    Raises
    ------
    TopologyError
        The name is empty, has a character that topics cannot have, or is too long.
    """
    _check(f"the operator name {name!r} ({where})", name, "name=")
    topic = state_topic(job, name)
    if stateful and len(topic) > MAX_TOPIC_LENGTH:
        raise TopologyError(
            f"operator '{name}' ({where}) needs the state topic '{topic}' of {len(topic)}"
            f" characters; the broker allows at most {MAX_TOPIC_LENGTH}",
            hint="give it a short name with name=",
        )


def _check(what: str, name: str, setting: str) -> None:
    if not _NAME.fullmatch(name):
        problem = "is empty" if not name else f"may hold only {_ALLOWED}, as topic names do"
        raise TopologyError(f"{what} {problem}", hint=f"change {setting}")
