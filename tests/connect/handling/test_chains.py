from __future__ import annotations

from collections.abc import Mapping

import pytest

from headrace.connect.config import Config, Masking, Secret, declare, key
from headrace.connect.handling import sink_chain, source_chain
from headrace.connect.transforms import Record, Transform
from headrace.errors import ConnectorConfigError, PluginError, TransformError
from tests.connect.handling.parts import Pauses, Store, record, rows, source


class Secretive(Transform):
    """Has a secret of its own, and cannot keep it."""

    config = declare(key("word", Secret, "The secret."))

    def configure(self, config: Config) -> None:
        self.word = config["word"].reveal()

    def apply(self, record: Record) -> Record:
        raise TransformError(f"the word is {self.word}")


class Closing(Transform):
    """Shows that it is closed."""

    def apply(self, record: Record) -> Record:
        return record

    def close(self) -> None:
        raise TransformError("closed")


def made(texts: Mapping[str, str]) -> None:
    source_chain("lines", 0, texts, wait=Pauses())


@pytest.mark.defect(9)
def test_transform_that_cannot_be_loaded_is_an_error() -> None:
    with pytest.raises(PluginError, match="NoSuchTransform"):
        made({"transforms": "a", "transforms.a.type": "NoSuchTransform"})


@pytest.mark.defect(9)
def test_names_are_compared_whole() -> None:
    texts = {
        "transforms": "Replace,Replace02",
        "transforms.Replace.type": "ReplaceField$Value",
        "transforms.Replace.exclude": "a",
        "transforms.Replace02.type": "ReplaceField$Value",
        "transforms.Replace02.exclude": "b",
    }
    chain = source_chain("lines", 0, texts, wait=Pauses())
    encoded = chain.encode([record({"a": 1, "b": 2, "c": 3})])
    assert encoded.rows.column("value").to_pylist() == [b'{"c":3}']


@pytest.mark.defect(9)
def test_set_null_and_regex_router_work() -> None:
    chain = source(
        transforms="n,r", transforms_n_type="SetNull$Value", transforms_r_type="RegexRouter",
        transforms_r_regex=".*", transforms_r_replacement="x",
    )  # fmt: skip
    row = chain.encode([record("a")]).rows.to_pylist()[0]
    assert (row["topic"], row["value"]) == ("x", None)


@pytest.mark.parametrize(
    ("texts", "key"),
    [
        ({"transforms": "a"}, "transforms.a.type"),
        ({"transforms": "a", "transforms.a.type": "HoistField$Value"}, "transforms.a.field"),
        (
            {"transforms": "a", "transforms.a.type": "InsertField$Value"},
            "transforms.a",
        ),
        (
            {"transforms": "a", "transforms.a.type": "Filter", "transforms.a.predicate": "p"},
            "transforms.a.predicate",
        ),
        ({"errors.tolerance": "maybe"}, "errors.tolerance"),
    ],
)
def test_wrong_config_names_its_key(texts: Mapping[str, str], key: str) -> None:
    with pytest.raises(ConnectorConfigError) as raised:
        made(texts)
    assert [name for name, _ in raised.value.problems] == [key]


@pytest.mark.defect(15)
def test_error_settings_are_the_connectors_own() -> None:
    """A task's chain is made of the connector's config, whatever its task configs hold."""
    connector = {
        "value.converter": "JsonConverter",
        "value.converter.schemas.enable": "false",
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": "dead",
    }
    chain = sink_chain("store", 0, connector, wait=Pauses())
    task = Store()
    chain.deliver(rows(b"{bad", b"1"), task)
    assert task.kept == [1]
    letters = chain.take_letters()
    assert letters is not None
    assert letters.column("topic").to_pylist() == ["dead"]


def test_secrets_do_not_get_into_dead_letters() -> None:
    texts = {
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": "dead",
        "transforms": "f",
        "transforms.f.type": "PythonFunction",
        "transforms.f.function": "tests.connect.handling.functions:refuse_bad",
    }
    masking = Masking(["swordfish"])
    chain = sink_chain("store", 0, texts, wait=Pauses(), masking=masking)
    chain.deliver(rows(b"bad"), Store())
    letters = chain.take_letters()
    assert letters is not None
    said = dict(letters.column("properties").to_pylist()[0])
    assert said["__connect.errors.exception.message"] == "******** is no word for it"
    assert "swordfish" not in str(said["__connect.errors.exception.stacktrace"])


def test_secrets_of_transforms_are_hidden_too() -> None:
    texts = {
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": "dead",
        "transforms": "s",
        "transforms.s.type": f"{__name__}.Secretive",
        "transforms.s.word": "swordfish",
    }
    chain = sink_chain("store", 0, texts, wait=Pauses())
    chain.deliver(rows(b"any"), Store())
    letters = chain.take_letters()
    assert letters is not None
    assert "swordfish" not in str(letters.to_pylist())


def test_closing_reaches_every_transform() -> None:
    chain = source(
        transforms="a", transforms_a_type=f"{__name__}.Closing",
        predicates="p", predicates_p_type="RecordIsTombstone",
    )  # fmt: skip
    with pytest.raises(TransformError, match="closed"):
        chain.close()
