"""Rows under an account of their own, by TLS."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.client import Admin, Client, ClientSettings
from headrace.connect.worker import Failed, Moved
from headrace.settings import JobSettings
from tests.connect.data.planes import plane_at, sink, source, task, until, written
from tests.connect.hosts.running import Heard, on_loop

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

RULES = """
accounts:
- {accessKey: operator, secretKey: hush-operator, admin: true}
- accessKey: connect
  secretKey: hush-connect
  topicPerms: [lines=PUB|SUB, connect-*=PUB|SUB]
  groupPerms: [connect-*=SUB]
"""


def has_figures(heard: Heard) -> bool:
    return any(isinstance(event, Moved) for event in heard.events)


def logs(folder: Path) -> str:
    return "".join(log.read_text(errors="replace") for log in folder.rglob("*.log"))


@pytest.mark.slow
@on_loop
async def test_lines_move_over_tls_with_just_the_permissions_that_tasks_need(
    tmp_path: Path,
) -> None:
    rules = tmp_path / "plain_acl.yml"
    rules.write_text(RULES)
    (tmp_path / "in.txt").write_text("a\nb\n")
    guarded = BrokerSettings(flush="async", acl=rules, tls_mode="enforcing")
    with EmbeddedBroker(tmp_path / "data", settings=guarded) as broker:
        ca = tmp_path / "data" / "tls" / "certificate.pem"
        secure = {"tls": True, "tls_ca": ca}
        operator = ClientSettings(access_key="operator", secret_key="hush-operator", **secure)  # type: ignore[arg-type]
        with Client(broker.address, operator) as client:
            admin = Admin(client)
            for job in ("in-lines", "out-lines"):
                admin.create_topic(
                    f"connect-{job}-0-commitTopic", 1, attributes={"cleanup.policy": "COMPACTION"}
                )
            admin.create_topic("lines", queues=2)
        jobs = JobSettings(access_key="connect", secret_key="hush-connect", **secure)  # type: ignore[arg-type]
        async with plane_at(broker.address, tmp_path, jobs) as plane:
            reading, writing, refused = Heard(), Heard(), Heard()
            await plane.launch(source(tmp_path, "lines", 1), reading)
            await plane.launch(sink(tmp_path, "lines", 1), writing)
            await until(lambda: sorted(written(tmp_path)) == ["a", "b"])
            # How much they have moved, and what is left, is told under that account, too.
            await until(lambda: all(has_figures(heard) for heard in (reading, writing)))
            # Of what it may not do it says what is lacking, and where.
            other = task("out-secret", "sink", connector_class="chaos-sink", topics="secret")
            await plane.launch(other, refused)
            await until(lambda: any(isinstance(event, Failed) for event in refused.events))
            (failed,) = (event for event in refused.events if isinstance(event, Failed))
            assert broker.address in failed.cause.summary
            assert "task 0 of connector 'out-secret'" in failed.cause.summary
        assert "hush" not in logs(tmp_path)
