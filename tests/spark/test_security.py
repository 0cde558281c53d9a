"""A job under an account of its own, by TLS."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.client import Admin, Client, ClientSettings
from headrace.errors import NoPermissionError
from headrace.spark.launch import make_connection
from headrace.spark.plans import pickle_plan
from tests.spark.pipelines import Rig, word_count

pytestmark = pytest.mark.spark

TEXT = ["to be or not to be", "that is the question"] * 20
RULES = """
accounts:
- {accessKey: operator, secretKey: hush-operator, admin: true}
- accessKey: job
  secretKey: hush-job
  topicPerms: [lines=SUB, counts=PUB, words-*=PUB|SUB]
  groupPerms: [words=SUB]
- accessKey: stranger
  secretKey: hush-stranger
  topicPerms: [lines=SUB, counts=PUB]
"""


def test_job_runs_with_just_the_permissions_that_it_needs(tmp_path: Path) -> None:
    rules = tmp_path / "plain_acl.yml"
    rules.write_text(RULES)
    topology = word_count("words", "lines", "counts")
    settings = BrokerSettings(flush="async", acl=rules, tls_mode="enforcing")
    with EmbeddedBroker(tmp_path / "data", settings=settings) as broker:
        ca = tmp_path / "data" / "tls" / "certificate.pem"
        keys = ClientSettings(
            access_key="operator", secret_key="hush-operator", tls=True, tls_ca=ca
        )
        with Client(broker.address, keys) as client:
            admin = Admin(client)
            for topic, queues in {"lines": 2, "counts": 2, topology.commit_topic: 1}.items():
                admin.create_topic(topic, queues=queues)
            for topic in topology.state_topics.values():
                admin.create_topic(topic, queues=2, attributes={"cleanup.policy": "COMPACTION"})
            rig = Rig(broker.address, client, tmp_path / "job", lambda: "")
            rig.send("lines", TEXT)
            security = {"tls": "true", "tls_ca": str(ca)}
            with pytest.raises(NoPermissionError, match="words-") as refused:
                rig.run(topology, access_key="stranger", secret_key="hush-stranger", **security)
            assert "hush" not in str(refused.value)
            given = security | {"access_key": "job", "secret_key": "hush-job"}
            rig.run(topology, **given)
            assert rig.latest("counts") == Counter(word for line in TEXT for word in line.split())
            connection = make_connection(topology, rig.settings(**given), broker.address)
            shown = f"{connection.plan!r} {pickle_plan(connection.plan)!r}"
            connection.close()
            assert "hush" not in shown
