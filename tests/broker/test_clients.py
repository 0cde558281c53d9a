from __future__ import annotations

from headrace.broker.clients import ClientRegistry, Member, Notify
from headrace.protocol.groups import ConsumerData, Heartbeat, ProducerData, SubscriptionData


def beat(
    client: str, *topics: str, group: str = "g", version: int = 1, without_sub: bool = False
) -> Heartbeat:
    subscriptions = [SubscriptionData(topic=topic, sub_version=version) for topic in topics]
    consumer = ConsumerData(group_name=group, subscription_data_set=subscriptions)
    return Heartbeat(client_id=client, consumer_data_set=[consumer], without_sub=without_sub)


def member(peer: int) -> Member:
    return Member("", peer, f"127.0.0.1:{peer}", "JAVA", 479)


def two_members() -> ClientRegistry:
    clients = ClientRegistry(120)
    clients.heartbeat(beat("a", "t"), member(1), now=0)
    clients.heartbeat(beat("b", "t"), member(2), now=0)
    return clients


def test_everybody_hears_of_a_new_member() -> None:
    clients = ClientRegistry(120)
    assert clients.heartbeat(beat("a", "t"), member(1), now=0) == [Notify(1, "g")]
    notices = clients.heartbeat(beat("b", "t"), member(2), now=0)
    assert notices == [Notify(1, "g"), Notify(2, "g")]


def test_repeated_heartbeat_is_no_news() -> None:
    clients = two_members()
    assert clients.heartbeat(beat("a", "t"), member(1), now=30) == []


def test_everybody_hears_of_other_topics() -> None:
    clients = two_members()
    notices = clients.heartbeat(beat("a", "t", "u"), member(1), now=30)
    assert notices == [Notify(1, "g"), Notify(2, "g")]
    assert clients.subscription("g", "u") is not None
    clients.heartbeat(beat("a", "u"), member(1), now=31)
    assert clients.subscription("g", "t") is None


def test_heartbeat_without_subscriptions_keeps_them() -> None:
    clients = two_members()
    assert clients.heartbeat(beat("a", without_sub=True), member(1), now=30) == []
    assert clients.subscription("g", "t") is not None


def test_newer_version_of_a_subscription_counts() -> None:
    clients = ClientRegistry(120)
    for version in (5, 3):
        clients.heartbeat(beat("a", "t", version=version), member(1), now=0)
    found = clients.subscription("g", "t")
    assert found is not None
    assert found.sub_version == 5


def test_the_others_hear_of_a_member_that_leaves() -> None:
    clients = two_members()
    notices = clients.unregister(1, producer_group=None, consumer_group="g")
    assert notices == [Notify(2, "g")]
    group = clients.group("g")
    assert group is not None
    assert group.client_ids() == ["b"]


def test_closed_connection_leaves_all_groups() -> None:
    clients = two_members()
    clients.heartbeat(beat("a", "t", group="h"), member(1), now=0)
    clients.heartbeat(
        Heartbeat(client_id="a", producer_data_set=[ProducerData(group_name="p")]),
        member(1),
        now=0,
    )
    assert [found.client_id for found in clients.producers("p")] == ["a"]
    assert clients.disconnect(1) == [Notify(2, "g")]
    assert clients.producers("p") == []


def test_silent_client_is_gone_after_the_expiry() -> None:
    clients = two_members()
    clients.heartbeat(beat("b", "t"), member(2), now=100)
    assert clients.expire(now=120) == []
    assert clients.expire(now=121) == [Notify(2, "g")]


def test_reconnected_client_is_listed_once() -> None:
    clients = two_members()
    clients.heartbeat(beat("a", "t"), member(3), now=1)
    group = clients.group("g")
    assert group is not None
    assert group.client_ids() == ["a", "b"]


def test_member_that_never_joined_leaves_without_notice() -> None:
    clients = two_members()
    assert clients.unregister(9, producer_group="p", consumer_group="nobody") == []
