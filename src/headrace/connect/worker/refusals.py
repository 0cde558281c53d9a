"""Why a worker does not do what it was asked: one error for each answer that HTTP has.

::

    HeadraceError
    └── RefusedError
        ├── BadRequestError (ValueError)
        ├── NotThereError (LookupError)
        ├── ConflictError
        ├── PluginFailedError
        │   └── PluginTimeoutError (TimeoutError)
        └── NotReadyError
"""

from __future__ import annotations

from typing import ClassVar

from headrace.errors import HeadraceError

__all__ = [
    "BadRequestError",
    "ConflictError",
    "NotReadyError",
    "NotThereError",
    "PluginFailedError",
    "PluginTimeoutError",
    "RefusedError",
]


class RefusedError(HeadraceError):
    """A request that is not carried out."""

    code = "refused"
    #: Status of the HTTP answer.
    status: ClassVar[int] = 500


class BadRequestError(RefusedError, ValueError):
    """What was asked for cannot be, now or ever."""

    code = "bad_request"
    status = 400


class NotThereError(RefusedError, LookupError):
    """What the request names does not exist."""

    code = "not_there"
    status = 404


class ConflictError(RefusedError):
    """What was asked for does not fit what is there by now."""

    code = "conflict"
    status = 409


class PluginFailedError(RefusedError):
    """Code of a plugin raised while it was asked a question."""

    code = "plugin_failed"
    status = 500


class PluginTimeoutError(PluginFailedError, TimeoutError):
    """Code of a plugin did not answer in time; its process was killed."""

    code = "plugin_timeout"
    status = 500


class NotReadyError(RefusedError):
    """The worker has not read its log yet, has lost it, or is about to end."""

    code = "not_ready"
    retriable = True
    status = 503
