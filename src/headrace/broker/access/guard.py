"""The guard at the door: each request passes it before anything else happens."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.broker.access.accounts import AccessRules, Account, load_rules
from headrace.broker.access.needs import NAMED_IN_BODY, Need, needs_of
from headrace.broker.failures import failure
from headrace.errors import HeadraceError, SettingsError
from headrace.protocol.codes import ResponseCode
from headrace.protocol.signing import ACCESS_KEY, is_signed_with

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.broker.requests import Request
    from headrace.protocol.frames import Command

__all__ = ["Guard"]

_log = logging.getLogger(__name__)


class Guard:
    """Passes on the requests that the rules allow and refuses the others.

    The file with the rules is read again when it changes; a file that is wrong changes nothing.

    Parameters
    ----------
    file
        The rules.

    Raises
    ------
    SettingsError
        When the rules cannot be read.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen = _stamp(file)
        self.rules = load_rules(file)

    def refresh(self) -> bool:
        """Read the rules again if the file changed; tells whether there are new ones."""
        stamp = _stamp(self._file)
        if stamp == self._seen:
            return False
        self._seen = stamp
        try:
            self.rules = load_rules(self._file)
        except SettingsError as error:
            _log.error("the access rules stay as they were: %s", error)
            return False
        _log.warning("access rules read again from %s", self._file)
        return True

    def before(self, dispatch: Callable[[Request], None], core: Core) -> Callable[[Request], None]:
        """Put the guard in front of what handles requests."""
        return _Door(self, dispatch, core)


@dataclass(frozen=True, slots=True)
class _Door:
    guard: Guard
    dispatch: Callable[[Request], None]
    core: Core

    def __call__(self, request: Request) -> None:
        why, account = identified(self.guard.rules, request)
        if why is not None:
            self._refuse(request, request.reply(ResponseCode.NO_PERMISSION, why))
        elif account is None:
            self.dispatch(request)
        elif request.is_large and request.command.code in NAMED_IN_BODY:
            request.peer.hold(len(request.command.payload))
            request = replace(request, account=account.access_key, read={})
            self.core.start_task(self._later(request, account))
        else:
            try:
                why = lacks(account, request)
            except HeadraceError as error:
                self._refuse(request, failure(request, error))
            else:
                self._pass_on(replace(request, account=account.access_key), why)

    async def _later(self, request: Request, account: Account) -> None:
        # What it needs is in its body: nobody waits while that is read.
        try:
            why = await self.core.in_thread(lacks, account, request)
        except HeadraceError as error:
            self._refuse(request, failure(request, error))
        else:
            self._pass_on(request, why)
        finally:
            request.peer.release(len(request.command.payload))

    def _pass_on(self, request: Request, why: str | None) -> None:
        if why is None:
            self.dispatch(request)
        else:
            self._refuse(request, request.reply(ResponseCode.NO_PERMISSION, why))

    def _refuse(self, request: Request, answer: Command) -> None:
        self.core.refusals.note(request, answer)
        request.answer(answer)


def identified(rules: AccessRules, request: Request) -> tuple[str | None, Account | None]:
    """Say why nobody knows who asks, or which account it is, where that one may not do all."""
    address = request.peer.address[0]
    if rules.trusts(address):
        return None, None
    key = request.command.ext.get(ACCESS_KEY)
    if not key:
        why = "No accessKey is configured: this broker has access control, and nobody signed"
        return why, None
    account = rules.accounts.get(key)
    if account is None:
        return f"No acl config for {key[:80]}: there is no such access key", None
    trusted = account.is_trusted_at(address)
    if not trusted and not is_signed_with(request.command, account.secret_key):
        return f"check signature failed. The secret of access key {key} is another one", None
    return None, None if account.is_admin else account


def lacks(account: Account, request: Request) -> str | None:
    """Say what an account lacks for a request; None: nothing.

    Raises
    ------
    InvalidParameterError, ProtocolError
        When it cannot be read.
    """
    if account.is_trusted_at(request.peer.address[0]):
        return None
    lacking = (need for need in needs_of(request) if not _has(account, need))
    return next((_missing(account, need) for need in lacking), None)


def _has(account: Account, need: Need) -> bool:
    if need.kind == "admin":
        return False
    allowed = account.of_topic if need.kind == "topic" else account.of_group
    return bool(allowed(need.name) & need.permission)


def _missing(account: Account, need: Need) -> str:
    key = account.access_key
    if need.kind == "admin":
        return f"no matched policies: the request needs an admin, and access key {key} is none"
    words = " or ".join(flag.name or "" for flag in need.permission)
    return f"no matched policies: access key {key} lacks {words} on {need.kind} {need.name[:300]!r}"


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
