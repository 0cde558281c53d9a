"""What is explored: scopes, mutants, and what each mutant breaks."""

from __future__ import annotations

from typing import Any, Literal

from tests.proof.model.embedded import EmbeddedModel
from tests.proof.model.explorer import Explorer, Outcome
from tests.proof.model.rocketmq import RocketMQModel

Scope = dict[str, int]

#: Memory is the limit: a state takes about a kilobyte.
_MOST = 4_000_000

EMBEDDED: list[Scope] = [
    {"records": 3, "faults": 1, "takeovers": 1, "failures": 0, "workers": 1},
    {"records": 2, "faults": 1, "takeovers": 1, "failures": 1, "workers": 2},
]
LARGER_EMBEDDED: list[Scope] = [
    {"records": 3, "faults": 1, "takeovers": 1, "failures": 1, "workers": 1},
    {"records": 3, "faults": 2, "takeovers": 1, "failures": 1, "workers": 1},
    {"records": 3, "faults": 1, "takeovers": 1, "failures": 1, "workers": 2},
    {"records": 3, "faults": 1, "takeovers": 2, "failures": 1, "workers": 1},
]
ROCKETMQ: list[Scope] = [
    {"faults": 1, "takeovers": 1, "failures": 0, "delays": 1, "compactions": 1},
    {"records": 1, "faults": 2, "takeovers": 1, "failures": 0, "delays": 0, "compactions": 0},
    {"faults": 1, "takeovers": 0, "failures": 1, "delays": 1, "compactions": 1},
    {"records": 1, "faults": 2, "takeovers": 1, "failures": 0, "delays": 0, "compactions": 1},
]
LARGER_ROCKETMQ: list[Scope] = [
    {"records": 1, "faults": 3, "takeovers": 0, "failures": 0, "delays": 0, "compactions": 1},
    {"faults": 2, "takeovers": 0, "failures": 0, "delays": 1, "compactions": 1},
    {"faults": 2, "takeovers": 1, "failures": 0, "delays": 0, "compactions": 1},
    {"faults": 2, "takeovers": 1, "failures": 0, "delays": 1, "compactions": 1},
    {"faults": 1, "takeovers": 2, "failures": 0, "delays": 1, "compactions": 0},
    {"faults": 1, "takeovers": 1, "failures": 1, "delays": 1, "compactions": 1},
    {"faults": 1, "takeovers": 1, "failures": 0, "delays": 1, "compactions": 1, "records": 3},
]

_TWO: Scope = {"faults": 1, "takeovers": 1, "failures": 0}
_RETRY: Scope = {"faults": 0, "takeovers": 0, "failures": 1, "workers": 2}
_CALM: Scope = {"faults": 0, "takeovers": 0, "failures": 0}

#: Mutant, the scope in which it is found, and words of what it breaks.
EMBEDDED_MUTANTS: dict[str, tuple[Scope, str]] = {
    "no fence": (_TWO, "though epoch 2 is open"),
    "no predecessor check": (_CALM, "doubled"),
    "no fence and no predecessor check": (_TWO, "doubled"),
    "pending state applied too early": (_RETRY, "the committed state holds"),
    "copy of a lost attempt taken for the committed one": (_RETRY, "the committed state holds"),
    "every staged attempt counts": (_RETRY, "doubled"),
    "unit without marks": (_TWO, "the committed state holds"),
    "commit answered before it is on disk": (_TWO, "went back"),
    "a repeated commit counts again": (_CALM, "doubled"),
}

_FAULT: Scope = {"faults": 1, "takeovers": 0, "delays": 0}
_FAULTS: Scope = {"records": 1, "faults": 2, "takeovers": 1, "delays": 0}
_DELAY: Scope = {"faults": 0, "takeovers": 0, "delays": 1}
_COMPACT: Scope = {"faults": 1, "takeovers": 0, "delays": 1, "compactions": 1}
_ATTEMPT: Scope = {"faults": 0, "takeovers": 0, "delays": 0, "failures": 1}

ROCKETMQ_MUTANTS: dict[str, tuple[Scope, str]] = {
    "void commit of an older epoch taken for valid": (_FAULT, "by the log the last commit is"),
    "a late repetition of an older batch counts again": (_DELAY, "by the log the last commit is"),
    "published before the commit record was read back": (_FAULT, "not committed"),
    "every staged attempt is published": (_ATTEMPT, "not committed"),
    "last batch of the driver before is not published": (_FAULT, "the state of batch 2"),
    "next batch planned before the last one is published": (_FAULT, "the state of batch 2"),
    "order of publishing not kept": (_FAULT, "the committed reader got"),
    "no tags in the committed reader": (_DELAY, "the committed reader got"),
    "tail of the target queue not read at the start": (_FAULT, "there twice"),
    "tail of the target queue not read after a doubtful send": (_DELAY, "there twice"),
    "successor does not wait for the lease": (_FAULTS, "there twice"),
    "lease not asked before a send": (_FAULTS, "there twice"),
    "closed before the last batch is published": (_FAULTS, "there twice"),
    "epoch read again after the decision not to wait": (_FAULTS, "there twice"),
    "compaction lets a void record replace a valid one": (
        _COMPACT | {"takeovers": 1},
        "by the log the last commit is",
    ),
    "a repeated record has the key of the first": (_COMPACT, "by the log the last commit is"),
    "what the newest open stands on is deleted": (
        _FAULT | {"takeovers": 1, "compactions": 1},
        "by the log the last commit is",
    ),
    "what is left of the log is judged from its first record on": (
        _FAULT | {"faults": 2, "compactions": 1},
        "by the log the last commit is",
    ),
}


def explored(kind: Literal["embedded", "rocketmq"], mutation: Any, scope: Scope) -> Outcome:
    """Explore a model, or a mutant of it, in a scope."""
    if kind == "embedded":
        return Explorer(EmbeddedModel(mutation, **scope), _MOST).explore()
    return Explorer(RocketMQModel(mutation, **scope), _MOST).explore()
