"""PythonFunction: a function of yours as a transform."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from headrace.connect.config import Config, declare, key, matching
from headrace.connect.config.providers import check_function
from headrace.connect.transforms.base import Record, Transform
from headrace.errors import ConnectorConfigError, TransformError

if TYPE_CHECKING:
    from headrace.connect.records import SinkRecord, SourceRecord


_SHAPE = r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*"


class PythonFunction(Transform):
    """Calls a function with each record: it returns a record, a list of records, or ``None``.

    ``None`` drops the record; a list stands in its place, in its order.

    Examples
    --------
    With this function in ``shop/records.py``::

        def in_cents(record):
            value = {**record.value, "price": round(record.value["price"] * 100)}
            return record.replace(value=value)

    a connector has ``transforms.cents.type=PythonFunction`` and
    ``transforms.cents.function=shop.records:in_cents``.  A worker loads it where its operator has
    allowed that: ``headrace connect worker --allow-function shop.records``.
    """

    config = declare(
        key(
            "function",
            str,
            "The function, as module:name.",
            required=True,
            valid=matching(_SHAPE, "module:function, such as shop.records:in_cents"),
        ),
    )

    def configure(self, config: Config) -> None:
        """Look up the function."""
        self._name: str = config["function"]
        self._function = _found(self._name)

    def apply(self, record: Record) -> Record | Sequence[Record] | None:
        """Call the function."""
        answer = self._function(record)
        if answer is None or isinstance(answer, type(record)):
            return answer
        if isinstance(answer, Sequence) and not isinstance(answer, str | bytes):
            for one in answer:
                self._need_record(one, record)
            return answer
        self._need_record(answer, record)
        return None

    def _need_record(self, answer: object, record: SourceRecord | SinkRecord) -> None:
        if not isinstance(answer, type(record)):
            raise TransformError(
                f"The function {self._name} gave a {type(answer).__name__} for a record.",
                hint=f"Give a {type(record).__name__} (record.replace makes one), a list of them, "
                "or None to drop it.",
            )


def _found(name: str) -> Callable[[Any], Any]:
    module, _, path = name.partition(":")
    try:
        check_function(module)
    except LookupError as error:
        raise ConnectorConfigError(f"The function {name} cannot be loaded: {error}.") from error
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConnectorConfigError(
            f"The function {name} cannot be loaded: {error}.",
            hint="Install its package where the worker runs, and write module:function.",
        ) from error
    if not callable(found):
        raise ConnectorConfigError(
            f"{name} is a {type(found).__name__}, which cannot be called.",
            hint="Name a function that takes a record.",
        )
    return found  # type: ignore[no-any-return]
