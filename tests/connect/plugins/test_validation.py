"""Validation of whole configs, in Kafka Connect's shape."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from headrace.connect import declare, key
from headrace.connect.config.chain import common_keys
from headrace.connect.plugins.catalog import Catalog, Plugin
from headrace.connect.plugins.validation import describe, read_config, validate
from headrace.errors import ConnectorConfigError, PluginError
from tests.connect.plugins.samples import NowhereSinkConnector, NumbersSourceConnector

NUMBERS = "tests.connect.plugins.samples:NumbersSourceConnector"
SOURCE = {"name": "n", "connector.class": "numbers-source", "topic": "numbers"}
SINK = {"name": "s", "connector.class": "nowhere-sink", "topics": "numbers"}


def errors(answer: dict[str, Any]) -> dict[str, list[str]]:
    values = [one["value"] for one in answer["configs"]]
    return {value["name"]: value["errors"] for value in values if value["errors"]}


def item(answer: dict[str, Any], name: str) -> dict[str, Any]:
    items: dict[str, dict[str, Any]] = {one["value"]["name"]: one for one in answer["configs"]}
    return items[name]


@pytest.mark.parametrize("texts", [SOURCE, SINK])
def test_right_config_has_no_errors(catalog: Catalog, texts: dict[str, str]) -> None:
    answer = validate(catalog, texts["connector.class"], texts)
    assert (answer["error_count"], errors(answer), answer["warnings"]) == (0, {}, [])


def test_two_names_of_a_key_that_disagree_are_both_named(catalog: Catalog) -> None:
    answer = validate(catalog, "numbers-source", SOURCE | {"tasks.max": "1", "max.tasks": "2"})
    assert answer["error_count"] == 1
    (problem,) = errors(answer)["tasks.max"]
    assert "The keys tasks.max and max.tasks mean the same and disagree" in problem


def test_answer_has_kafka_connects_shape(catalog: Catalog) -> None:
    answer = validate(catalog, "numbers-source", SOURCE | {"first": "3"})
    assert answer["name"] == "tests.connect.plugins.samples.NumbersSourceConnector"
    assert answer["groups"][:2] == ["Common", "Transforms"]
    assert "Range" in answer["groups"]
    assert item(answer, "first") == {
        "definition": {
            "name": "first",
            "type": "INT",
            "required": False,
            "default_value": "1",
            "importance": "MEDIUM",
            "documentation": "The first number.",
            "group": "Range",
            "order": 1,
            "width": "MEDIUM",
            "display_name": "First",
            "dependents": [],
        },
        "value": {
            "name": "first",
            "value": "3",
            "recommended_values": [],
            "errors": [],
            "visible": True,
        },
    }
    assert item(answer, "mode")["value"]["recommended_values"] == ["up", "down"]
    assert item(answer, "value.converter")["value"]["recommended_values"] == [
        "tests.connect.plugins.samples.Words"
    ]


def test_everything_that_is_wrong_is_counted_by_key(catalog: Catalog) -> None:
    texts = {"connector.class": "numbers-source", "first": "x", "tasks.max": "0", "mode": "left"}
    answer = validate(catalog, "numbers-source", texts)
    assert answer["error_count"] == 5
    assert set(errors(answer)) == {"name", "topic", "first", "tasks.max", "mode"}


def test_connector_checks_keys_together_once_each_is_right(catalog: Catalog) -> None:
    answer = validate(catalog, "numbers-source", SOURCE | {"first": "5", "last": "3"})
    assert errors(answer) == {"first": ["The key first is beyond last."]}


def test_misspelt_key_is_an_error_and_a_foreign_one_a_warning(catalog: Catalog) -> None:
    answer = validate(catalog, "numbers-source", SOURCE | {"frist": "5", "x.flag": "true"})
    assert errors(answer) == {"frist": ["There is no key frist: did you mean 'first'?"]}
    assert answer["warnings"] == ["Nobody knows the key x.flag."]


def test_config_of_another_connector_is_refused(catalog: Catalog) -> None:
    with pytest.raises(ConnectorConfigError, match="does not match the plugin 'nowhere-sink'"):
        validate(catalog, "nowhere-sink", SOURCE)
    assert validate(catalog, "NumbersSource", SOURCE)["error_count"] == 0


@pytest.mark.requirement(46)
def test_connector_that_cannot_be_loaded_fails_alone(catalog: Catalog) -> None:
    with pytest.raises(PluginError, match="the licence has run out"):
        validate(catalog, "shop_raises.Sink", SINK | {"connector.class": ""})


@pytest.mark.defect(9)
def test_transforms_are_checked_with_their_own_keys(catalog: Catalog) -> None:
    chain = {
        "transforms": "Shout, Shout02",
        "transforms.Shout.type": "Shout",
        "transforms.Shout.times": "7",
        "transforms.Shout.predicate": "loud",
        "transforms.Shout02.class": "ShoutMore",
        "predicates": "loud",
        "predicates.loud.type": "IsLoud",
        "predicates.loud.volume": "11",
    }
    answer = validate(catalog, "numbers-source", SOURCE | chain)
    assert set(errors(answer)) == {"transforms.Shout.times", "transforms.Shout02.more"}
    assert item(answer, "transforms.Shout.times")["definition"]["group"] == "transforms.Shout"
    assert item(answer, "predicates.loud.volume")["value"]["value"] == "11"


@pytest.mark.defect(9)
def test_transform_that_cannot_be_loaded_is_an_error(catalog: Catalog) -> None:
    chain = {"transforms": "a,b", "transforms.a.type": "Nothing", "transforms.b.type": "IsLoud"}
    answer = validate(catalog, "numbers-source", SOURCE | chain)
    assert set(errors(answer)) == {"transforms.a.type", "transforms.b.type"}
    assert "no plugin 'Nothing' among the transforms" in errors(answer)["transforms.a.type"][0]


@pytest.mark.parametrize(
    ("kind", "own", "why"),
    [
        ("InsertField$Value", {}, "no field to insert"),
        ("ReplaceField$Value", {"renames": "a"}, "write old:new"),
        ("RegexRouter", {"regex": "(", "replacement": ""}, "no regular expression"),
        ("PythonFunction", {"function": "no.such:thing"}, "cannot be loaded"),
    ],
)
def test_transform_may_refuse_what_each_key_allows(
    kind: str, own: dict[str, str], why: str
) -> None:
    texts = SOURCE | {"transforms": "a", "transforms.a.type": kind}
    texts |= {f"transforms.a.{name}": text for name, text in own.items()}
    numbers = Plugin(NUMBERS, "connectors", aliases=("numbers-source",))
    catalog = Catalog([*Catalog.installed().plugins, numbers])
    found = errors(validate(catalog, "numbers-source", texts))
    assert why in found["transforms.a.type"][0]


def test_converters_are_checked_with_their_own_keys(catalog: Catalog) -> None:
    keys = {"value.converter": "Words", "value.converter.encodign": "utf-8", "key.converter": "No"}
    answer = validate(catalog, "numbers-source", SOURCE | keys)
    assert set(errors(answer)) == {"value.converter.encodign", "key.converter"}


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"topics": ""}, "topics"),
        ({"topics.regex": "n.*"}, "topics"),
        ({"topics": "", "topics.regex": "("}, "topics.regex"),
        ({"errors.deadletterqueue.topic.name": "numbers"}, "errors.deadletterqueue.topic.name"),
        ({"offsets.storage.topic": "o"}, "offsets.storage.topic"),
        ({"max.tasks": "2", "tasks.max": "3"}, "tasks.max"),
        ({"connect.topicnames": "other"}, "topics"),
        ({"errors.tolerance": "some"}, "errors.tolerance"),
        ({"errors.retry.timeout": "-2"}, "errors.retry.timeout"),
    ],
)
def test_common_keys_that_cannot_work_are_named(
    catalog: Catalog, keys: dict[str, str], name: str
) -> None:
    answer = validate(catalog, "nowhere-sink", SINK | keys)
    assert set(errors(answer)) == {name}


@pytest.mark.defect(8)
def test_retry_timeout_may_be_endless() -> None:
    config = read_config(NowhereSinkConnector, SINK | {"errors.retry.timeout": "-1"})
    assert config["errors.retry.timeout"].total_seconds() == -0.001


def test_values_from_outside_are_checked_and_never_shown(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBERS_FIRST", "77")
    monkeypatch.setenv("NUMBERS_PASSWORD", "swordfish")
    keys = {"password": "${env:NUMBERS_PASSWORD}", "first": "${env:NUMBERS_FIRST}"}
    answer = validate(catalog, "numbers-source", SOURCE | keys)
    assert item(answer, "password")["value"]["value"] == "${env:NUMBERS_PASSWORD}"
    assert item(answer, "first")["value"]["value"] == "${env:NUMBERS_FIRST}"
    assert "swordfish" not in str(answer)
    assert errors(answer)["first"][0].startswith("The key first is '${env:NUMBERS_FIRST}': it must")
    assert "77" not in str(answer)
    with pytest.raises(ConnectorConfigError, match="NUMBERS_FIRST") as failure:
        read_config(NumbersSourceConnector, SOURCE | keys)
    assert "77" not in str(failure.value)
    config = read_config(NumbersSourceConnector, SOURCE | keys | {"first": "1"})
    assert config["password"].reveal() == "swordfish"


NAMES = st.sampled_from(
    [
        *(key.name for key in common_keys("source")),
        *(key.name for key in NumbersSourceConnector.config),
        "transforms.a.type",
        "transforms.a.times",
        "transforms.a.predicate",
        "predicates.a.type",
        "value.converter.encoding",
        "max.tasks",
    ]
)
TEXTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["a", "a,b", "Shout", "IsLoud", "Words", "1", "true", "${env:X}", "${file::}"]),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(NAMES, TEXTS))
def test_any_config_is_answered(catalog: Catalog, texts: dict[str, str]) -> None:
    answer = validate(catalog, "numbers-source", texts | {"connector.class": "numbers-source"})
    assert answer["error_count"] == len(errors(answer))
    for one in answer["configs"]:
        assert one["definition"]["name"] == one["value"]["name"]
        assert all(isinstance(text, str) for text in one["value"]["errors"])


def test_secret_that_was_given_is_not_answered(catalog: Catalog) -> None:
    answer = validate(catalog, "numbers-source", SOURCE | {"password": "swordfish"})
    assert "swordfish" not in str(answer)


def test_recommended_values_and_visibility_follow_the_other_values() -> None:
    class Table(NumbersSourceConnector):
        config = NumbersSourceConnector.config | declare(
            key(
                "table",
                str,
                "The table.",
                recommend=lambda values: [values["topic"] + "_rows"],
                dependents=("column",),
            ),
            key("column", str, "Its column.", visible=lambda values: values["table"] is not None),
        )

    catalog = Catalog([Plugin("shop:Table", "connectors", loaded=Table)])
    texts = SOURCE | {"connector.class": "Table"}
    bare = validate(catalog, "Table", texts)
    assert item(bare, "table")["value"]["recommended_values"] == ["numbers_rows"]
    assert item(bare, "table")["definition"]["dependents"] == ["column"]
    assert item(bare, "column")["value"]["visible"] is False
    wrong = validate(catalog, "Table", {"connector.class": "Table", "name": "n"})
    assert set(errors(wrong)) == {"topic"}
    chosen = validate(catalog, "Table", texts | {"table": "t"})
    assert item(chosen, "column")["value"]["visible"] is True


def test_keys_of_every_kind_of_plugin_are_described(catalog: Catalog) -> None:
    names = [one["name"] for one in describe(catalog, "numbers-source")]
    assert names[:2] == ["name", "connector.class"]
    assert "first" in names
    assert "topics" not in names
    assert [one["name"] for one in describe(catalog, "ShoutMore")] == ["more"]
    with pytest.raises(PluginError, match="no plugin 'Nobody'"):
        describe(catalog, "Nobody")


@pytest.mark.parametrize(
    ("declared", "wanted", "refused"),
    [
        (True, "required", False),
        (None, "required", True),
        (False, "REQUIRED", True),
        (False, "requested", False),
    ],
)
def test_exactly_once_is_promised_only_where_the_class_declares_it(
    catalog: Catalog,
    monkeypatch: pytest.MonkeyPatch,
    declared: bool | None,
    wanted: str,
    refused: bool,
) -> None:
    monkeypatch.setattr(NumbersSourceConnector, "exactly_once", declared)
    answer = validate(catalog, "numbers-source", SOURCE | {"exactly.once.support": wanted})
    assert list(errors(answer)) == ["exactly.once.support"] * refused
