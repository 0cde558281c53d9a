"""``_bulk`` requests: sent until each operation is done or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Event
from typing import TYPE_CHECKING, Any

import orjson

from headrace.connect import SinkRecord
from headrace.connect.connectors.sending import PASSING, Pauses, RefusedError, Retries, Sender
from headrace.errors import ConnectorConfigError

if TYPE_CHECKING:
    import httpx

    from headrace.connect.connectors.elasticsearch._operations import Operation

__all__ = ["Bulk"]

_HEADERS = {"content-type": "application/x-ndjson"}
#: What an index that takes no writes says, until somebody frees disk or lifts the block.
_BLOCKED = "cluster_block_exception"

Report = Callable[[SinkRecord, BaseException], None]


class Bulk:
    """Makes requests of operations.

    Parameters
    ----------
    url
        Of ``_bulk``.
    report
        Hands over a record that is refused, with the reason.
    most_records, most_bytes
        Of one request.
    """

    def __init__(
        self,
        client: httpx.Client,
        url: str,
        retries: Retries,
        *,
        stopping: Event,
        report: Report,
        most_records: int = 1000,
        most_bytes: int = 5 << 20,
    ) -> None:
        self._sender = Sender(client, "POST", retries, stopping)
        self._url = url
        self._retries = retries
        self._stopping = stopping
        self._report = report
        self._most_records = most_records
        self._most_bytes = most_bytes

    def send(self, operations: Sequence[Operation]) -> None:
        """Have all operations done, in their order for each document.

        Raises
        ------
        RetriableError
            When the budget for tries is used up, or the task is to stop.
        ConnectorConfigError
            When the server refuses whatever is sent.
        """
        for part in self._parts(operations):
            pauses = Pauses(self._retries, self._stopping)
            left = part
            while left:
                left, failure = self._try(left)
                if left:
                    pauses.wait(f"POST {self._url} with {len(left)} operations", failure)

    def _parts(self, operations: Sequence[Operation]) -> Iterator[list[Operation]]:
        part: list[Operation] = []
        size = 0
        for one in operations:
            full = len(part) == self._most_records or size + len(one.lines) > self._most_bytes
            if part and full:
                yield part
                part, size = [], 0
            part.append(one)
            size += len(one.lines)
        if part:
            yield part

    def _try(self, operations: list[Operation]) -> tuple[list[Operation], str]:
        """Send operations once; give those to send again, and why."""
        if not operations:
            return [], ""
        try:
            body = b"".join([one.lines for one in operations])
            answer = self._sender.send(self._url, body, _HEADERS)
        except RefusedError as error:
            if len(operations) == 1:
                self._report(operations[0].record, error)
                return [], ""
            return self._try_halves(operations)
        found = orjson.loads(answer.content)
        return self._unfinished(operations, found["items"]) if found["errors"] else ([], "")

    def _try_halves(self, operations: list[Operation]) -> tuple[list[Operation], str]:
        """Find the one that is too large, which must not take the others with it."""
        middle = len(operations) // 2
        first, failure = self._try(operations[:middle])
        again = {one.document for one in first}
        held = [one for one in operations[middle:] if one.document in again]
        free = [one for one in operations[middle:] if one.document not in again]
        second, more = self._try(free)
        return [*first, *held, *second], failure or more

    def _unfinished(
        self, operations: list[Operation], items: list[dict[str, Any]]
    ) -> tuple[list[Operation], str]:
        left: list[Operation] = []
        failure = ""
        again: set[tuple[str, str]] = set()
        refused: list[tuple[Operation, BaseException]] = []
        for operation, item in zip(operations, items, strict=True):
            [(action, result)] = item.items()
            if operation.document in again:
                # Behind one that is sent again, so that the last one stays the last.
                left.append(operation)
            elif _passes(action, result):
                again.add(operation.document)
                left.append(operation)
                failure = failure or _said(result)
            elif (error := _refusal(action, result, operation)) is not None:
                refused.append((operation, error))
        for operation, error in refused:
            self._report(operation.record, error)
        return left, failure


def _passes(action: str, result: dict[str, Any]) -> bool:
    if result["status"] in PASSING or _kind(result) == _BLOCKED:
        return True
    return action == "update" and result["status"] == 409


def _refusal(action: str, result: dict[str, Any], operation: Operation) -> BaseException | None:
    status = result["status"]
    if status < 300 or status == 409 or (action == "delete" and status == 404):
        # 409: the document is there already, in this version or a later one.
        return None
    index, document = operation.document
    message = f"Document {document} of index {index} was refused: {_said(result)}"
    if status in {401, 403, 404}:
        hint = "Check that the index exists or may be made, and what the user is allowed to do."
        raise ConnectorConfigError(message, hint=hint)
    hint = "Correct the record or the index's mapping, or let errors.tolerance=all pass it over."
    return RefusedError(message, hint=hint)


def _kind(result: dict[str, Any]) -> str:
    return str((result.get("error") or {}).get("type", ""))


def _said(result: dict[str, Any]) -> str:
    error = result.get("error") or {}
    cause = (error.get("caused_by") or {}).get("reason")
    because = f" ({cause})" if cause else ""
    return f"{result['status']} {error.get('type')}: {error.get('reason')}{because}"
