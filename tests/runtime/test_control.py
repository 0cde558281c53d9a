"""What a batch tells its tasks: enough for each, and no more with each further partition."""

from __future__ import annotations

import msgspec
from hypothesis import given, strategies as st

from headrace.protocol.transactions import StateSummary
from headrace.runtime.control import BatchControl, Control, Heading, control_blocks, queue_runs
from headrace.runtime.event_time.watermarks import clock_times, origin_name


def batch_control(partitions: int, *, read: int) -> BatchControl:
    """Give that of a job as wide as its topics, of which a batch reads so many queues."""
    numbers = range(partitions)
    queues = {topic: [f"{topic}@b@{n}" for n in numbers] for topic in ("in", "out", "state")}
    origins = [origin_name("source", queue) for queue in queues["in"]]
    origins += [origin_name("select-timestamp", str(number)) for number in numbers]
    watermarks = dict.fromkeys(origins, 1000)
    moved = set(queues["in"][:read])

    def mover(origin: str) -> object:
        place = origin.partition("/")[2]
        return place if place.isdecimal() else place in moved

    return BatchControl(
        common=Control(
            job="wide",
            epoch=2,
            batch=7,
            partitions=partitions,
            clock=5_000,
            topics={topic: queue_runs(names) for topic, names in queues.items()},
            clocks=clock_times(origins, watermarks, [], 1_000, mover),
        ),
        states=[
            StateSummary(
                store="count",
                partition=number,
                count=1,
                checksum=2**63,
                epoch=2,
                batch=6,
                attempt=number,
                end_offset=9,
            )
            for number in numbers
        ],
        origins=origins,
        watermarks=watermarks,
        heading=Heading(seen=watermarks, idle=origins[::2]),
    )


def told_bytes(partitions: int) -> int:
    """Count what one split that reads one queue, and all tasks of two stages behind it, get."""
    control = batch_control(partitions, read=1)
    blocks = list(control_blocks(control, 3))
    assert len(blocks) == 2 * partitions
    split = msgspec.json.encode(control.of_splits([["in@b@0"]])[0])
    return len(split) + len(msgspec.json.encode(control)) + sum(len(b.payload) for b in blocks)


def test_what_a_batch_tells_grows_with_the_partitions_and_not_with_their_square() -> None:
    assert told_bytes(1024) < 17 * told_bytes(64)
    assert told_bytes(1024) < 2_000_000


def test_every_task_is_told_of_its_own_place_alone() -> None:
    control = batch_control(4, read=2)
    first, second = control.of_splits([["in@b@0"], ["in@b@1"]])
    assert first.origins == ["source/in@b@0"]
    assert first.idle == ["source/in@b@0"]
    assert first.heading == control.heading
    assert (second.origins, second.idle, second.heading) == (["source/in@b@1"], [], None)
    later = control.of_partitions()
    assert [own.origins for own in later] == [[f"select-timestamp/{n}"] for n in range(4)]
    assert [[state.partition for state in own.states] for own in later] == [[0], [1], [2], [3]]
    assert later[3].watermarks == {"select-timestamp/3": 1_000}
    assert later[3].queues("out") == [f"out@b@{number}" for number in range(4)]
    # Of all others it knows how many stand where: two queues that are read, two that are not.
    assert later[3].clocks["source"].lowest == {1_000: 2}
    assert later[3].clocks["select-timestamp"].lowest == {1_000: 4}


_PLACES = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 2**31 - 1)), unique=True, max_size=20
)


@given(_PLACES, st.booleans())
def test_queues_come_back_from_their_runs_in_order(
    places: list[tuple[str, int]], ordered: bool
) -> None:
    names = [f"t@{broker}@{n}" for broker, n in (sorted(places) if ordered else places)]
    control = msgspec.structs.replace(
        batch_control(1, read=0).common, topics={"t": queue_runs(names)}
    )
    sent = msgspec.json.decode(msgspec.json.encode(control), type=Control)
    assert sent.queues("t") == names
