"""Accounts and TLS as a user of the client meets them."""

from __future__ import annotations

import asyncio
import pickle
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.broker.network.listener import make_certificate
from headrace.cli import main
from headrace.client import (
    Admin,
    AsyncClient,
    Client,
    ClientSettings,
    GroupConsumer,
    GroupOptions,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
)
from headrace.errors import (
    ConnectionFailedError,
    HeadraceError,
    NoPermissionError,
    SettingsError,
    TlsError,
)
from headrace.settings import JobSettings

QUICK: dict[str, Any] = dict.fromkeys(
    ("connect_timeout", "retry_timeout"), timedelta(milliseconds=300)
)
ADMIN: dict[str, Any] = {"access_key": "admin", "secret_key": "hush-admin"}
APP: dict[str, Any] = {"access_key": "app", "secret_key": "hush-app"}
RULES = """
accounts:
- {accessKey: admin, secretKey: hush-admin, admin: true}
- accessKey: app
  secretKey: hush-app
  topicPerms: [mine=PUB|SUB]
  groupPerms: [mine=SUB]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secured")


@pytest.fixture(scope="module")
def secured(folder: Path) -> Iterator[EmbeddedBroker]:
    (folder / "plain_acl.yml").write_text(RULES)
    settings = BrokerSettings(flush="async", acl=folder / "plain_acl.yml", tls=True)
    with EmbeddedBroker(folder / "data", settings=settings) as broker:
        with Client(broker.address, ClientSettings(**ADMIN)) as admin:
            Admin(admin).create_topic("mine", queues=2)
            Admin(admin).create_topic("other", queues=1)
        yield broker


@pytest.fixture(scope="module")
def ca(secured: EmbeddedBroker, folder: Path) -> Path:
    return folder / "data" / "tls" / "certificate.pem"


@pytest.fixture(scope="module")
def enforcing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    settings = BrokerSettings(flush="async", tls_mode="enforcing")
    with EmbeddedBroker(tmp_path_factory.mktemp("enforcing"), settings=settings) as broker:
        yield broker


@pytest.mark.parametrize("tls", [False, True])
def test_everything_works_with_keys(secured: EmbeddedBroker, ca: Path, tls: bool) -> None:
    security = ClientSettings(**APP, tls=tls, tls_ca=ca if tls else None)
    body = b"x" * 700_000
    with Client(secured.address, security) as client:
        options = GroupOptions(start="first", wait=timedelta(seconds=2))
        with GroupConsumer(client, "mine", ["mine"], options) as consumer:
            producer = Producer(client)
            sent = [producer.send(Message(topic="mine", body=body)) for _ in range(3)]
            assert len(sent) == 3
            got: list[bytes] = []
            while len(got) < 3:
                got += [m.body for block in consumer.poll() for m in block.messages()]
            consumer.commit()
        assert got == [body] * 3


def test_who_lacks_a_permission_is_told_which(secured: EmbeddedBroker) -> None:
    with Client(secured.address, ClientSettings(**APP, **QUICK)) as client:
        with pytest.raises(NoPermissionError) as refused:
            Producer(client).send(Message(topic="other", body=b"x"))
        assert "access key app lacks PUB on topic 'other'" in str(refused.value)
        with pytest.raises(NoPermissionError) as refused:
            Admin(client).create_topic("new", queues=1)
        assert "needs an admin" in str(refused.value)
        with pytest.raises(NoPermissionError):
            PullConsumer(client).pull(MessageQueue("other", "broker-a", 0), 0)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({}, "set access_key and secret_key"),
        ({"access_key": "app", "secret_key": "hush"}, "check access key and secret key"),
        ({"access_key": "nobody", "secret_key": "hush"}, "No acl config for nobody"),
    ],
)
def test_wrong_keys_are_said_at_once_and_never_printed(
    secured: EmbeddedBroker, keys: dict[str, Any], says: str
) -> None:
    with Client(secured.address, ClientSettings(**keys)) as client:
        with pytest.raises(NoPermissionError) as refused:
            client.queues("mine")
        assert says in str(refused.value)
        assert "hush" not in str(refused.value)


def failure(address: str, **security: Any) -> HeadraceError:
    with (
        Client(address, ClientSettings(**QUICK, **security)) as client,
        pytest.raises(HeadraceError) as failed,
    ):
        client.brokers()
    return failed.value


def test_certificate_that_is_not_trusted_is_refused_at_once(secured: EmbeddedBroker) -> None:
    error = failure(secured.address, **ADMIN, tls=True)
    assert isinstance(error, TlsError)
    assert "tls_ca" in str(error)


def test_certificate_of_another_name_is_refused(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, ["elsewhere.example"])
    settings = BrokerSettings(flush="async", tls_certificate=certificate, tls_key=key)
    with EmbeddedBroker(tmp_path / "data", settings=settings) as broker:
        error = failure(broker.address, tls=True, tls_ca=certificate)
        assert isinstance(error, TlsError)
        assert "not trusted" in str(error)
        with Client(broker.address, ClientSettings(tls=True, tls_verify=False)) as client:
            assert client.brokers()


def test_certificates_travel_without_their_file(secured: EmbeddedBroker, ca: Path) -> None:
    settings = ClientSettings(**ADMIN, tls=True, tls_ca=ca).portable()
    assert settings.tls_ca is None
    sent: ClientSettings = pickle.loads(pickle.dumps(settings))
    assert "CERTIFICATE" not in repr(sent)
    with Client(secured.address, sent) as client:
        assert client.brokers()
    assert ClientSettings(tls=True).portable() == ClientSettings(tls=True)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file"),
        (b"", "holds no certificate"),
        (b"nothing", "holds no certificate"),
        (b"\x30\x82\xff\x00", "holds no certificate"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "holds no certificate"),
    ],
)
def test_file_without_certificates_is_named_with_its_machine(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    for told in (
        lambda: ClientSettings(tls=True, tls_ca=path).portable(),
        lambda: failed_context(path),
    ):
        with pytest.raises(SettingsError) as refused:
            told()
        assert re.search(f"{path} on {socket.gethostname()} .*{why}", refused.value.message)
        assert "\n" not in refused.value.message


def failed_context(path: Path) -> None:
    with Client("127.0.0.1:1", ClientSettings(**QUICK, tls=True, tls_ca=path)) as client:
        client.brokers()


def test_words_beside_certificates_are_comments(
    secured: EmbeddedBroker, ca: Path, tmp_path: Path
) -> None:
    mixed = tmp_path / "mixed.pem"
    mixed.write_text(f"# für den Broker\n{ca.read_text()}\nund so weiter\n", encoding="latin-1")
    with Client(secured.address, ClientSettings(**ADMIN, tls=True, tls_ca=mixed)) as client:
        assert client.brokers()


def test_tls_to_a_port_without_it_says_so(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, settings=BrokerSettings(flush="async")) as broker:
        error = failure(broker.address, tls=True)
        assert isinstance(error, ConnectionFailedError)
        assert "does it take TLS?" in str(error)


def test_tls_to_something_that_speaks_otherwise_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def talk() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=talk)
        thread.start()
        error = failure(f"127.0.0.1:{server.getsockname()[1]}", tls=True)
        thread.join()
    assert isinstance(error, TlsError)
    assert "does not speak TLS" in str(error)


def test_plain_to_a_port_that_takes_tls_only_says_so(enforcing: EmbeddedBroker) -> None:
    error = failure(enforcing.address)
    assert isinstance(error, NoPermissionError)
    assert "this broker takes TLS connections only" in str(error)
    with Client(enforcing.address, ClientSettings(tls=True, tls_verify=False)) as client:
        assert client.brokers()


def test_plain_connection_that_ends_without_a_word_hints_at_tls() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            connection, _ = server.accept()
            connection.recv(1024)
            connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(ConnectionFailedError, match="perhaps it takes only TLS"):
            asyncio.run(asyncio.wait_for(_once(server), 5))
        thread.join()


async def _once(server: socket.socket) -> None:
    from headrace.protocol.frames import Command

    address = f"127.0.0.1:{server.getsockname()[1]}"
    async with AsyncClient(address) as client:
        await client.invoke(address, Command(106))


def test_port_with_tls_takes_plain_and_encrypted_connections_side_by_side(
    secured: EmbeddedBroker, ca: Path
) -> None:
    host, _, port = secured.address.rpartition(":")
    context = ssl.create_default_context(cafile=str(ca))
    with (
        socket.create_connection((host, int(port))) as plain,
        context.wrap_socket(plain, server_hostname=host) as encrypted,
        Client(secured.address, ClientSettings(**ADMIN)) as client,
    ):
        assert encrypted.version() == "TLSv1.3"
        assert client.brokers()


def test_handshake_that_never_ends_is_closed(tmp_path: Path) -> None:
    from headrace.broker import Limits

    limits = Limits(greeting_timeout=timedelta(milliseconds=200))
    settings = BrokerSettings(flush="async", tls=True, limits=limits)
    with EmbeddedBroker(tmp_path, settings=settings) as broker:
        host, _, port = broker.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as attacker:
            attacker.sendall(b"\x16\x03\x01")
            assert attacker.recv(100) == b""
        with Client(broker.address, ClientSettings(tls=True, tls_verify=False)) as client:
            assert client.brokers()


def test_self_made_certificate_is_kept_and_its_key_is_private(
    ca: Path, enforcing: EmbeddedBroker
) -> None:
    assert (ca.parent / "key.pem").stat().st_mode & 0o077 == 0
    before = ca.read_bytes()
    make_certificate(ca.parent, ["other"])
    assert ca.read_bytes() == before


def test_without_openssl_the_broker_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingsError, match="--tls-certificate"):
        EmbeddedBroker(tmp_path / "data", settings=BrokerSettings(tls=True)).start()


def test_certificate_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "c.pem").write_text("nothing")
    settings = BrokerSettings(tls_certificate=tmp_path / "c.pem")
    with pytest.raises(SettingsError, match=r"c\.pem"):
        EmbeddedBroker(tmp_path / "data", settings=settings).start()


def test_secrets_are_in_no_text() -> None:
    keys: dict[str, Any] = {"access_key": "app", "secret_key": "hush", "security_token": "hush too"}
    job = JobSettings(**keys)
    client = ClientSettings(**job.connection)
    spark = JobSettings(spark_config={"spark.authenticate.secret": "hush"})
    assert "hush" not in f"{job!r} {spark!r} {client!r} {client.credentials!r}"
    assert "app" in repr(job)
    assert pickle.loads(pickle.dumps(job)).secret_key == "hush"
    assert client.credentials is not None
    assert client.credentials.security_token == "hush too"


def test_one_key_without_the_other_is_refused() -> None:
    with pytest.raises(SettingsError, match="access_key is missing"):
        ClientSettings(secret_key="hush")
    with pytest.raises(SettingsError, match="secret_key is missing") as refused:
        JobSettings(access_key="app")
    assert "hush" not in str(refused.value)
    with pytest.raises(SettingsError) as refused:
        replace(JobSettings(access_key="a", secret_key="b"), secret_key=["hush"])  # type: ignore[arg-type]
    assert "hush" not in str(refused.value)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    code = stopped.value.code
    return code if isinstance(code, int) else 0


def test_commands_take_keys_and_tls_by_option_and_variable(
    secured: EmbeddedBroker,
    ca: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HEADRACE_NAMESRV", secured.address)
    monkeypatch.setenv("HEADRACE_SECRET_KEY", "hush-admin")
    listing = ("topic", "list", "--access-key", "admin")
    assert run(*listing) == 0
    assert run(*listing, "--tls", "--tls-ca", str(ca)) == 0
    assert "mine" in capsys.readouterr().out
    monkeypatch.setenv("HEADRACE_ACCESS_KEY", "admin")
    assert run("produce", "mine", "a") == 0
    assert run(*listing, "--tls") == 1
    assert "--tls-ca" in capsys.readouterr().err.replace("tls_ca", "--tls-ca")
    monkeypatch.setenv("HEADRACE_SECRET_KEY", "hush-wrong")
    assert run("topic", "list") == 1
    told = capsys.readouterr()
    assert "check signature failed" in told.err
    assert "hush" not in told.err + told.out
