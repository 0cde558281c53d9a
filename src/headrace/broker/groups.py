"""Consumer groups: how each may consume, and how often it tries."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from headrace.errors import GroupNotFoundError, InvalidParameterError
from headrace.protocol.groups import SubscriptionGroupConfig

__all__ = ["GroupTable"]

_NAME = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")
_MOST_QUEUES = 1024


class GroupTable:
    """The settings of all groups.

    Parameters
    ----------
    create
        Whether a group comes into being when it is heard of for the first time.
    saved
        Groups of an earlier run.

    Examples
    --------
    >>> groups = GroupTable(create=True)
    >>> groups.get("g").retry_max_times, groups.names()
    (16, ['g'])
    """

    def __init__(self, *, create: bool, saved: Iterable[SubscriptionGroupConfig] = ()) -> None:
        #: Whether a group comes into being when it is heard of.
        self.creates = create
        self._groups = {config.group_name: config for config in saved}
        #: Number of changes so far: the data version that tools see.
        self.version = 0

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, name: str) -> bool:
        return name in self._groups

    def names(self) -> list[str]:
        """List the groups' names, in order."""
        return sorted(self._groups)

    def configs(self) -> list[SubscriptionGroupConfig]:
        """All groups, for a snapshot."""
        return list(self._groups.values())

    def peek(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a group, None when there is none."""
        return self._groups.get(name)

    def find(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a group, created if that is allowed; None when there is none."""
        found = self._groups.get(name)
        if found is None and self.creates and _NAME.fullmatch(name):
            return self._put(SubscriptionGroupConfig(group_name=name))
        return found

    def get(self, name: str) -> SubscriptionGroupConfig:
        """Return a group, created if that is allowed.

        Raises
        ------
        GroupNotFoundError
            When there is none of that name.
        """
        found = self.find(name)
        if found is None:
            hint = "Create it: mqadmin updateSubGroup, or let the broker create groups by itself."
            raise GroupNotFoundError(f"subscription group not exist, {name}", hint=hint)
        return found

    def update(self, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """Create a group or change it.

        Raises
        ------
        InvalidParameterError
            When its name or a setting cannot be.
        """
        name = config.group_name
        if not _NAME.fullmatch(name):
            hint = "Use 1 to 255 of these: letters, digits, and the signs _ - % |"
            raise InvalidParameterError(f"{name!r} cannot be the name of a group", hint=hint)
        if not 0 <= config.retry_queue_nums <= _MOST_QUEUES:
            message = f"group {name!r} cannot have {config.retry_queue_nums} retry queues"
            raise InvalidParameterError(message, hint=f"Use 0 to {_MOST_QUEUES:,}.")
        before = self._groups.get(name)
        kept = dict(before.attributes) if before else {}
        return self._put(msgspec.structs.replace(config, attributes=kept | _plain(config)))

    def _put(self, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        self._groups[config.group_name] = config
        self.version += 1
        return config

    def replace(self, configs: Iterable[SubscriptionGroupConfig]) -> None:
        """Take over all groups of another broker."""
        self._groups = {config.group_name: config for config in configs}
        self.version += 1

    def delete(self, name: str) -> bool:
        """Delete a group; False when there is none of that name."""
        self.version += name in self._groups
        return self._groups.pop(name, None) is not None


def _plain(config: SubscriptionGroupConfig) -> dict[str, str]:
    """Attributes as they are kept: without the sign that says that they are added."""
    return {name.removeprefix("+"): value for name, value in config.attributes.items()}
