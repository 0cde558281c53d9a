"""Accounts that try to work on jobs of others, with every request that speaks for a job."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.broker.settings import Limits
from headrace.protocol.codes import RequestCode, ResponseCode
from headrace.protocol.frames import Command, Credentials
from headrace.protocol.transactions import OpenRequest
from headrace.quiet_log import QuietLog
from tests.breaking import soon
from tests.broker.access.test_guard import SignedWire
from tests.broker.wire import COMMIT_TOPIC, JOB, staged_part

ADMIN, OWNER = Credentials("admin", "top secret"), Credentials("owner", "own secret")
#: It may write every topic, as one does that has the default `*`.
RIVAL = Credentials("rival", "another secret")
#: It may write no topic at all.
GUEST = Credentials("guest", "a third secret")
RULES = """
accounts:
- {accessKey: admin, secretKey: top secret, admin: true}
- {accessKey: owner, secretKey: own secret, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}
- {accessKey: rival, secretKey: another secret, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}
- {accessKey: guest, secretKey: a third secret, defaultTopicPerm: DENY, defaultGroupPerm: DENY}
"""
DENIED, WRONG = ResponseCode.NO_PERMISSION, ResponseCode.INVALID_PARAMETER
BUSY = ResponseCode.SYSTEM_BUSY
LIMITS = Limits(max_staged_parts=5, max_staged_bytes=20_000)

Log = pytest.LogCaptureFixture


@dataclass
class Scene:
    """A broker with a job that is open, and those who ask it."""

    folder: Path
    running: EmbeddedBroker

    def __call__(self, credentials: Credentials) -> SignedWire:
        return SignedWire(self.running.address, credentials)

    def restart(self) -> None:
        self.running.stop()
        self.running = start(self.folder)


def start(folder: Path) -> EmbeddedBroker:
    settings = BrokerSettings(flush="async", acl=folder / "acl.yml", limits=LIMITS)
    broker = EmbeddedBroker(folder / "data", settings=settings)
    broker.start()
    return broker


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    # Tests before this one may have used up what it says in ten seconds.
    log = QuietLog(logging.getLogger("headrace.broker.requests"))
    monkeypatch.setattr("headrace.broker.requests._quiet", log)
    (tmp_path / "acl.yml").write_text(RULES)
    scene = Scene(tmp_path, start(tmp_path))
    with scene(ADMIN) as admin:
        admin.create("out")
    with scene(OWNER) as owner:
        assert owner.open().code == 0
        assert owner.stage({("out", 0): [b"x"]}).code == 0
    yield scene
    scene.running.stop()


ATTACKS: dict[str, Callable[[SignedWire], Command]] = {
    "open": lambda wire: wire.open("thief:1"),
    "stage": lambda wire: wire.stage({("out", 0): [b"forged"]}, attempt=1),
    "stage nothing": lambda wire: wire.stage({}, attempt=1),
    "commit": lambda wire: wire.commit(parts=[staged_part()]),
    "plan": lambda wire: wire.receive(wire.start_plan(["out"])),
    "plan of nothing": lambda wire: wire.receive(wire.start_plan([])),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_nobody_else_speaks_for_a_job(scene: Scene, attack: str, caplog: Log) -> None:
    for credentials in (RIVAL, GUEST):
        with scene(credentials) as wire:
            refused = ATTACKS[attack](wire)
        assert refused.code == DENIED, refused.remark
        assert credentials.access_key in caplog.text
    assert scene.running.statistics().refused == {"NO_PERMISSION": 2}
    scene.restart()
    with scene(RIVAL) as wire:
        assert ATTACKS[attack](wire).code == DENIED
    # Its owner goes on where it was.
    with scene(OWNER) as wire:
        done = wire.commit(parts=[staged_part()])
        assert done.code == 0, done.remark


def test_jobs_of_others_are_not_listed(scene: Scene) -> None:
    def jobs(credentials: Credentials) -> list[str]:
        with scene(credentials) as wire:
            answer = wire.ask(RequestCode.LIST_JOBS)
            assert answer.code == 0
            return [each["record"]["job"] for each in msgspec.json.decode(answer.payload)]

    assert jobs(OWNER) == jobs(ADMIN) == [JOB]
    assert jobs(RIVAL) == jobs(GUEST) == []


def opened(wire: SignedWire, job: str, topic: str = "", owner: str = "") -> Command:
    topic = topic or f"{job}-commitTopic"
    asked = OpenRequest(job=job, commit_topic=topic, driver="a:1", owner=owner)
    return wire.ask(RequestCode.OPEN_JOB, msgspec.json.encode(asked))


def test_a_job_cannot_take_the_commit_topic_of_another(scene: Scene) -> None:
    for credentials in (RIVAL, ADMIN):
        with scene(credentials) as wire:
            assert opened(wire, "other", COMMIT_TOPIC).code == WRONG
            assert opened(wire, JOB, "other-commitTopic").code == WRONG


@pytest.mark.parametrize(
    "name", ["..", "../../store", "a/b", "a\\b", ".", "", "a\x1b[2J", "a\nb", "ü", "a" * 127]
)
def test_names_are_checked_before_anything_is_written(scene: Scene, name: str) -> None:
    before = sorted(scene.folder.rglob("*"))
    with scene(ADMIN) as wire:
        refused = opened(wire, name)
        staged = wire.ask(
            RequestCode.STAGE,
            job=name,
            **dict.fromkeys(("epoch", "batch", "stage", "partition", "attempt", "chunk"), 1),
        )
        planned = wire.ask(
            RequestCode.PLAN_BATCH,
            msgspec.json.encode({"job": name, "commit_topic": f"{name}-commitTopic", "topics": []}),
        )
    assert staged.code == WRONG
    assert refused.code == planned.code == WRONG
    assert sorted(scene.folder.rglob("*")) == before


def test_a_job_is_given_away_by_an_admin_only(scene: Scene) -> None:
    with scene(RIVAL) as wire:
        assert opened(wire, JOB, owner="rival").code == DENIED
    with scene(OWNER) as wire:
        assert opened(wire, JOB, owner="rival").code == DENIED
    with scene(ADMIN) as wire:
        # Who only looks after it does not become its owner.
        assert opened(wire, JOB).code == 0
    with scene(OWNER) as wire:
        assert wire.open().code == 0
    with scene(ADMIN) as wire:
        assert opened(wire, JOB, owner="rival").code == 0
    with scene(OWNER) as wire:
        assert wire.open().code == DENIED
    scene.restart()
    with scene(RIVAL) as wire:
        assert wire.open().code == 0


def test_what_an_account_has_staged_is_bounded(scene: Scene) -> None:
    """Over all its jobs; and it takes nothing from others."""
    numbers = itertools.count(1)

    def fill(wire: SignedWire, body: bytes) -> Command:
        return wire.stage({("out", 0): [body]}, attempt=next(numbers))

    with scene(OWNER) as wire:
        assert fill(wire, b"y" * 19_000).code == 0
        refused = fill(wire, b"y" * 1_000)
        assert refused.code == BUSY
        assert "max_staged_bytes" in str(refused.remark)
        codes = [fill(wire, b"small").code for _ in range(6)]
        assert codes == [0, 0, 0, BUSY, BUSY, BUSY]
    with scene(RIVAL) as wire:
        assert opened(wire, "theirs").code == 0
        fields = dict.fromkeys(("batch", "stage", "partition", "attempt", "chunk"), 1)
        assert wire.ask(RequestCode.STAGE, job="theirs", epoch=1, **fields).code == 0
    with scene(OWNER) as wire:
        # A new epoch drops it all, behind its answer.
        assert wire.open().code == 0
        soon(lambda: wire.stage({("out", 0): [b"x"]}, epoch=2).code == 0)
