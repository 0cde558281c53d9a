"""Every error that Headrace raises, in one tree.

Our exception hierarchy::

    HeadraceError
    ├── ConfigurationError (ValueError)
    │   ├── TopologyError
    │   ├── SettingsError
    │   ├── UnsafeFileError
    │   ├── ConnectorConfigError
    │   ├── JavaNotFoundError
    │   └── WorkerMismatchError
    ├── CannotStartError
    ├── ConnectionFailedError (ConnectionError)
    │   ├── TlsError
    │   └── HostGoneError
    ├── RequestTimeoutError (TimeoutError)
    ├── ProtocolError
    ├── BrokerError
    │   ├── TopicNotFoundError
    │   ├── GroupNotFoundError
    │   ├── MessageRejectedError
    │   ├── BrokerBusyError
    │   ├── NoPermissionError
    │   ├── RequestNotSupportedError
    │   ├── NotFoundError
    │   ├── InvalidParameterError
    │   ├── FencedError
    │   ├── PredecessorMismatchError
    │   ├── StagedPartMissingError
    │   ├── CommitLostError
    │   ├── InputMissingError
    │   ├── BrokerStorageError
    │   ├── NotPrimaryError
    │   ├── NotReplicatedError
    │   └── UnknownBrokerError
    ├── MessageTooLargeError (ValueError)
    ├── StoreError
    │   ├── StoreLockedError
    │   ├── StoreFullError (OSError)
    │   ├── StoreFailedError
    │   └── CorruptLogError
    ├── ProcessingError
    │   ├── UserCodeError
    │   ├── RollbackError
    │   │   └── BatchTimeoutError (TimeoutError)
    │   ├── DeserializationError
    │   ├── SerializationError
    │   ├── SchemaError
    │   ├── TransformError
    │   └── RetriableError
    ├── StateError
    │   ├── StateLockedError
    │   ├── StateMismatchError
    │   └── PartitionCountError
    ├── PluginError
    ├── OffsetExpiredError
    ├── LeaseLostError
    ├── ConnectError
    │   ├── ConnectRequestError (ValueError)
    │   │   └── ConnectorNameError
    │   ├── ConnectNotFoundError (LookupError)
    │   │   └── ConnectorNotFoundError
    │   ├── ConnectConflictError
    │   │   ├── ConnectorExistsError
    │   │   └── RebalanceError
    │   ├── PluginFailedError
    │   │   └── PluginTimeoutError (TimeoutError)
    │   ├── WorkerStoppingError
    │   └── WorkerIdTakenError
    └── JobFailedError
        ├── TaskFailedError
        ├── JavaEndedError
        └── EngineAwayError

``code`` is a stable word for programs, ``retriable`` says whether the same call may succeed
later.  Retries read ``retriable``, never the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Self


class HeadraceError(Exception):
    """Any failure that Headrace itself reports.

    Parameters
    ----------
    message
        What happened, where and why.
    hint
        What to do about it, printed on a line of its own.
    """

    code: ClassVar[str] = "headrace"
    retriable: ClassVar[bool] = False
    #: Where it tells of several problems, each of them.
    parts: tuple[HeadraceError, ...] = ()

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  → {self.hint}"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(
    kind: type[HeadraceError], args: tuple[object, ...], fields: dict[str, object]
) -> HeadraceError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class ConfigurationError(HeadraceError, ValueError):
    """Something the user wrote cannot work."""

    code = "configuration"


class TopologyError(ConfigurationError):
    """The topology is wrong, found while it was built."""

    code = "topology"


class SettingsError(ConfigurationError):
    """A setting has a value that cannot work."""

    code = "settings"


class UnsafeFileError(ConfigurationError):
    """A file or a folder could have been made, or read, by another user."""

    code = "unsafe_file"


class ConnectorConfigError(ConfigurationError):
    """The config of a connector, a converter or a transform cannot work.

    ``problems`` holds each thing that is wrong, with the key that it is about.

    Examples
    --------
    >>> error = ConnectorConfigError.of([("port", "The key port is missing.")])
    >>> error.problems
    (('port', 'The key port is missing.'),)
    """

    code = "connector_config"
    problems: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, problems: Iterable[tuple[str, str]]) -> Self:
        """Make the error out of pairs of key and problem."""
        found = tuple(problems)
        error = cls("\n".join(text for _, text in found), hint="Correct the config.")
        error.problems = found
        return error


class JavaNotFoundError(ConfigurationError):
    """No Java 17 or newer was found for Spark."""

    code = "java_not_found"


class WorkerMismatchError(ConfigurationError):
    """A machine of Spark's cluster lacks what the job needs, or has another version of it."""

    code = "worker_mismatch"


class CannotStartError(HeadraceError):
    """Several things of different kinds keep a job from starting; ``parts`` holds each."""

    code = "cannot_start"


def refuse(what: str, problems: Sequence[HeadraceError]) -> None:
    """Raise all problems as one error that lists them.

    A problem that stands alone is raised as it is.  Several of one class are an error of this
    class, others a :class:`CannotStartError`.

    Raises
    ------
    HeadraceError
        There is a problem.

    Examples
    --------
    >>> refuse("job 'j' cannot start", [StateError("a is gone"), StateError("b is gone")])
    Traceback (most recent call last):
    headrace.errors.StateError: job 'j' cannot start, for 2 reasons:
      a is gone
      b is gone
    """
    if not problems:
        return
    if len(problems) == 1:
        raise problems[0]
    kinds = {type(problem) for problem in problems}
    kind = kinds.pop() if len(kinds) == 1 else CannotStartError
    texts = [str(problem).replace("\n", "\n  ") for problem in problems]
    error = kind("\n  ".join([f"{what}, for {len(problems)} reasons:", *texts]))
    error.parts = tuple(problems)
    raise error


def raised_by(check: Callable[[], object]) -> list[HeadraceError]:
    """Return what a check raises: one error, or none."""
    try:
        check()
    except HeadraceError as error:
        return [error]
    return []


class ConnectionFailedError(HeadraceError, ConnectionError):
    """No connection to an address could be made or kept."""

    code = "connection_failed"
    retriable = True


class TlsError(ConnectionFailedError):
    """A server's certificate is not trusted, or it does not speak TLS at all."""

    code = "tls"
    retriable = False


class HostGoneError(ConnectionFailedError):
    """The process of a connector's task is gone, and with it whoever would take or give records."""

    code = "host_gone"
    retriable = False


class RequestTimeoutError(HeadraceError, TimeoutError):
    """A broker did not answer in time."""

    code = "request_timeout"
    retriable = True


class ProtocolError(HeadraceError):
    """Bytes from a peer do not follow the remoting protocol."""

    code = "protocol"


class BrokerError(HeadraceError):
    """A broker refused a request.

    ``response_code`` is the number that the broker sent; the subclass follows from it.
    """

    code = "broker"
    response_code: ClassVar[int | None] = None

    def __init__(self, message: str, *, hint: str | None = None, number: int | None = None) -> None:
        super().__init__(message, hint=hint)
        self.number = self.response_code if number is None else number


class BrokerBusyError(BrokerError):
    """The broker is too busy or not in service."""

    code = "broker_busy"
    retriable = True
    response_code = 2


class NoPermissionError(BrokerError):
    """The broker does not allow this."""

    code = "no_permission"
    response_code = 16


class MessageRejectedError(BrokerError):
    """The broker refused a message: its size or its properties are wrong."""

    code = "message_rejected"
    response_code = 13


class TopicNotFoundError(BrokerError):
    """The topic does not exist."""

    code = "topic_not_found"
    response_code = 17


class NotFoundError(BrokerError):
    """What was asked for does not exist."""

    code = "not_found"
    response_code = 22


class GroupNotFoundError(BrokerError):
    """The consumer group does not exist."""

    code = "group_not_found"
    response_code = 26


class InvalidParameterError(BrokerError):
    """A field of the request has a value that the broker cannot take."""

    code = "invalid_parameter"
    response_code = 29


class RequestNotSupportedError(BrokerError):
    """The broker does not know this request."""

    code = "request_not_supported"
    response_code = 3


class FencedError(BrokerError):
    """A newer driver of the same job has taken over."""

    code = "fenced"
    response_code = 28_101


class PredecessorMismatchError(BrokerError):
    """A commit does not build on the last committed batch."""

    code = "predecessor_mismatch"
    response_code = 28_102


class StagedPartMissingError(BrokerError):
    """A commit names a staged part that the broker does not hold, or not whole."""

    code = "staged_part_missing"
    retriable = True
    response_code = 28_103


class CommitLostError(BrokerError):
    """The newest commit of a job is lost, so nobody knows what it has published."""

    code = "commit_lost"
    response_code = 28_105


class InputMissingError(BrokerError):
    """A job has read a queue, or committed, further than what its broker holds.

    Examples
    --------
    >>> InputMissingError.beyond("batch 3 of job 'j'", "lines@broker-a@0", 61, 50).message
    "batch 3 of job 'j' has read queue lines@broker-a@0 up to offset 61, and it ends at 50"
    """

    code = "input_missing"
    retriable = True
    response_code = 28_106

    @classmethod
    def beyond(cls, batch: str, queue: str, offset: int, end: int) -> Self:
        """Make the error out of a queue's name, the offset that was read up to, and its end."""
        return cls(
            f"{batch} has read queue {queue} up to offset {offset}, and it ends at {end}",
            hint="its broker has lost messages, or the topic was made anew: the batch is read anew"
            " from what is there",
        )


class BrokerStorageError(BrokerError):
    """The broker could not write to its disk: nothing of the request was kept."""

    code = "broker_storage"
    response_code = 28_104


class NotPrimaryError(BrokerError):
    """The broker follows another one, or was replaced: only a primary does this."""

    code = "not_primary"
    retriable = True
    # To clients of RocketMQ it is one that takes no writes.
    response_code = NoPermissionError.response_code

    def __init__(
        self, message: str, *, primary: str = "", hint: str | None = None, number: int | None = None
    ) -> None:
        super().__init__(message, hint=hint, number=number)
        #: Which broker is the primary, as far as this one knows.
        self.primary = primary


class NotReplicatedError(BrokerError):
    """The broker stored it, but too few followers have it; to send it again makes it twice."""

    code = "not_replicated"
    response_code = 12


class UnknownBrokerError(BrokerError):
    """The broker answered with a code that has no class of its own."""

    code = "unknown_broker"


_NUMBERED: tuple[type[BrokerError], ...] = (
    BrokerBusyError,
    BrokerStorageError,
    CommitLostError,
    FencedError,
    GroupNotFoundError,
    InputMissingError,
    InvalidParameterError,
    MessageRejectedError,
    NoPermissionError,
    NotFoundError,
    NotReplicatedError,
    PredecessorMismatchError,
    RequestNotSupportedError,
    StagedPartMissingError,
    TopicNotFoundError,
)
_BY_RESPONSE_CODE: dict[int | None, type[BrokerError]] = {
    **{kind.response_code: kind for kind in _NUMBERED},
    11: NotReplicatedError,
    14: BrokerBusyError,
    215: BrokerBusyError,
    # A queue of a static topic has moved: the next try asks where to.
    501: BrokerBusyError,
}


def broker_error(number: int, message: str, *, hint: str | None = None) -> BrokerError:
    """Make the error for a broker's response code.

    >>> type(broker_error(17, "topic 'lines' does not exist")).__name__
    'TopicNotFoundError'
    >>> broker_error(999, "odd").number
    999
    """
    return _BY_RESPONSE_CODE.get(number, UnknownBrokerError)(message, hint=hint, number=number)


class MessageTooLargeError(HeadraceError, ValueError):
    """A message is larger than the broker takes."""

    code = "message_too_large"


class StoreError(HeadraceError):
    """The store on disk cannot do what was asked."""

    code = "store"


class StoreLockedError(StoreError):
    """Another process has this store open."""

    code = "store_locked"


class StoreFullError(StoreError, OSError):
    """The disk is full: nothing was written, what is stored stays readable."""

    code = "store_full"


class StoreFailedError(StoreError):
    """A sync failed, or a write that could not be undone: nothing more until the next open."""

    code = "store_failed"


class CorruptLogError(StoreError):
    """Stored bytes do not match their checksum."""

    code = "corrupt_log"


class ProcessingError(HeadraceError):
    """A record could not be processed."""

    code = "processing"


class UserCodeError(ProcessingError):
    """A user's function raised."""

    code = "user_code"


class RollbackError(ProcessingError):
    """A component asked for the batch to be rolled back, or could not end it.

    The job goes back to its last commit and tries the batch again, a bounded number of times.

    Parameters
    ----------
    message
        What happened, where and why.
    hint
        What to do about it.
    component
        Name of the spout, bolt or operator.
    task
        Number of the component's task; -1 where it has none.
    batch
        Number of the batch that is rolled back.
    line
        The user's own file and line, if known.

    Examples
    --------
    >>> error = RollbackError("bolt 'count' failed", component="count", task=1, batch=4)
    >>> error.component, error.batch, error.retriable
    ('count', 4, True)
    """

    code = "rollback"
    retriable = True

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        component: str = "",
        task: int = -1,
        batch: int = 0,
        line: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.component = component
        self.task = task
        self.batch = batch
        self.line = line


class BatchTimeoutError(RollbackError, TimeoutError):
    """A batch took longer than ``batch_timeout``: something in it hangs, or is too slow."""

    code = "batch_timeout"


class DeserializationError(ProcessingError):
    """A deserializer could not read a message."""

    code = "deserialization"


class SerializationError(ProcessingError):
    """A serializer could not write a value."""

    code = "serialization"


class SchemaError(ProcessingError):
    """A value does not fit its schema, or the schema itself cannot be."""

    code = "schema"


class TransformError(ProcessingError):
    """A transform cannot take a record: a field is missing, or a value is of another type."""

    code = "transform"


class RetriableError(ProcessingError):
    """Raised by a plugin for a failure that the next try may not meet."""

    code = "retriable"
    retriable = True


class PluginError(HeadraceError):
    """A plugin is not there, or cannot be loaded."""

    code = "plugin"


class StateError(HeadraceError):
    """A state store cannot be used."""

    code = "state"


class StateLockedError(StateError):
    """Another task still holds the local copy of a state store."""

    code = "state_locked"
    retriable = True


class StateMismatchError(StateError):
    """A state store differs from what the commit record says of it."""

    code = "state_mismatch"
    retriable = True


class PartitionCountError(StateError):
    """The job was started with another number of partitions than its state has."""

    code = "partition_count"


class OffsetExpiredError(HeadraceError):
    """The broker no longer holds the offset from which the job must go on."""

    code = "offset_expired"


class LeaseLostError(HeadraceError):
    """A driver could not renew its lease in time: another one may have taken over."""

    code = "lease_lost"
    retriable = True


class ConnectError(HeadraceError):
    """The control plane of Connect cannot do what was asked."""

    code = "connect"


class ConnectRequestError(ConnectError, ValueError):
    """A request to Connect is wrong in itself: it will never work."""

    code = "connect_request"


class ConnectorNameError(ConnectRequestError):
    """A connector cannot have this name."""

    code = "connector_name"


class ConnectNotFoundError(ConnectError, LookupError):
    """A request to Connect names something that is not there."""

    code = "connect_not_found"


class ConnectorNotFoundError(ConnectNotFoundError):
    """There is no such connector, or it has no such task."""

    code = "connector_not_found"


class ConnectConflictError(ConnectError):
    """A request does not fit what Connect has decided before it."""

    code = "connect_conflict"


class ConnectorExistsError(ConnectConflictError):
    """The name of a new connector is taken."""

    code = "connector_exists"


class RebalanceError(ConnectConflictError):
    """Connectors and tasks are being moved between workers right now."""

    code = "rebalance"
    retriable = True


class PluginFailedError(ConnectError):
    """Code of a plugin raised while it was asked a question."""

    code = "plugin_failed"


class PluginTimeoutError(PluginFailedError, TimeoutError):
    """Code of a plugin did not answer a question in time; its process was killed."""

    code = "plugin_timeout"


class WorkerStoppingError(ConnectError):
    """The worker is ending, or has not read its log to the end yet."""

    code = "worker_stopping"
    retriable = True


class WorkerIdTakenError(ConnectError):
    """Another worker of this name is alive."""

    code = "worker_id_taken"


class JobFailedError(HeadraceError):
    """A job stopped because of a failure."""

    code = "job_failed"


class TaskFailedError(JobFailedError):
    """Spark gave up on a batch; another try may succeed."""

    code = "task_failed"
    retriable = True


class ChannelError(JobFailedError):
    """A channel between the tasks of a job and its driver broke, or brought what it must not."""

    code = "channel"
    retriable = True


class JavaEndedError(JobFailedError):
    """The Java process that runs Spark ended, or is of no use; the job goes on in a new one."""

    code = "java_ended"
    retriable = True


class EngineAwayError(JobFailedError):
    """The engine of a Connect worker cannot do this now: it died, or its brokers are away."""

    code = "engine_away"
    retriable = True
