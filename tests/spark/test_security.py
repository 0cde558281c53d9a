"""A job under an account of its own, by TLS."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.client import Admin, Client, ClientSettings
from headrace.errors import NoPermissionError, SettingsError
from headrace.settings import JobSettings
from headrace.spark import StreamJob
from headrace.spark.cluster import make_connection
from headrace.spark.statistics import pickle_plan
from tests.spark.pipelines import LIMIT, Rig, word_count

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
            with StreamJob(topology, rig.settings(**given)) as job:
                job.prepare()
                # Machines of workers have no such file.
                ca.rename(tmp_path / "away.pem")
                job.start().await_caught_up(LIMIT)
            (tmp_path / "away.pem").rename(ca)
            assert rig.latest("counts") == Counter(word for line in TEXT for word in line.split())
            connection = make_connection(topology, rig.settings(**given), broker.address)
            shown = f"{connection.plan!r} {pickle_plan(connection.plan)!r}"
            connection.close()
            assert "hush" not in shown


def test_a_file_of_certificates_is_read_by_the_driver_before_anything_else(tmp_path: Path) -> None:
    topology = word_count("words", "lines", "counts")
    with pytest.raises(SettingsError, match=re.escape(str(tmp_path / "ca.pem"))):
        # Nothing listens there: the file comes first.
        make_connection(topology, JobSettings(tls=True, tls_ca=tmp_path / "ca.pem"), "127.0.0.1:1")


def test_ports_of_spark_ask_for_a_secret(spark: SparkSession) -> None:
    """Whoever may send to them has code run: what they take is Java's own serialization."""
    conf, java = spark.sparkContext.getConf(), spark.sparkContext._jvm
    assert java is not None
    port = conf.get("spark.driver.port")
    assert port is not None

    def reach(*, knows: bool) -> None:
        # Within this Java all that want to authenticate find the secret.
        stranger = java.org.apache.spark.SparkConf(False)
        stranger.set("spark.authenticate", str(knows).lower())
        entries = getattr(getattr(java.org.apache.spark.internal.config, "package$"), "MODULE$")
        security = java.org.apache.spark.SecurityManager(
            stranger, java.scala.Option.empty(), entries.AUTH_SECRET_FILE()
        )
        rpc = java.org.apache.spark.rpc.RpcEnv.create(
            "stranger", "127.0.0.1", 0, stranger, security, True
        )
        try:
            address = java.org.apache.spark.rpc.RpcAddress("127.0.0.1", int(port))
            rpc.setupEndpointRef(address, "HeartbeatReceiver")
        finally:
            rpc.shutdown()

    reach(knows=True)
    with pytest.raises(Py4JJavaError):
        reach(knows=False)
