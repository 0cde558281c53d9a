from __future__ import annotations

import hashlib
import hmac
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.connect.connectors.http import HttpSourceConnector, HttpSourceTask
from headrace.errors import ConnectorConfigError
from tests.connect.connectors.runs import SourceRun, problems, source

TEXTS = {"topic": "hooks", "port": "0"}


class Hooks:
    """A source that listens, and clients of it."""

    def __init__(self, run: SourceRun, pool: ThreadPoolExecutor) -> None:
        self.run = run
        self.pool = pool

    def post(self, content: Any, **more: Any) -> Future[httpx.Response]:
        """Begin a request."""
        task = self.run.tasks[0]
        assert isinstance(task, HttpSourceTask)
        url = f"http://127.0.0.1:{task.port}{more.pop('path', '/')}"
        return self.pool.submit(httpx.post, url, content=content, timeout=10, **more)

    def wait(self, records: int = 1) -> None:
        """Poll until so many records have come."""
        while len(self.run._given) < records:
            self.run.poll(rounds=1)

    def answer(self, content: Any, **more: Any) -> httpx.Response:
        """Make a request that is answered without a commit."""
        return self.post(content, **more).result()


@contextmanager
def hooks(**more: str) -> Iterator[Hooks]:
    texts = TEXTS | {name.replace("_", "."): value for name, value in more.items()}
    with ThreadPoolExecutor() as pool, source(HttpSourceConnector, texts) as run:
        yield Hooks(run, pool)


def test_request_is_answered_once_it_is_committed() -> None:
    with hooks() as it:
        answer = it.post(b'{"a": 1}')
        it.wait()
        assert not answer.done()
        it.run.commit()
        assert answer.result().status_code == 200
        assert answer.result().json() == {"records": 1}
        assert [record.value for record in it.run.records] == [{"a": 1}]


def test_commit_answers_only_what_it_covers() -> None:
    with hooks() as it:
        first = it.post(b"1")
        it.wait()
        second = it.post(b"2")
        # The second is polled after the commit was made that is only now announced.
        positions = dict(it.run._positions)
        it.wait(2)
        it.run.commit_positions(positions)
        it.run.tasks[0].commit()
        assert first.result().status_code == 200
        assert not second.done()
        it.run.commit()
        assert second.result().status_code == 200


@pytest.mark.requirement(45)
def test_request_that_was_not_committed_is_to_be_sent_again() -> None:
    with hooks() as it:
        answer = it.post(b"1")
        it.wait()
        it.run.kill()
        assert answer.result().status_code == 503
        assert answer.result().headers["retry-after"] == "1"
        again = it.post(b"1")
        it.wait()
        it.run.commit()
        assert again.result().status_code == 200
        assert it.run.records[0].offset == {"number": 1}


def test_request_sent_again_by_its_name_is_one_record() -> None:
    with hooks(commit_timeout_ms="50") as it:
        named = {"idempotency-key": "k1"}
        assert it.answer(b"1", headers=named).status_code == 503
        again = it.post(b"1", headers=named)
        it.wait()
        it.run.commit()
        assert again.result().status_code in {200, 503}
        assert it.answer(b"1", headers=named).status_code == 200
        assert [record.value for record in it.run.records] == [1]


def test_body_is_split_into_records() -> None:
    with hooks(split="lines", format="text", key_header="x-key", headers="x-a,x-b") as it:
        answer = it.post(b"one\n\ntwo\n", headers={"X-Key": "k", "X-A": "a"})
        it.wait(2)
        it.run.commit()
        assert answer.result().json() == {"records": 2}
        one, two = it.run.records
        assert (one.value, two.value, two.key) == ("one", "two", "k")
        assert [(header.key, header.value) for header in two.headers] == [("x-a", "a")]
    with hooks(split="array") as it:
        it.post(b"[1, 2]")
        it.wait(2)
        it.run.commit()
        assert it.answer(b"[]").json() == {"records": 0}
        assert it.answer(b"{}").status_code == 400


def test_token_is_asked_for() -> None:
    with hooks(auth_token="swordfish") as it:
        assert it.answer(b"1").status_code == 401
        wrong = it.answer(b"1", headers={"authorization": "Bearer wrong"})
        assert wrong.headers["www-authenticate"] == "Bearer"
        it.post(b"1", headers={"authorization": "Bearer swordfish"})
        it.wait()


def test_signature_is_checked() -> None:
    with hooks(signature_secret="salt") as it:
        assert it.answer(b"1").status_code == 401
        made = hmac.new(b"salt", b"1", hashlib.sha256).hexdigest()
        it.post(b"1", headers={"x-hub-signature-256": f"sha256={made}"})
        it.wait()


@pytest.mark.parametrize(
    ("content", "path", "status", "said"),
    [
        (b"{", "/", 400, "no JSON"),
        (b'"\xff"', "/", 400, "no JSON"),
        (b'"' + b"x" * 200 + b'"', "/", 413, "larger than 100 bytes"),
        (b"1", "/other", 404, "Not Found"),
    ],
)
def test_bad_request_is_told_why(content: bytes, path: str, status: int, said: str) -> None:
    with hooks(body_max_bytes="100") as it:
        answer = it.answer(content, path=path)
        assert answer.status_code == status
        assert answer.json()["error_code"] == status
        assert said in answer.json()["message"]


def test_body_that_is_nested_too_deeply_is_refused() -> None:
    with hooks() as it:
        assert it.answer(b"[" * 5000 + b"]" * 5000).status_code == 400


def test_too_many_waiting_are_put_off() -> None:
    with hooks(buffer_max_records="1") as it:
        first = it.post(b"1")
        it.wait()
        second = it.answer(b"2")
        assert second.status_code == 503
        assert "Too many records wait" in second.json()["message"]
        it.run.commit()
        assert first.result().status_code == 200


def test_port_that_is_taken_fails_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            SourceRun(HttpSourceConnector, TEXTS | {"port": str(port)})


def test_journal_answers_before_the_commit(tmp_path: Path) -> None:
    with hooks(answer="journal", journal_directory=str(tmp_path / "journal")) as it:
        named = {"idempotency-key": "k"}
        assert it.answer(b'{"a": 1}', headers=named).status_code == 200
        it.run.kill()
        assert it.answer(b'{"a": 1}', headers=named).status_code == 200  # known, even now
        assert it.answer(b"2").status_code == 200
        it.wait(2)
        it.run.kill()
        it.wait(2)
        it.run.commit()
        assert [record.value for record in it.run.records] == [{"a": 1}, 2]
        assert list((tmp_path / "journal").glob("*.journal")) == []
        it.run.kill()
        assert it.run.poll(rounds=1) == []
        assert it.answer(b"3").status_code == 200
        it.wait()
        assert it.run._given[0].offset == {"number": 3}


def test_certificate_that_is_none_fails_the_start(tmp_path: Path) -> None:
    files = {"tls.cert": str(tmp_path / "cert"), "tls.key": str(tmp_path / "key")}
    with pytest.raises(ConnectorConfigError, match=r"tls\.cert and tls\.key cannot be used"):
        SourceRun(HttpSourceConnector, TEXTS | files)


def test_config_that_cannot_be_is_named() -> None:
    assert "needs both" in problems(HttpSourceConnector, TEXTS | {"tls.cert": "a"})[0]
    assert (
        "needs journal.directory" in problems(HttpSourceConnector, TEXTS | {"answer": "journal"})[0]
    )
    both = TEXTS | {"split": "array", "format": "text"}
    assert problems(HttpSourceConnector, both) == ["split=array needs format=json."]
