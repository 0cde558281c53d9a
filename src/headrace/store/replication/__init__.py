"""Replication: a second store that follows a first, byte by byte.

The rules are state machines without I/O (:mod:`~headrace.store.replication.following` and
:mod:`~headrace.store.replication.copyist`); the broker carries the bytes.
"""

# Nothing is imported here: the store itself needs single modules of this package.
__all__: list[str] = []
