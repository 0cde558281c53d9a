"""Rows under an account of their own, by TLS."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.client import Admin, Client, ClientSettings, Jobs
from headrace.connect.data import DataPlane
from headrace.connect.worker import Failed, HostSpec, Moved
from headrace.errors import NoPermissionError
from headrace.protocol.transactions import OpenRequest
from headrace.settings import JobSettings
from tests.connect.data.planes import plane_at, sink, source, task, until, written
from tests.connect.hosts.running import SINK, Heard, on_loop

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

RULES = """
accounts:
- {accessKey: operator, secretKey: hush-operator, admin: true}
- accessKey: connect
  secretKey: hush-connect
  topicPerms: [lines=PUB|SUB, connect-*=PUB|SUB]
  groupPerms: [connect-*=SUB]
- accessKey: rival
  secretKey: hush-rival
  topicPerms: [lines=PUB|SUB, connect-*=PUB|SUB]
  groupPerms: [connect-*=SUB]
"""


def opened_by_a_rival(client: Client, job: str) -> None:
    topic = f"{job}-commitTopic"
    Jobs(client, topic).open(OpenRequest(job=job, commit_topic=topic, driver="rival"))


async def refused(plane: DataPlane, spec: HostSpec) -> str:
    """Launch a task that cannot be, and give what is said of it."""
    heard = Heard()
    await plane.launch(spec, heard)
    await until(lambda: any(isinstance(event, Failed) for event in heard.events))
    return (await heard.first(Failed)).cause.summary


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
            for job in ("in-lines", "out-lines", "out-theirs"):
                admin.create_topic(
                    f"connect-{job}-0-commitTopic", 1, attributes={"cleanup.policy": "COMPACTION"}
                )
            admin.create_topic("lines", queues=2)
        rival = ClientSettings(access_key="rival", secret_key="hush-rival", **secure)  # type: ignore[arg-type]
        jobs = JobSettings(access_key="connect", secret_key="hush-connect", **secure)  # type: ignore[arg-type]
        async with plane_at(broker.address, tmp_path, jobs) as plane:
            with Client(broker.address, rival) as stranger:
                opened_by_a_rival(stranger, "connect-out-theirs-0")
            reading, writing = Heard(), Heard()
            await plane.launch(source(tmp_path, "lines", 1), reading)
            await plane.launch(sink(tmp_path, "lines", 1), writing)
            await until(lambda: sorted(written(tmp_path)) == ["a", "b"])
            # How much they have moved, and what is left, is told under that account, too.
            await until(lambda: all(has_figures(heard) for heard in (reading, writing)))
            # Of what it may not do it says what is lacking, and where.
            for connector, topic, why in (
                ("out-secret", "secret", "secret"),
                ("out-theirs", "lines", "belongs to the account 'rival', not to 'connect'"),
            ):
                spec = task(connector, "sink", connector_class=SINK, topics=topic)
                said = await refused(plane, spec)
                assert broker.address in said
                assert f"task 0 of connector '{connector}'" in said
                assert why in said
            # Its jobs are its own: who may write to the same topics sees none of them.
            with Client(broker.address, rival) as stranger:
                assert [one.record.job for one in Admin(stranger).jobs()] == [
                    "connect-out-theirs-0"
                ]
                with pytest.raises(NoPermissionError, match="belongs to the account 'connect'"):
                    opened_by_a_rival(stranger, "connect-in-lines-0")
        assert "hush" not in logs(tmp_path)
