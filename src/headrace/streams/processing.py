"""The low level in the front door: ``process``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from headrace import serdes
from headrace.errors import TopologyError
from headrace.streams._records import BaseStream
from headrace.streams.sources import accepts
from headrace.topology import KeyedProcess, Process
from headrace.topology.names import check_operator_name

if TYPE_CHECKING:
    from headrace.serdes import Serde
    from headrace.streams.sources import Flow, NextOperator
    from headrace.streams.stream import ProcessedStream
    from headrace.topology import ErrorPolicy, Processor, StateSpec, TimerSpec

__all__ = ["Processing"]

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")

_LONGEST_NAME = 100


class Processing(BaseStream[K, V]):
    """Records through a processor of the user's."""

    def process(
        self,
        factory: Callable[[], Processor[K, V, K2, V2]],
        *,
        states: Iterable[StateSpec] = (),
        timers: Iterable[TimerSpec] = (),
        outputs: Iterable[str] = (),
        lag: timedelta = timedelta(0),
        name: str | None = None,
        serde: Serde[V2] | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> ProcessedStream[K2, V2]:
        """Hand each record to a processor that you write.

        With states or timers the records of a key meet in one task.  Late records come too: a
        processor decides itself what they are worth.  An error in a timer stops the job.

        Parameters
        ----------
        factory
            The processor's class, or what makes one without arguments.
        states
            State that is kept for each key: ``value_state``, ``map_state``, ``list_state``,
            ``window_state`` of :mod:`headrace.topology`.
        timers
            Timers that can be set for each key: ``event_timer``, ``wall_timer``.
        outputs
            Names of children beside the stream that this gives; see
            :meth:`ProcessedStream.output`.
        lag
            How much older than event time the records may be that the processor gives; what
            is older still may be late for what follows.
        name
            Name of the operator, and of its state store.
        serde
            Writes the values that it gives.
        on_error
            What becomes of a record on which ``process`` raises; see :meth:`map_values`.  What it
            did to state, and what it forwarded, is taken back.

        Raises
        ------
        TopologyError
            There are states or timers and the stream has no keys; two have the same name; the
            values are of a type without a serde.

        Examples
        --------
        >>> from headrace import Context, Processor, Record, StreamBuilder, TopologyTestDriver
        >>> from headrace import serdes, value_state
        >>> class Changes(Processor[str, float, str, float]):
        ...     def init(self, context: Context) -> None:
        ...         self.context, self.last = context, context.value("last")
        ...
        ...     def process(self, record: Record[str, float]) -> None:
        ...         if record.value != self.last.get():
        ...             self.last.put(record.value)
        ...             self.context.forward(record)
        >>> builder = StreamBuilder("job")
        >>> sensors = builder.source("degrees", serdes.with_key(serdes.float))
        >>> changes = sensors.process(Changes, states=[value_state("last", serdes.float)])
        >>> changes.sink("changes", serdes.float)
        <end of 'sink-changes'>
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     for degrees in (20.5, 20.5, 21.0):
        ...         driver.input("degrees", serdes.float).send(degrees, key="hall")
        ...     [record.value for record in driver.output("changes", serdes.float).read_all()]
        [20.5, 21.0]
        """
        from headrace.streams.stream import ProcessedStream

        step = self._flow.begin("process", name, on_error=on_error)
        _check_factory(factory, step)
        kept, alarms, names = tuple(states), tuple(timers), tuple(outputs)
        _check_names([*(s.name for s in kept), *(t.name for t in alarms)], names, step)
        fields = {**step.fields, "factory": factory, "outputs": names}
        if kept or alarms:
            operator: Process = _keyed(self._flow, step, fields, kept, alarms, lag)
        else:
            operator = Process(**fields)
        given = step.add(operator, key=step.known(Any), value=step.known(Any, serde))
        return ProcessedStream(given, operator)


def _check_factory(factory: object, step: NextOperator) -> None:
    if not callable(factory) or not accepts(factory, 0):
        raise TopologyError(
            f"process at {step.caller.origin} needs a class of processors, not {factory!r:.100}",
            hint="give it a subclass of Processor, or a function without parameters that makes one",
        )


def _keyed(
    flow: Flow,
    step: NextOperator,
    fields: dict[str, Any],
    states: tuple[StateSpec, ...],
    timers: tuple[TimerSpec, ...],
    lag: timedelta,
) -> KeyedProcess:
    if flow.key.hint is type(None):
        raise TopologyError(
            f"process at {step.caller.origin} declares states or timers, which belong to keys,"
            f" and the records of '{flow.operator}' have none",
            hint="give them keys first: key_by(...)",
        )
    flow.key.check_key(step.name)
    return KeyedProcess(
        **fields,
        value_serde=flow.value.needed_serde(step.name, "keeps state by key"),
        key_serde=serdes.key,
        states=states,
        timers=timers,
        lag=lag,
    )


def _check_names(declared: list[str], outputs: tuple[str, ...], step: NextOperator) -> None:
    origin = step.caller.origin
    for name, times in [*Counter(declared).items(), *Counter(outputs).items()]:
        check_operator_name("job", name, f"declared at {origin}", stateful=False)
        if times > 1 or len(name) > _LONGEST_NAME:
            problem = "twice" if times > 1 else f"with more than {_LONGEST_NAME} characters"
            raise TopologyError(
                f"process at {origin} declares '{name}' {problem}", hint="choose another name"
            )
