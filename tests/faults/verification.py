"""The checks after faults: what a job read against what it wrote, keeps and says it did."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from headrace import Topology, serdes
from headrace.client import Client, PullConsumer
from headrace.keys import decode_keys, key_from_properties
from headrace.protocol.journal_tags import TAG, FirstCopies, parse_tags
from headrace.protocol.messages import StoredMessage
from headrace.protocol.transactions import CommitReader, CommitRecord, Verdict, commit_in
from headrace.runtime.state.home import StateTopicReader
from tests.faults.word_pipeline import EACH, LATEST, LINES, pipeline

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Results:
    """Everything that the topics of the job hold."""

    #: Lines of the source topic, in no order.
    lines: list[str]
    #: Values by word in the order in which they were published.
    latest: Mapping[str, list[int]]
    each: Mapping[str, list[int]]
    #: Last value of each word, by state store.
    states: Mapping[str, dict[str, int]]
    #: The commit topic, oldest first, and the offset of each record.
    history: list[CommitRecord]
    places: list[int]
    #: Offsets of its messages that only delete older ones.
    empty: set[int]
    #: End of each source queue, and the offset of the job's group.
    ends: Mapping[str, int]
    committed: Mapping[str, int | None]


def read_results(namesrv: str, mark: str = "") -> Results:
    """Read all topics of the job, as a reader does who takes only what is committed."""
    job = pipeline(mark)
    with Client(namesrv) as client:
        consumer = PullConsumer(client, job.name)
        sources = client.queues(LINES + mark)
        messages = [(m.queue_offset, commit_in(m)) for m in messages_of(client, job.commit_topic)]
        commits = [(offset, record) for offset, record in messages if record is not None]
        return Results(
            lines=[message.body.decode() for message in messages_of(client, LINES + mark)],
            latest=_by_word(client, LATEST + mark),
            each=_by_word(client, EACH + mark),
            states={store: _state(client, job, store) for store in job.state_topics},
            history=[record for _, record in commits],
            places=[offset for offset, _ in commits],
            empty={offset for offset, record in messages if record is None},
            ends={queue.name: consumer.end_offset(queue) for queue in sources},
            committed={queue.name: consumer.committed(queue) for queue in sources},
        )


def problems(results: Results, sent: Collection[str] = ()) -> list[str]:
    """List everything that is not as it would be without faults; exactly once means none.

    Parameters
    ----------
    results
        What is there when the job has caught up.
    sent
        Lines that a broker confirmed: they must be among the input.
    """
    counts = Counter(word for line in results.lines for word in line.split())
    return [
        *_input_problems(results, sent),
        *_latest_problems(results.latest, counts),
        *_each_problems(results.each, counts),
        *_state_problems(results.states, counts),
        *_offset_problems(results),
        *history_problems(results.history, results.places, results.empty),
    ]


def messages_of(client: Client, topic: str) -> Iterator[StoredMessage]:
    """Give all messages of a topic, queue by queue."""
    consumer = PullConsumer(client)
    for queue in client.queues(topic):
        for result in consumer.blocks(queue, 0, consumer.end_offset(queue)):
            yield from result.messages()


def bodies_by_key(client: Client, topic: str) -> dict[str, list[bytes]]:
    """Read the bodies of each key, which are in one queue, in their order."""
    found: dict[str, list[bytes]] = defaultdict(list)
    for message in messages_of(client, topic):
        found[key_from_properties(message.properties)].append(message.body)
    return dict(found)


def first_copies(messages: Iterator[StoredMessage]) -> Iterator[StoredMessage]:
    """Leave late repetitions out, of which each queue tells by the tags on RocketMQ."""
    queues: dict[int, FirstCopies] = defaultdict(FirstCopies)
    for message in messages:
        tag = message.properties.get(TAG)
        column = pa.array([None if tag is None else tag.encode()], pa.binary())
        if queues[message.queue_id].among(parse_tags(column))[0]:
            yield message


def _by_word(client: Client, topic: str) -> dict[str, list[int]]:
    # A word has one queue, so the order in the queue is the order of publication.
    values: dict[str, list[int]] = defaultdict(list)
    for message in first_copies(messages_of(client, topic)):
        values[key_from_properties(message.properties)].append(int(message.body))
    return values


def _state(client: Client, job: Topology, store: str) -> dict[str, int]:
    topic = job.state_topics[store]
    queues = sorted(client.queues(topic))
    consumer = PullConsumer(client)
    names = [queue.name for queue in queues]
    reader = StateTopicReader(consumer, job.state_topics, lambda _: names, job.name)
    found: dict[str, int] = {}
    for number, queue in enumerate(queues):
        for block in reader.read(store, number, 0, consumer.end_offset(queue)):
            for word, value in zip(decode_keys(block.keys), block.values, strict=True):
                assert value is not None, f"{store} deleted {word!r}"
                found[word] = serdes.int.deserialize(value)
    return found


def _input_problems(results: Results, sent: Collection[str]) -> Iterator[str]:
    if lost := set(sent) - set(results.lines):
        yield f"confirmed lines are not in the source topic: {_some(lost)}"


def _latest_problems(latest: Mapping[str, list[int]], counts: Counter[str]) -> Iterator[str]:
    last = {word: values[-1] for word, values in latest.items()}
    yield from _differences(f"last values in topic {LATEST}", last, counts)
    repeated = {
        f"{word}: {values}"
        for word, values in latest.items()
        if any(after <= before for before, after in itertools.pairwise(values))
    }
    if repeated:
        yield f"values in topic {LATEST} do not rise: {_some(repeated)}"


def _each_problems(each: Mapping[str, list[int]], counts: Counter[str]) -> Iterator[str]:
    pairs = Counter((word, n) for word, values in each.items() for n in values)
    wanted = {(word, n) for word, count in counts.items() for n in range(1, count + 1)}
    if twice := {pair for pair, times in pairs.items() if times > 1}:
        yield f"results in topic {EACH} published more than once: {_some(twice)}"
    if lost := wanted - set(pairs):
        yield f"results missing in topic {EACH}: {_some(lost)}"
    if strange := set(pairs) - wanted:
        yield f"results in topic {EACH} that no input gives: {_some(strange)}"
    if tangled := {word for word, values in each.items() if values != sorted(values)}:
        yield f"results in topic {EACH} out of order: {_some(tangled)}"


def _state_problems(states: Mapping[str, dict[str, int]], counts: Counter[str]) -> Iterator[str]:
    for store, state in states.items():
        yield from _differences(f"state of {store}", state, counts)


def _offset_problems(results: Results) -> Iterator[str]:
    if results.committed != results.ends:
        yield f"offsets of the group {results.committed}, ends of the queues {results.ends}"
    last = _newest(results)
    if last is None:
        yield "the commit topic is empty"
        return
    if {queue: last.offsets.get(queue, 0) for queue in results.ends} != results.ends:
        yield f"offsets of the last commit {last.offsets}, ends of the queues {results.ends}"
    if last.counters.get("records_in", 0) != len(results.lines):
        yield f"the last commit counts {last.counters} for {len(results.lines)} lines"
    published = sum(map(len, [*results.latest.values(), *results.each.values()]))
    if last.counters.get("records_out", 0) != published:
        yield f"the last commit counts {last.counters} for {published} results"


def _newest(results: Results) -> CommitRecord | None:
    """Give the newest record; on RocketMQ, where drivers have names, the newest that counts."""
    log = CommitReader()
    for place, record in zip(results.places, results.history, strict=True):
        log.feed(place, record)
    newest = results.history[-1] if results.history else None
    return log.record if newest is not None and newest.driver else newest


def history_problems(
    history: list[CommitRecord],
    places: list[int] | None = None,
    empty: Collection[int] = (),
) -> Iterator[str]:
    """Hold a commit topic against its rules: epochs only rise, each batch follows the last.

    On RocketMQ anybody may append a record; those that do not count are left out here.

    Compaction removes records that a newer one of the same key, the epoch and kind, replaced: so
    many offsets are missing then in front of a commit as batches are.

    Parameters
    ----------
    places
        Offset of each record; without them, none may be missing.
    empty
        Offsets of messages that only delete older records.
    """
    places = list(range(len(history))) if places is None else places
    epoch = batch = 0
    after = 0
    offsets: Mapping[str, int] = {}
    log = CommitReader()
    for place, record in zip(places, history, strict=True):
        if (
            record.driver and log.feed(place, record) is not Verdict.VALID
        ) or record.kind == "close":
            after = place + 1
            continue
        what = f"record {place} of the commit topic ({record.kind} {record.epoch}/{record.batch})"
        missing = sum(offset not in empty for offset in range(after, place))
        is_open = record.kind == "open"
        expected = (epoch + 1, batch) if is_open else (epoch, batch + 1 + missing)
        # Of the log's first epochs nothing may be left.
        first = missing and not after
        if not first and ((record.epoch, record.batch) != expected or (missing and is_open)):
            yield f"{what} does not follow epoch {epoch}, batch {batch} at offset {after}"
        if any(record.offsets.get(queue, 0) < offset for queue, offset in offsets.items()):
            yield f"{what} goes back from {offsets} to {record.offsets}"
        epoch, batch, offsets, after = record.epoch, record.batch, record.offsets, place + 1


def _differences(what: str, found: Mapping[str, int], wanted: Mapping[str, int]) -> Iterator[str]:
    wrong = {
        f"{word}: {found.get(word, 0)} instead of {wanted.get(word, 0)}"
        for word in found.keys() | wanted.keys()
        if found.get(word, 0) != wanted.get(word, 0)
    }
    if wrong:
        yield f"{what}: {_some(wrong)}"


def _some(items: Collection[object]) -> str:
    shown = ", ".join(sorted(map(str, items))[:_SHOWN])
    rest = len(items) - _SHOWN
    return f"{shown} and {rest} more" if rest > 0 else shown
