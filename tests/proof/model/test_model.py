"""The commit protocol, every state of it in a small scope: nothing is wrong, every mutant is.

Larger scopes run with ``make soak``.  ``python -m tests.proof.model`` prints all traces.
"""

from __future__ import annotations

import pytest
from _pytest.mark import ParameterSet

from tests.proof.model.scopes import (
    EMBEDDED,
    EMBEDDED_MUTANTS,
    LARGER_EMBEDDED,
    LARGER_ROCKETMQ,
    ROCKETMQ,
    ROCKETMQ_MUTANTS,
    explored,
)

Scope = dict[str, int]

#: They take longer than all others together.
_LARGEST = (EMBEDDED[-1], ROCKETMQ[0])


def _scopes(of: list[Scope]) -> list[ParameterSet | Scope]:
    slow = pytest.mark.slow
    return [pytest.param(one, marks=slow) if one in _LARGEST else one for one in of]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scope", _scopes(EMBEDDED), ids=str)
def test_nothing_is_wrong_on_the_embedded_broker(scope: Scope) -> None:
    outcome = explored("embedded", "", scope)
    assert outcome.wrong is None, outcome.story()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scope", _scopes(ROCKETMQ), ids=str)
def test_nothing_is_wrong_on_rocketmq(scope: Scope) -> None:
    outcome = explored("rocketmq", "", scope)
    assert outcome.wrong is None, outcome.story()


@pytest.mark.parametrize("mutation", EMBEDDED_MUTANTS)
def test_each_mutant_of_the_embedded_protocol_is_found(mutation: str) -> None:
    outcome = explored("embedded", mutation, EMBEDDED_MUTANTS[mutation][0])
    assert EMBEDDED_MUTANTS[mutation][1] in (outcome.wrong or ""), outcome.story()
    print(outcome.story())


@pytest.mark.parametrize("mutation", ROCKETMQ_MUTANTS)
def test_each_mutant_of_the_rocketmq_protocol_is_found(mutation: str) -> None:
    outcome = explored("rocketmq", mutation, ROCKETMQ_MUTANTS[mutation][0])
    assert ROCKETMQ_MUTANTS[mutation][1] in (outcome.wrong or ""), outcome.story()
    print(outcome.story())


@pytest.mark.soak
@pytest.mark.parametrize("scope", LARGER_EMBEDDED, ids=str)
def test_nothing_is_wrong_in_larger_scopes_on_the_embedded_broker(scope: Scope) -> None:
    outcome = explored("embedded", "", scope)
    assert outcome.wrong is None, outcome.story()


@pytest.mark.soak
@pytest.mark.parametrize("scope", LARGER_ROCKETMQ, ids=str)
def test_nothing_is_wrong_in_larger_scopes_on_rocketmq(scope: Scope) -> None:
    outcome = explored("rocketmq", "", scope)
    assert outcome.wrong is None, outcome.story()
