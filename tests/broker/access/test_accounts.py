from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.broker.access import Permission, load_rules, read_rules
from headrace.broker.access.accounts import address_pattern
from headrace.errors import SettingsError

PLAIN_ACL = """
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*

accounts:
  - accessKey: RocketMQ
    secretKey: 00123456
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
      - job-*=PUB
      - job-secret-*=DENY
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY
      - groupB=PUB|SUB

  - accessKey: rocketmq2
    secretKey: 12345678
    whiteRemoteAddress: 192.168.1.*
    # if it is admin, it could access all resources
    admin: true
"""


def test_plain_acl_of_rocketmq_is_read() -> None:
    rules = read_rules(PLAIN_ACL)
    assert (rules.trusts("10.10.103.9"), rules.trusts("10.10.104.9")) == (True, False)
    app, admin = rules.accounts["RocketMQ"], rules.accounts["rocketmq2"]
    assert app.secret_key == "00123456", "digits stay text"
    both = Permission.PUB | Permission.SUB
    topics = {"topicA": 0, "topicB": both, "topicC": Permission.SUB, "other": 0}
    assert {name: app.of_topic(name) for name in topics} == topics
    groups = {"groupA": 0, "groupB": both, "other": Permission.SUB}
    assert {name: app.of_group(name) for name in groups} == groups
    assert (app.is_admin, admin.is_admin) == (False, True)
    assert admin.is_trusted_at("192.168.1.4")
    assert not app.is_trusted_at("192.168.1.4")


def test_longest_pattern_of_a_name_counts() -> None:
    app = read_rules(PLAIN_ACL).accounts["RocketMQ"]
    assert app.of_topic("job-commitTopic") == Permission.PUB
    assert app.of_topic("job-secret-x") == Permission.DENY


def test_json_and_toml_say_the_same(tmp_path: Path) -> None:
    account = {"accessKey": "a", "secretKey": "s", "admin": True, "topicPerms": ["t=PUB"]}
    in_json, in_toml = tmp_path / "acl.json", tmp_path / "acl.toml"
    in_json.write_text(json.dumps({"accounts": [account]}))
    in_toml.write_text(
        '[[accounts]]\naccessKey = "a"\nsecretKey = "s"\nadmin = true\ntopicPerms = ["t=PUB"]\n'
    )
    for file in (in_json, in_toml):
        found = load_rules(file).accounts["a"]
        assert (found.is_admin, found.of_topic("t")) == (True, Permission.PUB)


def test_secrets_are_not_printed() -> None:
    assert "00123456" not in repr(read_rules(PLAIN_ACL))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("accounts:\n- accessKey: a", "lacks its secretKey"),
        ("accounts:\n- secretKey: hush", "lacks its accessKey"),
        ("accounts:\n- {accessKey: a, secretKey: hush, topicPerms: [t=ALL]}", "'ALL'"),
        ("accounts:\n- {accessKey: a, secretKey: hush, topicPerms: [t]}", "NAME=WHAT"),
        ("accounts:\n- {accessKey: a, secretKey: hush, topicPerm: [t=PUB]}", "'topicPerm'"),
        ("accounts:\n- {accessKey: a, secretKey: hush, defaultTopicPerm: x}", "'x'"),
        ("accounts: 3", "a list is missing"),
        ("just text", "no table"),
        ("accounts:\n  - {hush: [", "cannot be parsed at line"),
        ("globalWhiteRemoteAddresses: [nowhere]", "no pattern of addresses"),
        ("accounts:\n" + "- {accessKey: a, secretKey: hush}\n" * 2, "there twice"),
    ],
)
def test_rules_that_cannot_be_are_refused_without_quoting_secrets(
    tmp_path: Path, text: str, says: str
) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(text)
    with pytest.raises(SettingsError) as refused:
        load_rules(file)
    assert says in str(refused.value)
    assert str(file) in str(refused.value)
    assert "hush" not in str(refused.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        load_rules(tmp_path / "plain_acl.yml")


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("*", ["1.2.3.4", "::1"], []),
        ("", [], ["1.2.3.4"]),
        ("10.0.0.7", ["10.0.0.7"], ["10.0.0.70", "::1"]),
        ("10.0.0.*", ["10.0.0.0", "10.0.0.255"], ["10.0.1.0"]),
        ("10.0.*.*", ["10.0.9.1"], ["10.1.0.0"]),
        ("10.0.0.5-7", ["10.0.0.5", "10.0.0.7"], ["10.0.0.8"]),
        ("10.0.0.{1,3}", ["10.0.0.1", "10.0.0.3"], ["10.0.0.2"]),
        ("10.0.0.1, 10.0.0.2", ["10.0.0.2"], ["10.0.0.3"]),
        ("10.0.0.0/8", ["10.200.0.1"], ["11.0.0.1"]),
        ("fe80::/16", ["fe80::1"], ["10.0.0.1", "fe81::1"]),
    ],
)
def test_addresses_match_as_in_rocketmq(
    pattern: str, inside: list[str], outside: list[str]
) -> None:
    matches = address_pattern(pattern)
    assert [address for address in inside if not matches(address)] == []
    assert [address for address in outside if matches(address)] == []
