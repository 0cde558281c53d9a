"""Spark as a scheduler: it calls the planner, runs tasks on workers, and a function per batch.

What is played is what Spark promises, and what it does not: a task that failed is run again, up
to four times; now and then two attempts at one task run side by side; what a dead worker had made
for the next stage is made again, by itself; a query that is stopped is waited for, but not for
ever, and its batch function may still run; Java may die at any moment.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.simulation.threads import sleep
from tests.simulation.world import Killed, Process, SimulatedThread, World, this_thread

T = TypeVar("T")

_ATTEMPTS = 4
#: For how long a query that is stopped is waited for, s; Spark's own patience is ten times that.
_STOP_PATIENCE = 3.0

Rows = list[pa.RecordBatch]


class _Waiter:
    """What one thread waits for and others do: a result, or word that nobody will give it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.done = False
        self._thread: SimulatedThread | None = None

    def set(self) -> None:
        self.done = True
        if self._thread is not None:
            self._world.wake(self._thread)

    def wait(self, seconds: float | None = None) -> bool:
        world = self._world
        deadline = None if seconds is None else world.now + seconds
        while not self.done:
            rest = None if deadline is None else deadline - world.now
            if rest is not None and rest <= 0:
                break
            self._thread = this_thread()
            world.block(rest)
        return self.done


class ProcessDiedError(Exception):
    """The process that was to do something is dead."""


class Call:
    """Something that a thread of another process does."""

    def __init__(self, world: World, process: Process, run: Callable[[], Any]) -> None:
        self._waiter = _Waiter(world)
        self._result: Any = None
        self._error: BaseException | None = None
        self.process = process

        def do() -> None:
            try:
                self._result = run()
            except Killed:
                raise
            except BaseException as error:
                self._error = error
            finally:
                self._waiter.set()

        process.on_death.append(self._died)
        if process.dead:
            self._died()
        else:
            world.start(process, do)

    def _died(self) -> None:
        if not self._waiter.done:
            self._error = ProcessDiedError(self.process.name)
            self._waiter.set()

    @property
    def is_done(self) -> bool:
        """Whether it has come to its end, of whatever kind."""
        return self._waiter.done

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for its end."""
        return self._waiter.wait(seconds)

    def result(self) -> Any:
        """Wait for it and give what it gave, or raise what it raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._result


class TaskNumbers:
    """Stands in for Spark's task context: each attempt has a number that no other of its Spark has."""

    def __init__(self) -> None:
        self._by_thread: dict[SimulatedThread, int] = {}

    def begin(self, number: int) -> None:
        thread = this_thread()
        assert thread is not None
        self._by_thread[thread] = number

    def get(self) -> TaskNumbers:
        return self

    def taskAttemptId(self) -> int:  # noqa: N802 - Spark's name
        thread = this_thread()
        assert thread is not None
        return self._by_thread[thread]


class SimulatedSession:
    """Spark, with a Java process, a planner and workers.

    Parameters
    ----------
    world
        Where it runs.
    driver
        The process that started it.
    workers
        How many workers there are.
    machines
        Where they run.
    numbers
        Of the attempts at tasks.
    """

    def __init__(
        self, world: World, driver: Process, machines: Sequence[str], numbers: TaskNumbers
    ) -> None:
        self.world = world
        self.driver = driver
        self.numbers = numbers
        self._machines = machines
        self._generation = itertools.count(1)
        #: As Spark numbers attempts: each Java begins anew.
        self._attempts = itertools.count()
        self.java = self._make("java", driver.machine)
        #: One process plans the batches of a query; it lives as long as the query.
        self.workers = [
            self._make(f"worker{number}", machine) for number, machine in enumerate(machines)
        ]
        driver.on_death.append(self.end)
        self.java.on_death.append(self._java_died)
        self._sources: dict[str, Any] = {}
        #: How often what a task made for the next stage is made again.
        self.losses = 0.03

    def _make(self, kind: str, machine: str) -> Process:
        return self.world.process(f"{self.driver.name}.{kind}.{next(self._generation)}", machine)

    def end(self) -> None:
        """End it: Java, and with it the workers."""
        self.java.kill()

    def _java_died(self) -> None:
        # Workers notice when they next talk to Java.
        for worker in self.workers:
            self.world.after(self.world.chance.uniform(0.0, 0.5), worker.kill)

    def worker(self) -> Process:
        """Choose a worker, a new one where the old one is dead."""
        number = self.world.chance.randrange(len(self.workers))
        if self.workers[number].dead and not self.java.dead:
            self.workers[number] = self._make(f"worker{number}", self._machines[number])
        return self.workers[number]

    def processes(self, count: int) -> list[Process]:
        """Return a process for each task of a gang, none of which runs another task."""
        for number, machine in enumerate(self._machines[:count]):
            if self.workers[number].threads or self.workers[number].dead:
                self.workers[number] = self._make(f"worker{number}", machine)
        return self.workers[:count]

    def planner(self) -> Process:
        """Start the process that plans a query's batches."""
        made = self._make("planner", self.driver.machine)
        self.java.on_death.append(made.kill)
        return made

    def require_java(self) -> None:
        """Raise as Py4J does when Java is gone."""
        self.world.check()
        if self.java.dead:
            raise Py4JNetworkError("Answer from Java side is empty")

    # Spark's own names

    @cached_property
    def sparkContext(self) -> Any:  # noqa: N802
        from tests.simulation.gangs import SimulatedContext

        return SimulatedContext(self)

    @property
    def dataSource(self) -> SimulatedSession:  # noqa: N802
        return self

    def register(self, source: Any) -> None:
        self.require_java()
        self._sources[source.name()] = source

    @property
    def readStream(self) -> SimulatedSession:  # noqa: N802
        return self

    def format(self, name: str) -> _Reader:
        return _Reader(self, self._sources[name])


class _Reader:
    def __init__(self, session: SimulatedSession, source: Any) -> None:
        self._session = session
        self._source = source

    def load(self) -> Frame:
        return Frame(self._session, self._source, [])


class Frame:
    """A plan: a source, and stages behind shuffles."""

    def __init__(
        self, session: SimulatedSession, source: Any, stages: list[tuple[int, Callable[..., Any]]]
    ) -> None:
        self.session = session
        self.source = source
        self.stages = stages
        self._partitions = 0

    def repartitionById(self, partitions: int, _: object) -> Frame:  # noqa: N802
        made = Frame(self.session, self.source, self.stages)
        made._partitions = partitions
        return made

    def mapInArrow(self, run: Callable[..., Any], _: str) -> Frame:  # noqa: N802
        return Frame(self.session, self.source, [*self.stages, (self._partitions, run)])

    @property
    def writeStream(self) -> _Writer:  # noqa: N802
        return _Writer(self)


class _Writer:
    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._on_batch: Callable[[Any, int], None] = lambda *_: None

    def foreachBatch(self, on_batch: Callable[[Any, int], None]) -> _Writer:  # noqa: N802
        self._on_batch = on_batch
        return self

    def option(self, *_: object) -> _Writer:
        return self

    def trigger(self, **_: object) -> _Writer:
        return self

    def start(self) -> SimulatedQuery:
        self._frame.session.require_java()
        return SimulatedQuery(self._frame, self._on_batch)


class SimulatedQuery:
    """A streaming query: a thread of Java's that plans batches and calls a function for each."""

    def __init__(self, frame: Frame, on_batch: Callable[[Any, int], None]) -> None:
        self.session = frame.session
        self.frame = frame
        self.stopping = False
        self._world = frame.session.world
        self._on_batch = on_batch
        self._planner = frame.session.planner()
        self._error: str | None = None
        self._thread = Call(self._world, self.session.java, self._run)
        #: Tasks that run for it.
        self.tasks: list[Call] = []

    @property
    def isActive(self) -> bool:  # noqa: N802
        self.session.require_java()
        return not self._thread.is_done

    def awaitTermination(self) -> None:  # noqa: N802
        self._thread.wait()
        self.session.require_java()
        if self._error is not None:
            raise StreamingQueryException(self._error)

    def stop(self) -> None:
        """Have it end; whoever waits gives up after a while, and it may run on."""
        self.session.require_java()
        self.stopping = True
        chance = self._world.chance
        for task in self.tasks:
            # A task is told to end; Python does not look, so its worker is killed in the end.
            if not task.is_done and chance.random() < 0.5:
                self._world.after(chance.uniform(0.0, 2.0), partial(self._end_task, task))
        self._thread.wait(_STOP_PATIENCE)

    def _end_task(self, task: Call) -> None:
        if not task.is_done:
            task.process.kill()

    def _run(self) -> None:
        try:
            self._batches()
        except ProcessDiedError as error:
            self._error = f"{error} is gone"
        except Exception as error:
            self._error = f"{type(error).__name__}: {error}"
        finally:
            self._planner.kill()

    def _ask_planner(self, run: Callable[[], T]) -> T:
        result: T = Call(self._world, self._planner, run).result()
        return result

    def _batches(self) -> None:
        world = self._world
        reader = self._ask_planner(lambda: self.frame.source({}).streamReader(None))
        at = self._ask_planner(reader.initialOffset)
        for number in itertools.count():
            end = at
            while end == at:
                if self.stopping:
                    return
                end = self._ask_planner(partial(reader.latestOffset, at, ReadAllAvailable()))
                if end == at:
                    sleep(world, 0.02)
            splits = self._ask_planner(partial(reader.partitions, at, end))
            batch = SimulatedBatch(self, reader, splits)
            # Called from a thread of Py4J's, which nobody in Python joins.
            call = Call(world, self.session.driver, partial(self._on_batch, batch, number))
            call.result()
            at = end


class SimulatedBatch:
    """The rows of a batch, which are made when somebody asks for them."""

    def __init__(self, query: SimulatedQuery, reader: Any, splits: Sequence[Any]) -> None:
        self._query = query
        self._session = query.session
        self._world = query.session.world
        self._reader = reader
        self._splits = splits

    def toArrow(self) -> pa.Table:  # noqa: N802
        """Run the stages, one after the other."""
        session, frame = self._session, self._query.frame
        session.require_java()
        # A worker gets readers and functions pickled: nothing of the planner's memory.
        source = frame.source
        made: list[Callable[[], Rows]] = [
            partial(self._read, source, split) for split in self._splits
        ]
        rows = self._stage(made)
        for partitions, run in frame.stages:
            shares = [_share(rows, partition, partitions) for partition in range(partitions)]
            remade = self._lost_outputs(made, rows)
            if remade is not None:
                # Only some partitions wait for what was lost; the others have theirs.
                for partition in range(partitions):
                    if self._world.chance.random() < 0.5:
                        shares[partition] = _share(remade, partition, partitions)
            made = [partial(_mapped, run, share) for share in shares]
            rows = self._stage(made)
        return pa.Table.from_batches([batch for each in rows for batch in each], schema=_schema())

    def _read(self, source: Any, split: Any) -> Rows:
        return list(source({}).streamReader(None).read(split))

    def _lost_outputs(self, made: list[Callable[[], Rows]], rows: list[Rows]) -> list[Rows] | None:
        """Make again what a dead worker had kept for the next stage, now and then."""
        chance = self._world.chance
        if not rows or chance.random() >= self._session.losses:
            return None
        lost = chance.randrange(len(rows))
        self._world.tell(f"{self._session.driver.name}: output of task {lost} is made again")
        again = list(rows)
        (again[lost],) = self._stage([made[lost]])
        return again

    def _stage(self, tasks: list[Callable[[], Rows]]) -> list[Rows]:
        """Run the tasks of a stage side by side."""
        session = self._session
        calls = [Call(self._world, session.java, partial(self._task, task)) for task in tasks]
        try:
            return [call.result() for call in calls]
        except ProcessDiedError:
            session.require_java()
            raise

    def _task(self, run: Callable[[], Rows]) -> Rows:
        """Run a task: again where it failed, at times twice side by side."""
        chance = self._world.chance
        for attempt in itertools.count(1):
            if self._query.stopping:
                raise PySparkException("the job was cancelled")
            calls = [self._attempt(run)]
            if chance.random() < 0.05:
                calls.append(self._attempt(run))
            chosen = chance.choice(calls)
            try:
                rows: Rows = chosen.result()
            except ProcessDiedError as error:
                if attempt == _ATTEMPTS:
                    raise PySparkException("a worker died too often") from error
            except Exception as error:
                if attempt == _ATTEMPTS:
                    raise PySparkException(f"Job aborted due to stage failure: {error}") from error
            else:
                return rows
        raise AssertionError

    def _attempt(self, run: Callable[[], Rows]) -> Call:
        session = self._session

        def begin() -> Rows:
            session.numbers.begin(next(session._attempts))
            return run()

        call = Call(self._world, session.worker(), begin)
        self._query.tasks = [*(each for each in self._query.tasks if not each.is_done), call]
        return call


def _schema() -> pa.Schema:
    from headrace.spark.source import rows_of

    return rows_of([]).schema


def _share(rows: list[Rows], partition: int, partitions: int) -> Rows:
    """Give the rows that a shuffle brings to a partition."""
    found = []
    for batches in rows:
        for batch in batches:
            chosen = pa.array(
                [number % partitions == partition for number in batch.column(0).to_pylist()],
                pa.bool_(),
            )
            found.append(batch.filter(chosen))
    return found


def _mapped(
    run: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], rows: Rows
) -> Rows:
    return list(run(iter(rows)))
