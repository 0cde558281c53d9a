"""What brokers may delete: a start looks whether a job's own topics are kept as long as it needs.

Commit and state topics are needed for good, so they must be compacted; what is in the journal
is needed from the first task of a batch until it is published.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from headrace.client import Admin
from headrace.errors import ConfigurationError, NoPermissionError, RequestNotSupportedError
from headrace.topology.names import commit_topic, journal_topic

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.client import Client
    from headrace.settings import JobSettings


logger = logging.getLogger(__name__)

_POLICY, _COMPACTED = "cleanup.policy", "COMPACTION"
_RESERVED = "fileReservedTime"


def check_retention(
    client: Client, job: str, state_topics: Iterable[str], settings: JobSettings
) -> None:
    """Make sure that brokers keep what a job on RocketMQ needs.

    What an account may not look at is taken to be right.

    Raises
    ------
    ConfigurationError
        A topic of the job loses its messages too soon.
    """
    admin = Admin(client)
    with suppress(NoPermissionError, RequestNotSupportedError):
        for topic in (commit_topic(job), *state_topics):
            _check_compacted(admin, job, topic)
        for broker in sorted({queue.broker for queue in client.queues(journal_topic(job))}):
            _check_journal(admin, job, broker, journal_time(settings))


def journal_time(settings: JobSettings) -> timedelta:
    """Say how long the journal must keep a batch of a job that runs, or is replaced at once.

    It is processed, committed and published, and its driver may be outwaited by another one.

    Examples
    --------
    >>> from headrace.settings import JobSettings
    >>> print(journal_time(JobSettings()))
    0:06:00
    """
    return settings.batch_timeout + 2 * settings.retry_timeout + 2 * settings.lease_expiry


def _check_compacted(admin: Admin, job: str, topic: str) -> None:
    for broker, config in admin.topic_config(topic).items():
        if config.attributes.get(_POLICY) != _COMPACTED:
            raise ConfigurationError(
                f"topic '{topic}' of job '{job}' is no compaction topic on broker '{broker}':"
                " retention would delete what the job needs for good",
                hint="brokers take the policy for new topics only: if the job has never run, delete"
                f" the topic (headrace topic delete {topic}), and its start makes it anew; else"
                " start the job under a new name",
            )


def _check_journal(admin: Admin, job: str, broker: str, needed: timedelta) -> None:
    hours = admin.broker_config(broker).get(_RESERVED, "")
    try:
        kept = float(hours) * 3600
    except ValueError:
        logger.debug("broker %s does not say how long it keeps messages: %r", broker, hours)
        return
    if kept < needed.total_seconds():
        raise ConfigurationError(
            f"broker '{broker}' keeps messages for {hours} h ({_RESERVED}), and a batch of job"
            f" '{job}' may wait for {needed} in the journal topic '{journal_topic(job)}'",
            hint=f"raise {_RESERVED} of the broker (72 by default), above the longest time that the"
            " job may stand still; or lower batch_timeout, retry_timeout and lease_expiry",
        )
