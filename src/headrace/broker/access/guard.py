"""The guard at the door: each request passes it before anything else happens."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.broker.access.accounts import AccessRules, Account, load_rules
from headrace.broker.access.needs import Need, needs_of
from headrace.broker.failures import failure
from headrace.broker.network.quiet_log import QuietLog
from headrace.errors import HeadraceError, SettingsError
from headrace.protocol.codes import ResponseCode
from headrace.protocol.signing import ACCESS_KEY, is_signed_with

if TYPE_CHECKING:
    from headrace.broker.requests import Request

__all__ = ["Guard"]

_log = logging.getLogger(__name__)
_quiet = QuietLog(_log)


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

    def before(self, dispatch: Callable[[Request], None]) -> Callable[[Request], None]:
        """Put the guard in front of what handles requests."""

        def guarded(request: Request) -> None:
            try:
                why = refusal(self.rules, request)
            except HeadraceError as error:
                request.answer(failure(request, error))
                return
            if why is None:
                dispatch(request)
                return
            _quiet.warning("refused a request of %s: %s", request.peer.address[0], why)
            request.answer(request.reply(ResponseCode.NO_PERMISSION, why))

        return guarded


def refusal(rules: AccessRules, request: Request) -> str | None:
    """Say why a request is not allowed; None: it is.

    Raises
    ------
    InvalidParameterError, ProtocolError
        When it cannot be read.
    """
    address = request.peer.address[0]
    if rules.trusts(address):
        return None
    key = request.command.ext.get(ACCESS_KEY)
    if not key:
        return "No accessKey is configured: this broker has access control, and nobody signed"
    account = rules.accounts.get(key)
    if account is None:
        return f"No acl config for {key[:80]}: there is no such access key"
    if account.is_trusted_at(address):
        return None
    if not is_signed_with(request.command, account.secret_key):
        return f"check signature failed. The secret of access key {key} is another one"
    if account.is_admin:
        return None
    return next(
        (_missing(account, need) for need in needs_of(request) if not _has(account, need)), None
    )


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
