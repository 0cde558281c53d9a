"""What the name server keeps beside topics of its own: other brokers, and keys with values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.naming.registry import BrokerRegistry
from headrace.broker.snapshots import load_snapshot, save_snapshot

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ORDER_NAMESPACE", "NameServer"]

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
"""Namespace of keys that say which queues of an ordered topic exist, by topic."""


class NameServer:
    """The name server's own tables.

    Parameters
    ----------
    folder
        Where keys are kept.
    expiry
        Seconds of silence after which a broker is gone.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> names = NameServer(Path(tempfile.mkdtemp()), 120)
    >>> names.put("ORDER_TOPIC_CONFIG", "t", "broker-a:4")
    >>> names.order("t"), names.get("ORDER_TOPIC_CONFIG", "u")
    ('broker-a:4', None)
    """

    def __init__(self, folder: Path, expiry: float) -> None:
        self.registry = BrokerRegistry(expiry)
        #: Whether routes say that this broker itself takes messages.
        self.is_writable = True
        #: Settings that tools have sent; they are kept and told, and change nothing.
        self.properties: dict[str, str] = {}
        self._file = folder / "names.json"
        self._values = load_snapshot(self._file, dict[str, dict[str, str]]) or {}

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, None when there is none."""
        return self._values.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str]:
        """Return all values of a namespace, by key."""
        return dict(self._values.get(namespace, {}))

    def order(self, topic: str) -> str | None:
        """Tell which queues of an ordered topic exist, ``broker:count;...``; None: all there are."""
        return self.get(ORDER_NAMESPACE, topic)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value, durably."""
        self._values.setdefault(namespace, {})[key] = value
        save_snapshot(self._file, self._values)

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value, durably; one that is not there is removed already."""
        if self._values.get(namespace, {}).pop(key, None) is not None:
            save_snapshot(self._file, self._values)
