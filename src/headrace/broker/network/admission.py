"""Whether the broker's tables take one more entry: what clients can make without being asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import BrokerBusyError, InvalidParameterError, MessageRejectedError
from headrace.protocol.records import largest_records

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.broker.requests import Peer
    from headrace.protocol.frames import Buffer
    from headrace.protocol.groups import Heartbeat


def check_polls(core: Core, peer: Peer) -> None:
    """Refuse to let one more request wait when too many do."""
    limits = core.settings.limits
    if core.polls.of(peer.number) >= limits.max_polls:
        message = f"{limits.max_polls} requests of this connection wait for messages already"
        raise BrokerBusyError(message, hint="The limit is max_polls; use more connections.")
    if len(core.polls) >= limits.max_polls_in_all:
        message = f"{limits.max_polls_in_all} requests wait for messages already"
        raise BrokerBusyError(message, hint="The broker's limit is max_polls_in_all.")


def check_new_topic(core: Core, name: str) -> None:
    """Refuse to create a topic that nobody asked for when there are too many."""
    most = core.settings.limits.max_topics
    if name not in core.topics and len(core.topics) >= most:
        message = f"topic {name!r} is not created: there are {len(core.topics)} topics already"
        raise BrokerBusyError(message, hint="Create it by hand, or raise the limit max_topics.")


def check_staged(core: Core, job: str, size: int) -> None:
    """Refuse to keep more for an account than it may have staged and not committed."""
    limits, owner = core.settings.limits, core.jobs.owner(job)
    found = [
        sums for each, sums in core.store.staged_sums().items() if core.jobs.owner(each) == owner
    ]
    parts, held = sum(each for each, _ in found), sum(each for _, each in found)
    if parts >= limits.max_staged_parts or held + size > limits.max_staged_bytes:
        whose = f"of the account {owner!r}" if owner else "that belong to no account"
        message = f"the jobs {whose} have staged {held:,} bytes in {parts:,} parts: job {job!r} can"
        hint = "They go with the next commit or epoch; the limits are max_staged_bytes and"
        raise BrokerBusyError(f"{message} stage no more", hint=f"{hint} max_staged_parts.")


def check_group(core: Core, name: str) -> None:
    """Refuse a consumer group that has never been seen when there are too many."""
    most = core.settings.limits.max_groups
    if name in core.groups or core.offsets.knows(name) or core.clients.group(name) is not None:
        return
    if max(len(core.groups), core.offsets.group_count, core.clients.group_count) >= most:
        message = f"group {name!r} is not let in: there are {most} consumer groups already"
        raise BrokerBusyError(message, hint="Delete groups, or raise the limit max_groups.")


def check_heartbeat(core: Core, beat: Heartbeat, peer: int) -> None:
    """Refuse a heartbeat that names more than a client can mean, with those before it."""
    limits = core.settings.limits
    named = core.clients.would_join(beat, peer)
    if named > limits.max_groups_per_client:
        message = f"a client is in {named} groups, {limits.max_groups_per_client} are possible"
        raise InvalidParameterError(message, hint="The limit is max_groups_per_client.")
    told = sum(len(consumer.subscription_data_set) for consumer in beat.consumer_data_set)
    if core.clients.subscription_count + told > limits.max_subscriptions + _known(core, beat):
        message = f"{told} subscriptions more are too many: {limits.max_subscriptions} are possible"
        raise BrokerBusyError(message, hint="The broker's limit is max_subscriptions.")
    for consumer in beat.consumer_data_set:
        check_group(core, consumer.group_name)
    new = sum(not core.clients.producers(p.group_name) for p in beat.producer_data_set)
    if new and core.clients.producer_group_count + new > limits.max_groups:
        message = f"there are {limits.max_groups} producer groups already"
        raise BrokerBusyError(message, hint="The broker's limit is max_groups.")


def _known(core: Core, beat: Heartbeat) -> int:
    """Subscriptions that the heartbeat replaces."""
    groups = (core.clients.group(consumer.group_name) for consumer in beat.consumer_data_set)
    return sum(len(group.subscriptions) for group in groups if group is not None)


def check_batch(core: Core, batch: Buffer, topic: str, properties: str) -> None:
    """Refuse a batch that grows beyond reason: each message takes the header's properties."""
    most = core.settings.limits.max_batch_growth
    size = largest_records(batch, topic, len(properties), enough=most)
    if size > most:
        message = f"a batch of {len(batch)} bytes for topic {topic!r} takes {size} bytes unpacked"
        hint = "Send fewer messages at once; the limit is max_batch_growth."
        raise MessageRejectedError(message, hint=hint)
