"""Access control: who may send which requests, by access key and signature."""

from headrace.broker.access.accounts import Permission, load_rules, read_rules
from headrace.broker.access.guard import NEEDS, Door, Guard

__all__ = ["NEEDS", "Door", "Guard", "Permission", "load_rules", "read_rules"]
