"""Keys behind the prefixes of transforms and predicates."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from headrace.connect.config.chain import links


@pytest.mark.defect(9)
def test_keys_belong_to_the_whole_name_only() -> None:
    found, problems = links(
        {
            "transforms": "Replace,Replace02,Replace.more",
            "transforms.Replace.type": "A",
            "transforms.Replace.x": "1",
            "transforms.Replace02.type": "B",
            "transforms.Replace02.x": "2",
            "transforms.Replace.more.type": "C",
            "transforms.Replace.more.x": "3",
        }
    )
    assert problems == []
    assert [(one.plugin, one.texts) for one in found] == [
        ("A", {"x": "1"}),
        ("B", {"x": "2"}),
        ("C", {"x": "3"}),
    ]


@given(st.lists(st.text("ab.0", min_size=1).filter(lambda name: name.strip(".")), unique=True))
def test_every_transform_gets_its_own_type(aliases: list[str]) -> None:
    texts = {f"transforms.{alias}.type": f"plugin of {alias}" for alias in aliases}
    found, _ = links(texts | {"transforms": ",".join(aliases)})
    assert [one.plugin for one in found] == [f"plugin of {alias}" for alias in aliases]


@pytest.mark.parametrize(
    ("texts", "key"),
    [
        ({"transforms": "a"}, "transforms.a.type"),
        ({"transforms": "a,a", "transforms.a.type": "X"}, "transforms"),
        (
            {"transforms": "a", "transforms.a.type": "X", "transforms.a.class": "Y"},
            "transforms.a.type",
        ),
        (
            {"transforms": "a", "transforms.a.type": "X", "transforms.a.negate": "no"},
            "transforms.a.negate",
        ),
        (
            {"transforms": "a", "transforms.a.type": "X", "transforms.a.predicate": "p"},
            "transforms.a.predicate",
        ),
    ],
)
def test_what_cannot_work_is_named_by_its_key(texts: dict[str, str], key: str) -> None:
    _, problems = links(texts)
    assert [one.key for one in problems] == [key]


def test_both_names_of_a_type_may_stand_when_they_agree() -> None:
    texts = {"transforms": "a", "transforms.a.type": "X", "transforms.a.class": "X"}
    (found,), problems = links(texts)
    assert (found.plugin, found.texts, problems) == ("X", {}, [])
