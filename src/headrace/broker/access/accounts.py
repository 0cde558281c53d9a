"""Accounts and what each may do, read from a file such as RocketMQ's ``plain_acl.yml``."""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from pathlib import Path
from typing import cast

import msgspec

from headrace.errors import SettingsError

# Patterns of client addresses, as RocketMQ's white lists write them.

AddressPattern = Callable[[str], bool]
"""Returns whether an address is meant."""

_PART = re.compile(r"\*|\d{1,3}(-\d{1,3})?|\{\d{1,3}(,\d{1,3})*\}")


def address_pattern(text: str) -> AddressPattern:
    """Read a pattern.

    ``*`` is every address and an empty pattern none.  ``10.0.0.*``, ``10.0.0.1-9``,
    ``10.0.0.{1,7}``, ``10.0.0.1,10.0.0.2`` and networks such as ``10.0.0.0/8`` are what else there
    is; an address of version 6 is written whole, or as a network.

    Raises
    ------
    SettingsError
        When it is none of these.

    Examples
    --------
    >>> inside = address_pattern("192.168.0.1-20")
    >>> inside("192.168.0.7"), inside("192.168.0.21")
    (True, False)
    """
    text = text.strip()
    if text == "*":
        return lambda _: True
    if not text:
        return lambda _: False
    pieces = [text] if "{" in text else [piece.strip() for piece in text.split(",")]
    patterns = [_single(piece, text) for piece in pieces]
    return lambda address: any(matches(address) for matches in patterns)


def _single(piece: str, whole: str) -> AddressPattern:
    parts = piece.split(".")
    if len(parts) == 4 and "/" not in piece and all(map(_PART.fullmatch, parts)):
        ranges = [_numbers(part) for part in parts]
        return lambda address: _in_ranges(address, ranges)
    try:
        network = ipaddress.ip_network(piece, strict=False)
    except ValueError:
        message = f"{whole!r} is no pattern of addresses"
        hint = "Write 10.0.0.7, 10.0.0.*, 10.0.0.1-9, 10.0.0.{1,7}, 10.0.0.0/8 or *."
        raise SettingsError(message, hint=hint) from None
    return lambda address: ipaddress.ip_address(address) in network


def _numbers(part: str) -> frozenset[int]:
    if part == "*":
        return frozenset(range(256))
    if part.startswith("{"):
        return frozenset(map(int, part[1:-1].split(",")))
    first, _, last = part.partition("-")
    return frozenset(range(int(first), int(last or first) + 1))


def _in_ranges(address: str, ranges: list[frozenset[int]]) -> bool:
    parts = address.split(".")
    if len(parts) != 4:
        return False
    return all(int(part) in allowed for part, allowed in zip(parts, ranges, strict=True))


class Permission(IntFlag):
    """What an account may do with a topic or a group."""

    DENY = 0
    PUB = 4
    SUB = 8


_WORDS = {
    "DENY": Permission.DENY,
    "PUB": Permission.PUB,
    "SUB": Permission.SUB,
    "ANY": Permission.PUB | Permission.SUB,
}

Table = Mapping[str, Permission]


@dataclass(frozen=True, slots=True)
class Account:
    """One account.

    Names in the tables may end in ``*``: of those that fit, the longest counts.
    """

    access_key: str
    secret_key: str = field(repr=False)
    is_admin: bool = False
    #: Addresses from which it needs no signature.
    is_trusted_at: AddressPattern = field(default=address_pattern(""), repr=False)
    default_topic: Permission = Permission.DENY
    default_group: Permission = Permission.DENY
    topics: Table = field(default_factory=dict)
    groups: Table = field(default_factory=dict)

    def of_topic(self, name: str) -> Permission:
        """What it may do with a topic."""
        return _find(self.topics, name, self.default_topic)

    def of_group(self, name: str) -> Permission:
        """What it may do with a consumer group."""
        return _find(self.groups, name, self.default_group)


@dataclass(frozen=True, slots=True)
class AccessRules:
    """All accounts."""

    accounts: Mapping[str, Account] = field(default_factory=dict)
    #: Addresses from which everything is allowed.
    trusted: tuple[AddressPattern, ...] = ()

    def trusts(self, address: str) -> bool:
        """Return whether everything from an address is allowed."""
        return any(matches(address) for matches in self.trusted)


def _find(table: Table, name: str, default: Permission) -> Permission:
    exact = table.get(name)
    if exact is not None:
        return exact
    patterns = [key for key in table if key.endswith("*") and name.startswith(key[:-1])]
    return table[max(patterns, key=len)] if patterns else default


def load_rules(file: Path) -> AccessRules:
    """Read the rules in a file: YAML, or by its suffix JSON or TOML, all of one shape.

    Raises
    ------
    SettingsError
        When it cannot be read or says something that cannot be.
    """
    try:
        text = file.read_text()
    except OSError as error:
        message = f"the access rules {file} cannot be read: {error.strerror}"
        raise SettingsError(message, hint="Name a file such as RocketMQ's plain_acl.yml.") from None
    try:
        return read_rules(text, file.suffix)
    except (SettingsError, ValueError) as error:
        # The text of a parser's error may quote secrets.
        why = str(error) if isinstance(error, SettingsError) else _place(error)
        raise SettingsError(f"the access rules {file} are wrong: {why}") from None


def _place(error: ValueError) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f" at line {mark.line + 1}" if mark is not None else ""
    return f"they cannot be parsed{where} ({type(error).__name__})"


def read_rules(text: str, suffix: str = ".yml") -> AccessRules:
    r"""Read rules.

    Raises
    ------
    SettingsError, ValueError
        When they say something that cannot be, or cannot be parsed.

    Examples
    --------
    >>> rules = read_rules("accounts:\n- accessKey: app\n  secretKey: 12345678\n"
    ...                    "  topicPerms: [lines=PUB|SUB]")
    >>> rules.accounts["app"].of_topic("lines")
    <Permission.PUB|SUB: 12>
    """
    root = _as_map(_parsed(text, suffix), "the file")
    _check_names(root, ("globalWhiteRemoteAddresses", "accounts", "dataVersion"), "the file")
    accounts = [_account(item) for item in _as_list(root.get("accounts"), "accounts")]
    names = [account.access_key for account in accounts]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SettingsError(f"the accessKey {twice[0]!r} is there twice")
    trusted = _as_list(root.get("globalWhiteRemoteAddresses"), "globalWhiteRemoteAddresses")
    return AccessRules(
        {account.access_key: account for account in accounts},
        tuple(address_pattern(str(pattern)) for pattern in trusted),
    )


def _parsed(text: str, suffix: str) -> object:
    if suffix == ".json":
        return msgspec.json.decode(text)
    if suffix == ".toml":
        return tomllib.loads(text)
    import yaml

    try:
        # Every scalar stays text: a secret of digits is no number.
        return yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506  (it makes plain values only)
    except yaml.YAMLError as error:
        failure = ValueError("bad YAML")
        failure.problem_mark = getattr(error, "problem_mark", None)  # type: ignore[attr-defined]
        raise failure from None


_FIELDS = (
    "accessKey",
    "secretKey",
    "whiteRemoteAddress",
    "admin",
    "defaultTopicPerm",
    "defaultGroupPerm",
    "topicPerms",
    "groupPerms",
)


def _account(item: object) -> Account:
    given = _as_map(item, "an account")
    key = str(given.get("accessKey") or "")
    where = f"account {key!r}"
    _check_names(given, _FIELDS, where)
    secret = str(given.get("secretKey") or "")
    if not key or not secret:
        raise SettingsError(f"{where} lacks its {'secretKey' if key else 'accessKey'}")
    return Account(
        key,
        secret,
        str(given.get("admin", "false")).lower() == "true",
        address_pattern(str(given.get("whiteRemoteAddress") or "")),
        _permission(given.get("defaultTopicPerm") or "DENY", where),
        _permission(given.get("defaultGroupPerm") or "DENY", where),
        _table(given.get("topicPerms"), where),
        _table(given.get("groupPerms"), where),
    )


def _table(items: object, where: str) -> Table:
    table: dict[str, Permission] = {}
    for item in _as_list(items, where):
        name, equals, words = str(item).partition("=")
        if not equals or not name.strip():
            raise SettingsError(f"{where} has the permission {item!r}, which is not NAME=WHAT")
        table[name.strip()] = _permission(words, where)
    return table


def _permission(words: object, where: str) -> Permission:
    found = Permission.DENY
    for word in str(words).split("|"):
        permission = _WORDS.get(word.strip().upper())
        if permission is None:
            hint = "Write DENY, PUB, SUB or PUB|SUB."
            raise SettingsError(f"{where} has the permission {word!r}", hint=hint)
        found |= permission
    return found


def _check_names(given: Mapping[str, object], known: tuple[str, ...], where: str) -> None:
    if unknown := sorted(set(given) - set(known)):
        message = f"{where} has a member {unknown[0]!r}"
        raise SettingsError(message, hint=f"There are {', '.join(known)}.")


def _as_map(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise SettingsError(f"{where} is no table of names and values")
    return cast("Mapping[str, object]", value)


def _as_list(value: object, where: str) -> list[object]:
    if value is None or value == "":
        return []
    if not isinstance(value, list):
        raise SettingsError(f"{where}: a list is missing")
    return cast("list[object]", value)
