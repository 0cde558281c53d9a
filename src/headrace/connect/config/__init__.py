"""Declared config: one place gives typed values, validation, and docs."""

from __future__ import annotations

from headrace.connect.config.declaration import (
    Config,
    ConfigDeclaration,
    ConfigKey,
    ConfigProblem,
    declare,
    key,
)
from headrace.connect.config.kinds import (
    MASK,
    Check,
    Masking,
    PluginName,
    Secret,
    Size,
    ValueKind,
    all_of,
    at_least,
    at_most,
    between,
    each,
    matching,
    not_empty,
    one_of,
)

__all__ = [
    "MASK",
    "Check",
    "Config",
    "ConfigDeclaration",
    "ConfigKey",
    "ConfigProblem",
    "Masking",
    "PluginName",
    "Secret",
    "Size",
    "ValueKind",
    "all_of",
    "at_least",
    "at_most",
    "between",
    "declare",
    "each",
    "key",
    "matching",
    "not_empty",
    "one_of",
]
