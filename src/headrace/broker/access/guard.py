"""The guard at the door: each request passes it before anything else happens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.broker.access.accounts import AccessRules, Account, load_rules
from headrace.broker.access.needs import Need, needs_of
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

        def pass_on(request: Request, lacking: Callable[[], str | None]) -> None:
            try:
                why = lacking()
            except HeadraceError as error:
                refuse(request, failure(request, error))
                return
            if why is None:
                dispatch(request)
            else:
                refuse(request, request.reply(ResponseCode.NO_PERMISSION, why))

        async def later(request: Request, account: Account, size: int) -> None:
            # What it needs is in its body: nobody waits while that is read.
            found = asyncio.ensure_future(core.in_thread(lacks, account, request))
            try:
                await asyncio.wait([found])
            finally:
                request.peer.release(size)
            pass_on(request, found.result)

        def refuse(request: Request, answer: Command) -> None:
            core.refusals.note(request, answer)
            request.answer(answer)

        def guarded(request: Request) -> None:
            why, account = identified(self.rules, request)
            if why is not None:
                refuse(request, request.reply(ResponseCode.NO_PERMISSION, why))
            elif account is None:
                dispatch(request)
            elif request.is_large:
                size = len(request.command.payload)
                request.peer.hold(size)
                core.start_task(
                    later(replace(request, account=account.access_key, read={}), account, size)
                )
            else:
                pass_on(
                    replace(request, account=account.access_key), lambda: lacks(account, request)
                )

        return guarded


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
