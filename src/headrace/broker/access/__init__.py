"""Access control: who may send which requests, by access key and signature."""

from __future__ import annotations

from headrace.broker.access.accounts import AccessRules, Account, Permission, load_rules, read_rules
from headrace.broker.access.guard import NEEDS, Guard, Need, needs_of

__all__ = [
    "NEEDS",
    "AccessRules",
    "Account",
    "Guard",
    "Need",
    "Permission",
    "load_rules",
    "needs_of",
    "read_rules",
]
