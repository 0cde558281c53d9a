"""Hiding secrets in texts."""

from __future__ import annotations

import json
from urllib.parse import quote_plus

import pytest

from headrace.connect.config import MASK, Masking, Secret

PASSWORD = "sword'f\u00efsh \"&\\ x"


@pytest.mark.parametrize(
    "written",
    [
        PASSWORD,
        repr(PASSWORD),
        repr(PASSWORD.encode()),
        json.dumps(PASSWORD),
        f"db://me:{quote_plus(PASSWORD)}@host/",
    ],
)
def test_secret_is_hidden_however_a_program_quotes_it(written: str) -> None:
    shown = Masking([PASSWORD])(f"it said {written}, and no more")
    assert MASK in shown
    assert "sword" not in shown


def test_lines_of_a_long_secret_are_hidden_one_by_one() -> None:
    masking = Masking(["-----BEGIN KEY-----\nMIIEvQIBADANBg\n-----END KEY-----\n"])
    assert masking("bad key: MIIEvQIBADANBg") == f"bad key: {MASK}"


def test_secrets_learnt_later_are_hidden_too_and_short_words_are_not() -> None:
    masking = Masking.of({"password": Secret("swordfish"), "table": "fish"})
    masking.learn(["cod", "trout"])
    assert masking("swordfish fish cod trout") == f"{MASK} fish cod {MASK}"
