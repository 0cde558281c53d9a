"""Our client against a real RocketMQ with access control and TLS."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from headrace.client import (
    Admin,
    Client,
    ClientSettings,
    GroupConsumer,
    GroupOptions,
    Message,
    Producer,
)
from headrace.errors import BrokerError, NoPermissionError, TlsError
from tests.clusters import running_rocketmq

pytestmark = pytest.mark.rocketmq

_AUTH = "org.apache.rocketmq.auth.auth"
ACCESS_CONTROL = (
    "authenticationEnabled=true",
    f"authenticationProvider={_AUTH}entication.provider.DefaultAuthenticationProvider",
    f"authenticationMetadataProvider={_AUTH}entication.provider.LocalAuthenticationMetadataProvider",
    'initAuthenticationUser={"username":"operator","password":"real-secret"}',
    'innerClientAuthenticationCredentials={"accessKey":"operator","secretKey":"real-secret"}',
    "authorizationEnabled=true",
    f"authorizationProvider={_AUTH}orization.provider.DefaultAuthorizationProvider",
    f"authorizationMetadataProvider={_AUTH}orization.provider.LocalAuthorizationMetadataProvider",
)
KEYS: dict[str, Any] = {"access_key": "operator", "secret_key": "real-secret"}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("secured-rocketmq")
    with running_rocketmq(folder, *ACCESS_CONTROL) as cluster:
        yield cluster.namesrv


@pytest.mark.slow
@pytest.mark.parametrize("tls", [False, True])
def test_everything_works_with_keys_and_with_tls(real: str, tls: bool) -> None:
    topic = f"secured-{tls}".lower()
    settings = ClientSettings(**KEYS, tls=tls, tls_verify=False)
    with Client(real, settings) as client:
        Admin(client).create_topic(topic, queues=2)
        producer = Producer(client)
        bodies = {b"%d" % number for number in range(10)}
        for body in bodies:
            producer.send(Message(topic=topic, body=body))
        options = GroupOptions(start="first", wait=timedelta(seconds=2))
        with GroupConsumer(client, f"{topic}-g", [topic], options) as consumer:
            found: set[bytes] = set()
            while found != bodies:
                found |= {m.body for block in consumer.poll() for m in block.messages()}
            consumer.commit()


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys", [{}, KEYS | {"secret_key": "wrong"}, KEYS | {"access_key": "nobody"}]
)
def test_wrong_keys_are_said(real: str, keys: dict[str, str]) -> None:
    with Client(real, ClientSettings(**KEYS)) as client:
        Admin(client).create_topic("known", queues=1)
        client.queues("known")
    settings = ClientSettings(**keys, retry_timeout=timedelta(0))  # type: ignore[arg-type]
    with Client(real, settings) as client, pytest.raises(BrokerError) as refused:
        Producer(client).send(Message(topic="known", body=b"x"))
    assert isinstance(refused.value, NoPermissionError)
    assert "key" in str(refused.value)
    assert "wrong" not in str(refused.value)


@pytest.mark.slow
def test_certificate_that_rocketmq_makes_for_itself_is_not_trusted(real: str) -> None:
    with (
        Client(real, ClientSettings(**KEYS, tls=True)) as client,
        pytest.raises(TlsError, match="tls_verify"),
    ):
        client.brokers()
