"""Messages by key: where in the log records lie whose keys hold a word."""

from headrace.store.keys.finding import KeyIndex, KeyQuery

__all__ = ["KeyIndex", "KeyQuery"]
