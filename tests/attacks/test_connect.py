"""Whoever reaches a Connect worker: pages of the web, slow senders, configs that reach for files."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from headrace.connect.config import providers
from headrace.connect.config.providers import Permits
from headrace.connect.transforms.python_function import PythonFunction
from headrace.connect.worker import WorkerSettings
from headrace.errors import ConnectorConfigError, SettingsError
from headrace.quiet_log import QuietLog
from tests.connect.fakes.launcher import FakeLauncher, positions_of_fakes
from tests.connect.running import Running, quick_settings, running

#: Where none of ours waits for so long, it is cut off soon.
_SOON = 5.0


@pytest.fixture(scope="module")
def worker() -> Iterator[Running]:
    settings = quick_settings(max_connections=20, request_time=timedelta(milliseconds=300))
    with running(FakeLauncher, positions_of_fakes, settings=settings) as one:
        yield one


@pytest.fixture(autouse=True)
def talkative(monkeypatch: pytest.MonkeyPatch) -> None:
    # Tests before this one may have used up what it says in ten seconds.
    log = QuietLog(logging.getLogger("headrace.connect.rest.calls"))
    monkeypatch.setattr("headrace.connect.rest.calls._quiet", log)


def refused(worker: Running, reason: str) -> int:
    """Ask for a counter of what was refused."""
    figure = f'headrace_connect_rest_refused_total{{reason="{reason}"}} '
    lines = worker.http.get("/metrics").text.splitlines()
    return sum(int(float(line.removeprefix(figure))) for line in lines if line.startswith(figure))


def connected(worker: Running) -> socket.socket:
    place = urlsplit(worker.url)
    assert place.hostname
    assert place.port
    return socket.create_connection((place.hostname, place.port), timeout=_SOON)


def read_all(connection: socket.socket) -> bytes:
    found = b""
    try:
        while more := connection.recv(65_536):
            found += more
    except ConnectionResetError:
        pass
    return found


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8083", 200),
        ("localhost", 200),
        ("LocalHost.:1", 200),
        ("[::1]:8083", 200),
        ("127.9.9.9", 200),
        ("evil.example", 403),
        ("evil.example:8083", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("10.0.0.7", 403),
        ("0.0.0.0", 403),
        ("", 403),
        ("[::1", 200),
        ("[fe80::1]", 403),
    ],
)
def test_a_page_that_asks_under_its_own_name_is_refused(
    worker: Running, host: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    before = refused(worker, "host")
    answer = worker.http.get("/connectors", headers={"Host": host})
    assert answer.status_code == status
    if status == 403:
        assert "loopback" in answer.json()["message"]
        assert "refused a request (host) of 127.0.0.1" in caplog.text
    assert refused(worker, "host") - before == (status == 403)
    # Probes learn nothing, and may call the worker what they like.
    assert worker.http.get("/health", headers={"Host": host}).status_code == 200


def test_a_second_name_in_a_request_does_not_help(worker: Running) -> None:
    with closing(connected(worker)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert b" 200 " not in connection.recv(65_536).partition(b"\r\n")[0]


def test_what_is_not_http_is_counted_and_fills_no_log(
    worker: Running, caplog: pytest.LogCaptureFixture
) -> None:
    before = refused(worker, "malformed")
    for _ in range(30):
        with closing(connected(worker)) as connection:
            connection.sendall(b"\x16\x03\x01 not HTTP\r\n\r\n")
            assert b" 400 " in read_all(connection).partition(b"\r\n")[0]
    assert refused(worker, "malformed") - before == 30
    assert 1 <= len(caplog.records) <= 5


def test_with_a_token_any_name_will_do(caplog: pytest.LogCaptureFixture) -> None:
    with running(
        FakeLauncher, positions_of_fakes, settings=quick_settings(token="s3cret")
    ) as worker:
        headers = {"Host": "connect.example", "Authorization": "Bearer s3cret"}
        assert worker.http.get("/connectors", headers=headers).status_code == 200
        wrong = {"Host": "connect.example", "Authorization": "Bearer guessed"}
        assert worker.http.get("/connectors", headers=wrong).status_code == 401
        assert "refused a request (token) of 127.0.0.1" in caplog.text
        worker.http.headers.update(headers)
        assert refused(worker, "token") == 1


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "::", "connect.example"])
def test_other_addresses_need_a_token_or_a_word(host: str) -> None:
    with pytest.raises(SettingsError, match="no token is set") as raised:
        WorkerSettings(host=host)
    assert "--allow-anyone" in str(raised.value)
    for more in ({"token": "s3cret"}, {"allow_anyone": True}):
        assert WorkerSettings(host=host, **more).host == host


SLOW = {
    "nothing": b"",
    "half a line": b"GET /conn",
    "half a header": b"GET / HTTP/1.1\r\nHost: localhost\r\nX-",
    "half a body": b"POST /connectors HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
}


@pytest.mark.parametrize("sent", SLOW)
def test_a_request_that_does_not_come_whole_is_cut_off(
    worker: Running, sent: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = refused(worker, "time")
    with closing(connected(worker)) as connection:
        connection.sendall(SLOW[sent])
        began = time.monotonic()
        assert b" 200 " not in read_all(connection)
        assert time.monotonic() - began < _SOON
    assert "did not come whole" in caplog.text
    assert refused(worker, "time") == before + 1


def trickle(connection: socket.socket, sent: bytes) -> None:
    for byte in sent:
        connection.sendall(bytes([byte]))
        time.sleep(0.02)


def test_a_byte_now_and_then_does_not_help(worker: Running) -> None:
    with closing(connected(worker)) as connection:
        began = time.monotonic()
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            trickle(connection, b"GET / HTTP/1.1\r\nX: " + b"y" * 1_000)
        assert time.monotonic() - began < _SOON


def test_connections_are_bounded_and_others_are_answered_again(worker: Running) -> None:
    before = refused(worker, "connections")
    opened = [connected(worker) for _ in range(40)]
    try:
        # Those beyond the limit are ended at once, the others when nothing comes.
        ended = 0
        for connection in opened:
            ended += not read_all(connection)
        assert ended == len(opened)
    finally:
        for connection in opened:
            connection.close()
    assert worker.http.get("/connectors").status_code == 200
    assert refused(worker, "connections") - before >= 20


@pytest.fixture
def restricted(request: pytest.FixtureRequest) -> Iterator[None]:
    providers.restrict(request.param)
    yield
    providers.restrict(None)


def refusals(**texts: str) -> str:
    with pytest.raises(ConnectorConfigError) as raised:
        providers.resolve(texts)
    return str(raised.value)


@pytest.mark.parametrize("restricted", [Permits()], indirect=True)
def test_nothing_is_taken_from_outside_by_default(
    restricted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "swordfish")
    secret = tmp_path / "secret"
    secret.write_text("key=swordfish")
    for text, option in (
        ("${env:SECRET}", "--allow-env SECRET"),
        (f"${{file:{secret}:key}}", f"--allow-file {secret}"),
        (f"${{file:{secret}}}", "--allow-file"),
        ("${file:/etc/passwd}", "--allow-file /etc/passwd"),
    ):
        said = refusals(password=text)
        assert option in said
        assert "swordfish" not in said
        assert providers.references({"password": text}) == {}
    with pytest.raises(ConnectorConfigError, match="--allow-function os"):
        PythonFunction().configure(PythonFunction.config.parse({"function": "os:system"}))


LISTED = Permits(env=["DB_*"], files=[], functions=["tests.connect"])


@pytest.mark.parametrize("restricted", [LISTED], indirect=True)
def test_what_is_listed_opens_nothing_beside_it(
    restricted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "swordfish")
    monkeypatch.setenv("XDB_PASSWORD", "other")
    inside, outside = tmp_path / "secrets", tmp_path / "secrets-of-others"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "db").write_text("swordfish")
    (inside / "link").symlink_to(outside / "db")
    providers.restrict(Permits(env=["DB_*"], files=[str(inside)], functions=["tests.connect"]))
    taken = providers.resolve({"a": "${env:DB_PASSWORD}", "b": f"${{file:{inside}/db}}"})
    assert set(taken.values()) == {"swordfish"}
    refusals(a="${env:XDB_PASSWORD}")
    for path in ("link", "../secrets-of-others/db", "../../etc/passwd"):
        refusals(a=f"${{file:{inside}/{path}}}")
    refusals(a=f"${{file:{outside}/db}}")
    for function in ("tests.connectors:x", "tests:x", "builtins:exec", "tests.connect_x:y"):
        with pytest.raises(ConnectorConfigError, match="has not allowed the module"):
            PythonFunction().configure(PythonFunction.config.parse({"function": function}))
