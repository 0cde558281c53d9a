"""Beside the cases of Kafka Connect: more of Java's regular expressions."""

from __future__ import annotations

import re

import pytest

from headrace.connect.predicates.patterns import expanded, java_pattern

WHOLE = [
    (r"[\p{L}&&[^a]]+", "böc", True),
    (r"[\p{L}&&[^a]]+", "bac", False),
    (r"[a-z&&def]+", "fed", True),
    (r"[a-z&&def]+", "fad", False),
    (r"[^\p{Lu}]", "ä", True),
    (r"[^\p{Lu}]", "Ä", False),
    (r"[^[a-c][x-z]]", "m", True),
    (r"[^[a-c][x-z]]", "y", False),
    (r"\P{Alpha}", "7", True),
    (r"\p{L}\pL", "öß", True),
    (r"[]a]", "]", True),
    (r"[a\]]", "]", True),
    (r"\Qa+b", "a+b", True),
    (r"(?<x>a)\k<x>", "aa", True),
    (r"\d{2}", "42", True),
    (r"\d{2,}", "421", True),
    (r"\d", "٤", False),
    (r"(?i)É", "é", False),
    (r"(?is)A.b", "a\nB", True),
    (r"[&~|]+", "&~|", True),
    (r"\R", "\r\n", True),
    (r"(?<!x)a(?<=a)", "a", True),
    (r"(?>ab|a)b", "ab", False),
]


@pytest.mark.parametrize(("pattern", "text", "matches"), WHOLE)
def test_pattern_means_what_it_means_in_java(pattern: str, text: str, matches: bool) -> None:
    assert (java_pattern(pattern).fullmatch(text) is not None) is matches


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "unterminated"),
        ("[a", "not closed"),
        ("a{", "not complete at character 2"),
        ("{2}", "nothing to repeat"),
        (r"\p{Elvish}", r"write a category of Unicode such as L or Lu, or one of Lower"),
        (r"\p", "not complete"),
        ("a(?i)b", "not at the start"),
        ("*", "nothing to repeat"),
        (r"\0101", r"write \\x41"),
        (r"a\x{1F600}", r"write \\u0041"),
        (r"[\Q]-[\E]+", "write a backslash before each sign"),
        (r"[\h]", r"write \\t and a space"),
    ],
)
def test_pattern_that_cannot_be_said_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"no regular expression of Java's: .*{why}"):
        java_pattern(pattern)


@pytest.mark.parametrize(
    ("replacement", "text"),
    [("$1$2", "ab"), ("$12", "a2"), ("${n}!", "b!"), (r"\$1", "$1"), ("$0-", "ab-"), ("$3", "")],
)
def test_replacement_is_expanded(replacement: str, text: str) -> None:
    found = re.fullmatch("(a)(?P<n>b)(c)?", "ab")
    assert found is not None
    assert expanded(replacement, found) == text


@pytest.mark.parametrize("replacement", ["$", "$x", "${m}", "$4", "a\\"])
def test_replacement_without_meaning_is_refused(replacement: str) -> None:
    found = re.fullmatch("(a)(?P<n>b)(c)?", "ab")
    assert found is not None
    with pytest.raises(ValueError, match="replacement"):
        expanded(replacement, found)
