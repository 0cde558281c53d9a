"""Signed and unsigned requests to a broker with access control."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.broker.access import NEEDS, Guard
from headrace.broker.handlers import HANDLERS
from headrace.errors import SettingsError
from headrace.protocol.codes import RequestCode, ResponseCode
from headrace.protocol.frames import Buffer, Command, Credentials, sign
from tests.broker.wire import JobWire, carried_part

DENIED = ResponseCode.NO_PERMISSION
ADMIN = Credentials("admin", "top secret")
APP = Credentials("app", "app secret")

RULES = """
accounts:
- accessKey: admin
  secretKey: top secret
  admin: true
- accessKey: app
  secretKey: app secret
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms: [in=SUB, out=PUB, both=PUB|SUB, job-commitTopic=PUB]
  groupPerms: [readers=SUB, job=SUB]
"""


class SignedWire(JobWire):
    """A client that signs its requests."""

    def __init__(self, address: str, credentials: Credentials | None) -> None:
        super().__init__(address)
        self.credentials = credentials

    def send(self, code: int, body: Buffer = b"", /, **ext: object) -> int:
        command = Command(code, {name: str(value) for name, value in ext.items()}, body)
        if self.credentials is not None:
            sign(command, self.credentials)
        return super().send(code, body, **command.ext)


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    file = tmp_path / "plain_acl.yml"
    file.write_text(RULES)
    return file


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    folder = tmp_path_factory.mktemp("guarded")
    file = folder / "plain_acl.yml"
    file.write_text(RULES)
    settings = BrokerSettings(flush="async", acl=file)
    with EmbeddedBroker(folder / "data", settings=settings) as running:
        with SignedWire(running.address, ADMIN) as admin:
            for topic in ("in", "out", "both", "other"):
                admin.create(topic)
        yield running


@pytest.fixture
def app(broker: EmbeddedBroker) -> Iterator[SignedWire]:
    with SignedWire(broker.address, APP) as wire:
        yield wire


def test_signature_covers_values_in_order_of_names_and_the_body() -> None:
    command = Command(310, {"b": "lines", "ZZ": "2", "a": "ü", "Signature": "old"}, b"\x00body")
    sign(command, Credentials("key", "secret", "token"))
    text = "key" + "token" + "2" + "ü" + "lines"
    mac = hmac.new(b"secret", text.encode() + b"\x00body", hashlib.sha1).digest()
    assert command.ext["Signature"] == base64.b64encode(mac).decode()


@pytest.mark.parametrize(
    ("credentials", "says"),
    [
        (None, "No accessKey is configured"),
        (Credentials("nobody", "x"), "No acl config for nobody"),
        (Credentials("app", "wrong"), "check signature failed."),
    ],
)
def test_who_cannot_prove_its_name_is_refused_everything(
    broker: EmbeddedBroker, credentials: Credentials | None, says: str
) -> None:
    with SignedWire(broker.address, credentials) as wire:
        for code in (RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.PULL_MESSAGE, 9999):
            answer = wire.ask(code, topic="both")
            assert answer.code == DENIED
            assert says in str(answer.remark)
        wire.send_oneway(RequestCode.UPDATE_CONSUMER_OFFSET, topic="both")


def test_request_changed_on_its_way_is_refused(app: SignedWire) -> None:
    command = Command(RequestCode.GET_MAX_OFFSET, {"topic": "in", "queueId": "0"})
    sign(command, APP)
    forged = command.ext | {"topic": "both"}
    app.credentials = None
    assert app.ask(RequestCode.GET_MAX_OFFSET, **command.ext).code == 0
    assert app.ask(RequestCode.GET_MAX_OFFSET, **forged).code == DENIED
    assert app.ask(RequestCode.GET_MAX_OFFSET, b"x", **command.ext).code == DENIED


def test_topics_are_written_and_read_by_permission(app: SignedWire) -> None:
    sent = {topic: app.put(topic, b"x").code for topic in ("in", "out", "both", "other")}
    assert sent == {"in": DENIED, "out": 0, "both": 0, "other": DENIED}
    read = {
        topic: app.pull(topic, consumerGroup="readers").code
        for topic in ("in", "out", "both", "other")
    }
    assert read == {"in": 19, "out": DENIED, "both": 0, "other": DENIED}
    assert app.pull("both", consumerGroup="strangers").code == DENIED
    refused = app.put("other", b"x")
    assert refused.remark == "no matched policies: access key app lacks PUB on topic 'other'"


def test_topics_of_a_group_belong_to_the_group(app: SignedWire) -> None:
    app.put("%RETRY%readers", b"x")
    assert app.put("%RETRY%readers", b"x").code != DENIED
    assert app.put("%RETRY%strangers", b"x").code == DENIED
    assert app.pull("%DLQ%strangers", consumerGroup="readers").code == DENIED


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_topics_that_hold_the_messages_of_all_need_an_admin(app: SignedWire, topic: str) -> None:
    assert "needs an admin" in str(app.pull(topic, consumerGroup="readers").remark)


@pytest.mark.parametrize(
    ("group", "topic", "code"),
    [("readers", "in", 0), ("readers", "other", DENIED), ("strangers", "in", DENIED)],
)
def test_heartbeat_names_only_what_is_allowed(
    app: SignedWire, group: str, topic: str, code: int
) -> None:
    told = [{"topic": topic}, {"topic": f"%RETRY%{group}"}]
    consumer = {"groupName": group, "subscriptionDataSet": told}
    body = msgspec.json.encode({"clientID": "c", "consumerDataSet": [consumer]})
    assert app.ask(RequestCode.HEART_BEAT, body).code == code


def test_locks_are_taken_only_where_reading_is_allowed(app: SignedWire) -> None:
    def lock(topic: str) -> int:
        queue = {"topic": topic, "brokerName": "broker-a", "queueId": 0}
        body = {"consumerGroup": "readers", "clientId": "c", "mqSet": [queue]}
        return app.ask(RequestCode.LOCK_BATCH_MQ, msgspec.json.encode(body)).code

    assert (lock("in"), lock("other")) == (0, DENIED)


def test_nobody_ends_the_transactions_of_a_topic_that_it_may_not_write(
    app: SignedWire, broker: EmbeddedBroker
) -> None:
    with SignedWire(broker.address, ADMIN) as admin:
        half = admin.put("other", b"x", f=4, i="TRAN_MSG\1true\2PGROUP\1p\2UNIQ_KEY\1u\2")
    ending: dict[str, object] = {
        "producerGroup": "p",
        "tranStateTableOffset": half.ext["queueOffset"],
        "commitLogOffset": int(half.ext["msgId"][16:], 16),
        "commitOrRollback": 12,
        "fromTransactionCheck": "false",
    }
    end = RequestCode.END_TRANSACTION
    assert app.ask(end, **ending, topic="other").code == DENIED
    assert app.ask(end, **ending).code == ResponseCode.INVALID_PARAMETER
    other = app.ask(end, **ending, topic="out")
    assert "topic" in str(other.remark)
    assert other.code != 0
    with SignedWire(broker.address, ADMIN) as admin:
        assert admin.ask(end, **ending, topic="other").code == 0


def test_what_changes_the_cluster_needs_an_admin(app: SignedWire, broker: EmbeddedBroker) -> None:
    codes = (
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.VIEW_MESSAGE_BY_ID,
        9999,
    )
    for code in codes:
        assert "needs an admin" in str(app.ask(code, topic="both", offset=0).remark)
    with SignedWire(broker.address, ADMIN) as admin:
        assert admin.ask(9999).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert admin.put("other", b"x").code == 0


def test_job_needs_its_topics(app: SignedWire) -> None:
    assert app.open().code == 0
    assert app.stage({("out", 0): [b"x"]}).code == 0
    assert app.stage({("out", 0): [b"x"], ("other", 0): [b"x"]}, partition=1).code == DENIED
    assert app.plan(["in"]).position > 0
    assert app.receive(app.start_plan(["in", "other"])).code == DENIED
    assert app.commit(group="strangers").code == DENIED
    assert app.commit(parts=[carried_part({("other", 0): [b"x"]})]).code == DENIED
    assert app.commit(group="job").code == 0


def test_body_that_cannot_be_read_is_refused_not_passed(app: SignedWire) -> None:
    assert app.ask(RequestCode.HEART_BEAT, b"{{{").code == ResponseCode.INVALID_PARAMETER
    assert app.ask(RequestCode.STAGE, b"\xff").code == ResponseCode.INVALID_PARAMETER
    assert app.ask(RequestCode.GET_MAX_OFFSET).code == ResponseCode.INVALID_PARAMETER


def test_trusted_addresses_need_no_signature(tmp_path: Path, rules: Path) -> None:
    rules.write_text("globalWhiteRemoteAddresses: [127.0.0.*]\n")
    with (
        EmbeddedBroker(tmp_path / "data", settings=BrokerSettings(acl=rules)) as broker,
        JobWire(broker.address) as wire,
    ):
        wire.create("t")
        assert wire.put("t", b"x").code == 0


def test_rules_are_read_again_when_they_change_and_kept_when_they_are_wrong(
    rules: Path, caplog: pytest.LogCaptureFixture
) -> None:
    guard = Guard(rules)
    assert not guard.refresh()
    new = rules.with_suffix(".new")
    new.write_text(RULES.replace("app secret", "newer"))
    new.replace(rules)
    assert guard.refresh()
    assert guard.rules.accounts["app"].secret_key == "newer"
    rules.write_text("accounts: broken")
    assert not guard.refresh()
    assert guard.rules.accounts["app"].secret_key == "newer"
    rules.unlink()
    assert not guard.refresh()
    assert "stay as they were" in caplog.text
    assert "newer" not in caplog.text


def test_broker_does_not_start_with_rules_that_it_cannot_read(tmp_path: Path) -> None:
    settings = BrokerSettings(acl=tmp_path / "missing.yml")
    with pytest.raises(SettingsError, match="cannot be read"):
        EmbeddedBroker(tmp_path / "data", settings=settings).start()


def test_every_request_of_rocketmq_that_is_handled_is_in_the_table() -> None:
    # Headrace's own requests need an admin unless the table says otherwise.
    missing = [code for code in HANDLERS if code not in NEEDS and code < 28_000]
    assert not missing, "say in broker/access/guard.py what each needs (an admin, when in doubt)"
