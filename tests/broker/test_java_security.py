"""RocketMQ's own Java clients and tools with access keys and TLS against the embedded broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.client import Admin, Client, ClientSettings
from tests.java.clients import Java, Security
from tests.java.process import JavaError

pytestmark = pytest.mark.rocketmq

TlsMode = Literal["permissive", "enforcing"]

RULES = """
accounts:
- {accessKey: admin, secretKey: admin-secret, admin: true}
- accessKey: app
  secretKey: app-secret
  topicPerms: [lines=PUB|SUB, tried=PUB|SUB]
  groupPerms: [readers=SUB, others=SUB, lite=SUB, retrying=SUB]
"""
ADMIN = ("admin", "admin-secret")
APP = ("app", "app-secret")


@pytest.fixture(scope="module", params=["permissive", "enforcing"])
def secured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, bool]]:
    """A broker with accounts and TLS, and whether it takes nothing but TLS."""
    mode: TlsMode = request.param
    folder = tmp_path_factory.mktemp("secured")
    (folder / "plain_acl.yml").write_text(RULES)
    settings = BrokerSettings(flush="async", acl=folder / "plain_acl.yml", tls=True, tls_mode=mode)
    with EmbeddedBroker(folder / "data", settings=settings) as broker:
        keys = ClientSettings(
            access_key="admin", secret_key="admin-secret", tls=True, tls_verify=False
        )
        with Client(broker.address, keys) as client:
            for topic in ("lines", "tried", "other"):
                Admin(client).create_topic(topic, queues=2)
        yield broker.address, mode == "enforcing"


def test_java_clients_with_keys_send_and_read_with_tls_and_without(
    secured: tuple[str, bool], java: Java
) -> None:
    address, enforcing = secured
    sent: list[bytes] = []
    for group, tls in (("readers", True),) if enforcing else (("readers", True), ("others", False)):
        security = Security(APP, tls=tls)
        with java.producer(address, security=security) as producer:
            for how in ("sync", "async", "oneway", "batch"):
                bodies = [f"{tls} {how} {number}".encode() for number in range(3)]
                for body in [] if how == "batch" else bodies:
                    producer.send("lines", body, how=how)
                if how == "batch":
                    producer.send("lines", *bodies, how=how)
                sent += bodies
        with java.push_consumer(address, group, "lines", security=security) as push:
            assert sorted(push.bodies(len(sent))) == sorted(sent)
    with java.lite_consumer(address, "lite", "lines", security=Security(APP, tls=True)) as lite:
        assert sorted(lite.bodies(len(sent))) == sorted(sent)
        lite.commit()


def test_java_transactions_and_retries_work_with_keys(
    secured: tuple[str, bool], java: Java
) -> None:
    address, _ = secured
    security = Security(APP, tls=True)
    with (
        java.push_consumer(
            address, "retrying", "tried", fail={"again": 1}, level=1, security=security
        ) as push,
        java.transaction_producer(address, security=security) as producer,
    ):
        producer.send("tried", b"again", how="transaction")
        got = [push.take(1)[0], push.take(1)[0]]
    assert [(message.body, message.reconsume_times) for message in got] == [
        (b"again", 0),
        (b"again", 1),
    ]


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (None, "No accessKey is configured"),
        (("app", "wrong"), "check signature failed"),
        (("nobody", "x"), "No acl config for nobody"),
    ],
)
def test_java_producer_is_told_what_is_wrong_with_its_keys(
    secured: tuple[str, bool], java: Java, keys: tuple[str, str] | None, says: str
) -> None:
    address, enforcing = secured
    with (
        java.producer(address, security=Security(keys, tls=enforcing)) as producer,
        pytest.raises(JavaError, match=says),
    ):
        producer.queues("lines")


def test_java_producer_is_told_what_it_may_not_do(secured: tuple[str, bool], java: Java) -> None:
    address, _ = secured
    with java.producer(address, security=Security(APP, tls=True)) as producer:
        with pytest.raises(JavaError, match="lacks PUB on topic 'other'") as refused:
            producer.send("other", b"x", queue=("other", "broker-a", 0))
        assert refused.value.code == 16


def test_mqadmin_works_with_the_keys_of_an_admin_only(
    secured: tuple[str, bool], java: Java
) -> None:
    address, _ = secured
    admin, app = Security(ADMIN, tls=True), Security(APP, tls=True)
    create = ("updateTopic", "-c", "DefaultCluster", "-t", "made", "-r", "3", "-w", "3")
    assert "create topic" in java.mqadmin(address, *create, security=admin)
    assert "made" in java.mqadmin(address, "topicList", security=admin).split()
    assert "broker-a" in java.mqadmin(address, "clusterList", security=admin)
    with pytest.raises(JavaError, match="needs an admin"):
        java.mqadmin(address, "updateTopic", "-b", address, "-t", "no", security=app)
    with pytest.raises(JavaError):
        java.mqadmin(address, "topicList", security=Security(None, tls=True))
