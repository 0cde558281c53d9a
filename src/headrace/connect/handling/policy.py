"""What a connector's config says about failures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from headrace.connect.config.common import common_keys
from headrace.connect.handling.retrying import Patience
from headrace.errors import ConnectorConfigError

__all__ = ["ErrorPolicy"]

_ONCE = Patience(0.0)
#: What a task waits for is looked at this often, s, where nobody has said otherwise.
_LONGEST = 5.0
_FOR_EVER = Patience(None, _LONGEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPolicy:
    """What is done with records that fail.

    Examples
    --------
    >>> policy = ErrorPolicy.of({"errors.tolerance": "all", "errors.retry.timeout": "-1"}, "sink")
    >>> policy.tolerates, policy.patience.budget
    (True, None)
    """

    #: How long converters and transforms are tried again.
    patience: Patience = _ONCE
    #: How long what a task or connector is asked for is tried again after a RetriableError.
    task_patience: Patience = _FOR_EVER
    #: Whether records that converters and transforms refuse are left out.
    tolerates: bool = False
    #: Whether records that the sink itself refuses are found and left out.
    tolerates_put: bool = False
    #: Whether failures are logged.
    logs: bool = False
    #: Whether that log has the records themselves.
    logs_records: bool = False
    #: Where records that were left out go; empty: nowhere.
    dead_letter_topic: str = ""
    #: Whether dead letters say what happened.
    context_headers: bool = True

    @classmethod
    def of(cls, texts: Mapping[str, str], role: Literal["source", "sink"]) -> ErrorPolicy:
        """Read a connector's config; its task configs need none of these keys.

        Raises
        ------
        ConnectorConfigError
            One of the keys ``errors.*`` has a wrong value.
        """
        values, problems = common_keys(role).read(texts)
        wrong = [(one.key, one.message) for one in problems if one.key.startswith("errors.")]
        if wrong:
            raise ConnectorConfigError.of(wrong)
        longest = max(_seconds(values["errors.retry.delay.max.ms"]), 0.0)
        timeout = _seconds(values["errors.retry.timeout"])
        patience = Patience(None if timeout < 0 else timeout, longest)
        # A task that asks for another try gets it, unless somebody set a limit.
        task_budget = patience.budget if "errors.retry.timeout" in texts else None
        task_longest = longest if "errors.retry.delay.max.ms" in texts else _LONGEST
        return cls(
            patience=patience,
            task_patience=Patience(task_budget, task_longest),
            tolerates=values["errors.tolerance"].lower() == "all",
            tolerates_put=values.get("errors.put.tolerance", "none").lower() == "all",
            logs=values["errors.log.enable"],
            logs_records=values["errors.log.include.messages"],
            dead_letter_topic=values.get("errors.deadletterqueue.topic.name", "").strip(),
            context_headers=values.get("errors.deadletterqueue.context.headers.enable", True),
        )


def _seconds(value: timedelta) -> float:
    return value.total_seconds()
