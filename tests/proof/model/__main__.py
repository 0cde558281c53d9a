"""Print what every mutant of the commit protocol breaks, step by step."""

from __future__ import annotations

from tests.proof.model.scopes import EMBEDDED_MUTANTS, ROCKETMQ_MUTANTS, explored

for mutation, (scope, _) in EMBEDDED_MUTANTS.items():
    print(f"\nembedded: {mutation}\n{explored('embedded', mutation, scope).story()}")
for mutation, (scope, _) in ROCKETMQ_MUTANTS.items():
    print(f"\nRocketMQ: {mutation}\n{explored('rocketmq', mutation, scope).story()}")
