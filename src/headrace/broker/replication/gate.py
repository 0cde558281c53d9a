"""What a broker that is no primary refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.failures import failure
from headrace.errors import BrokerBusyError
from headrace.protocol.codes import RequestCode

if TYPE_CHECKING:
    from headrace.broker.requests import Request
    from headrace.errors import HeadraceError
    from headrace.protocol.frames import Command
    from headrace.store.replication.rebuild import Rebuilds

__all__ = ["Gate"]

#: Requests that change something, but for those of replication itself.
_WRITES = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.OPEN_JOB,
        RequestCode.STAGE,
        RequestCode.COMMIT_BATCH,
        RequestCode.PLAN_BATCH,
    }
)
_PULLS = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
#: Requests that read queues, or ask how far they go.
_READS = _PULLS | {
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
}
_COMMIT = 1


class Gate:
    """Answers requests that a broker must refuse.

    Parameters
    ----------
    error
        Why it refuses them.
    rebuilds
        Queues that lack something: nobody reads from them meanwhile.
    reads
        Whether its messages are those of the primary, as far as it has them.
    """

    def __init__(self, error: HeadraceError, rebuilds: Rebuilds, *, reads: bool) -> None:
        self._error = error
        self._reads = reads
        self._rebuilds = rebuilds

    def __call__(self, request: Request) -> Command | None:
        """Give the refusal, None for a request that may go on."""
        code = request.command.code
        if code in _WRITES or (code in _READS and not self._reads):
            return failure(request, self._error)
        if code in _PULLS:
            # A consumer may read here; how far it came is its primary's to know.
            flags = request.number("sysFlag", 0)
            request.command.ext["sysFlag"] = str(flags & ~_COMMIT)
            topic, queue_id = request.text("topic", ""), request.number("queueId", -1)
            if self._rebuilds.is_rebuilding(topic, queue_id):
                message = f"queue {queue_id} of topic {topic!r} is being rebuilt here"
                return failure(request, BrokerBusyError(message, hint="Read from the primary."))
        return None
