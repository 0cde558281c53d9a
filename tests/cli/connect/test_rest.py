"""Workers that are not there, or refuse to answer, are told as what they are."""

from __future__ import annotations

import http.server
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.broker.network.listener import make_certificate
from tests.cli.connect.commands import Commands
from tests.cli.ports import free_port
from tests.connect.fakes.launcher import FakeLauncher, positions_of_fakes
from tests.connect.running import quick_settings, running


@pytest.fixture
def other_server() -> Iterator[str]:
    """A web server that knows nothing of Connect."""

    class Pages(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/connectors?expand=info&expand=status"
            self.send_response(200 if known else 404)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    """The command line without a worker."""
    monkeypatch.delenv("HEADRACE_CONNECT_URL", raising=False)
    monkeypatch.delenv("HEADRACE_CONNECT_TOKEN", raising=False)
    return Commands(capsys)


def test_nobody_listens(alone: Commands) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    told = alone.refused("list", "--url", url)
    assert told.startswith(f"error: no Connect worker answers at {url}: ")
    assert told.endswith(
        "\n  → start one by `headrace connect worker`, or say where it is by --url or"
        " HEADRACE_CONNECT_URL"
    )


@pytest.mark.parametrize("url", ["localhost:8083", "ftp://a", "http://[::"])
def test_an_address_that_cannot_be(alone: Commands, url: str) -> None:
    told = alone.refused("list", "--url", url)
    assert url in told
    assert "→ give --url such as http://127.0.0.1:8083" in told


@pytest.mark.parametrize("command", ["list", "plugins"])
def test_something_else_listens(alone: Commands, other_server: str, command: str) -> None:
    told = alone.refused(command, "--url", other_server)
    assert f"what answers at {other_server} is no Connect worker" in told


def test_a_worker_with_a_token(alone: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = quick_settings(token="s3cret")
    with running(FakeLauncher, positions_of_fakes, settings=settings) as worker:
        told = alone.refused("list", "--url", worker.url)
        assert told == (
            f"error: the worker at {worker.url} wants a token\n"
            "  → give its token as HEADRACE_CONNECT_TOKEN, or by --token"
        )
        told = alone.refused("list", "--url", worker.url, "--token", "wrong")
        assert "does not know this token" in told
        monkeypatch.setenv("HEADRACE_CONNECT_TOKEN", "s3cret")
        assert alone.data("list", "--url", worker.url) == []


def test_a_worker_with_a_certificate_of_its_own(alone: Commands, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, ["127.0.0.1"])
    settings = quick_settings(tls_certificate=certificate, tls_key=key)
    with running(FakeLauncher, positions_of_fakes, settings=settings) as worker:
        told = alone.refused("list", "--url", worker.url)
        assert told.endswith("→ give the file of a self-made certificate by --tls-ca")
        assert alone.data("list", "--url", worker.url, "--tls-ca", str(certificate)) == []
        plain = worker.url.replace("https", "http")
        assert "https://" in alone.refused("list", "--url", plain)


def test_a_package_of_the_extra_that_is_missing_is_named(
    alone: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    assert alone.refused("list") == (
        "error: headrace connect needs httpx, which is not installed\n"
        '  → pip install "headrace[connect]"'
    )
