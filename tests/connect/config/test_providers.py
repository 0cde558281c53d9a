"""Values from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.connect.config.providers import resolve
from headrace.errors import ConnectorConfigError


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    path = tmp_path / "secrets.properties"
    path.write_text("# of the shop\nuser = alice\npassword=a=b:c\nport: 5432\n")
    return path


def test_keys_of_a_file_are_read(secrets: Path) -> None:
    texts = {
        "url": f"db://${{file:{secrets}:user}}:${{file:{secrets}:port}}",
        "password": f"${{file:{secrets}:password}}",
    }
    assert resolve(texts) == {"url": "db://alice:5432", "password": "a=b:c"}


def test_whole_file_is_read_where_no_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n")
    assert resolve({"token": f"${{file:{tmp_path}/token}}"}) == {"token": "abc"}


def test_everything_that_is_missing_is_named(secrets: Path) -> None:
    texts = {
        "a": "${env:HEADRACE_NO_SUCH_VARIABLE}",
        "b": f"${{file:{secrets}:nothing}}",
        "c": "${file:/no/such/file:key}",
        "d": "fine",
    }
    with pytest.raises(ConnectorConfigError) as failure:
        resolve(texts)
    assert [name for name, _ in failure.value.problems] == ["a", "b", "c"]
    assert "no variable HEADRACE_NO_SUCH_VARIABLE" in str(failure.value)
    assert "has no key nothing" in str(failure.value)
    assert "/no/such/file: No such file" in str(failure.value)
    assert "alice" not in str(failure.value)


def test_text_that_is_no_reference_stays() -> None:
    texts = {"a": "${topic}-x", "b": "${unknown:x}", "c": "$env:X"}
    assert resolve(texts) == texts
