"""What a job does about bad records, hung operators, full memory and a commit topic that is away."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from headrace import serdes
from headrace.client import Producer
from headrace.errors import BatchTimeoutError, InputMissingError, RollbackError, UserCodeError
from headrace.streams import StreamBuilder
from headrace.topology import Topology
from tests.clusters import Cluster
from tests.faults import memory_program
from tests.faults.broker import make_lines, running_broker, send
from tests.faults.local_driver import LocalDriver
from tests.faults.verification import problems, read_results
from tests.spark.pipelines import Rig

NUMBERS = [str(number) for number in range(30)]
POISON = "17"


@pytest.fixture
def cluster(embedded: Cluster) -> Cluster:
    return embedded


def copying(name: str, source: str, sink: str, function: Callable[[str], str]) -> Topology:
    builder = StreamBuilder(name)
    builder.source(source, serdes.string).map_values(function, name="copy").sink(
        sink, serdes.string
    )
    return builder.build()


def refuse_poison(number: str) -> str:
    if number == POISON:
        raise ValueError("poison")
    return number


def bodies(rig: Rig, topic: str) -> Counter[str]:
    return Counter(body.decode() for _, body in rig.read(topic))


def test_poison_record_halts_the_job_and_is_named(rig: Rig) -> None:
    numbers, copies = rig.topic(queues=1), rig.topic()
    rig.send(numbers, NUMBERS)
    job = copying(f"halt-{numbers}", numbers, copies, refuse_poison)
    for _ in range(2):
        with LocalDriver(rig.namesrv, rig.folder, 10, job=job) as driver:
            with pytest.raises(UserCodeError, match=f"'{numbers}', queue 0, offset {POISON}"):
                driver.catch_up()
            assert list(driver.record.offsets.values()) == [10]
    assert bodies(rig, copies) == Counter(NUMBERS[:10])


def test_poison_record_is_one_dead_letter_in_the_transaction_over_roll_backs(rig: Rig) -> None:
    numbers, copies, dead = rig.topic(queues=1), rig.topic(), rig.topic()
    rig.send(numbers, NUMBERS)
    job = copying(f"dead-{numbers}", numbers, copies, refuse_poison)
    for _ in range(2):
        # The batch with the poison is staged, and rolled back.
        with LocalDriver(rig.namesrv, rig.folder, job=job, poison=f"topic:{dead}") as driver:
            driver.process()
            assert bodies(rig, dead) == Counter()
    with LocalDriver(rig.namesrv, rig.folder, job=job, poison=f"topic:{dead}") as driver:
        driver.catch_up()
        assert driver.record.counters["dead_lettered:copy"] == 1
    assert bodies(rig, dead) == Counter([POISON])
    assert bodies(rig, copies) == Counter(NUMBERS) - Counter([POISON])


def test_operator_with_a_policy_of_its_own_keeps_it(rig: Rig) -> None:
    numbers, copies, dead, own = rig.topic(queues=1), rig.topic(), rig.topic(), rig.topic()
    rig.send(numbers, NUMBERS)
    builder = StreamBuilder(f"own-{numbers}")
    builder.source(numbers, serdes.string).map_values(
        refuse_poison, on_error=f"topic:{own}"
    ).map_values(lambda number: 10 // (int(number) - 3)).sink(copies, serdes.json)
    job, poison = builder.build(), f"topic:{dead}"
    with LocalDriver(rig.namesrv, rig.folder, 100, job=job, poison=poison) as driver:
        driver.catch_up()
    assert (bodies(rig, own), bodies(rig, dead)) == (Counter([POISON]), Counter(["3"]))


@pytest.mark.parametrize("place", ["source", "function", "sink"])
def test_user_code_may_ask_for_a_roll_back_and_nothing_of_the_batch_is_left(
    rig: Rig, place: str
) -> None:
    numbers, copies = rig.topic(queues=1), rig.topic()
    rig.send(numbers, NUMBERS)
    asked = rig.folder / "asked"

    def ask(number: str) -> str:
        if number == POISON:
            with asked.open("a") as counted:
                counted.write(number)
            if len(asked.read_text()) <= 2 * len(POISON):
                raise RollbackError("the server is away")
        return number

    def at(here: str, number: str) -> str:
        return ask(number) if place == here else number

    builder = StreamBuilder(f"ask-{numbers}")
    builder.source(numbers, lambda body: at("source", body.decode())).map_values(
        lambda number: at("function", number)
    ).sink(copies, lambda number: at("sink", number).encode())
    job = builder.build()
    for _ in range(2):
        # A record that asks for it is no bad record, whatever the policy for those is.
        with (
            LocalDriver(rig.namesrv, rig.folder, job=job, poison="skip") as driver,
            pytest.raises(RollbackError, match="away"),
        ):
            driver.catch_up()
    with LocalDriver(rig.namesrv, rig.folder, job=job, poison="skip") as driver:
        driver.catch_up()
    assert bodies(rig, copies) == Counter(NUMBERS)


def test_hung_operator_is_named_and_the_batch_done_again(rig: Rig) -> None:
    numbers, copies = rig.topic(queues=1), rig.topic()
    rig.send(numbers, NUMBERS)
    flag = rig.folder / "hung"

    def hang_once(number: str) -> str:
        if number == POISON and not flag.exists():
            flag.touch()
            time.sleep(60)
        return number

    job = copying(f"hung-{numbers}", numbers, copies, hang_once)
    limit = timedelta(seconds=0.5)
    with LocalDriver(rig.namesrv, rig.folder, job=job, batch_timeout=limit) as driver:
        with pytest.raises(
            BatchTimeoutError, match="operator 'copy' did not end batch 1"
        ) as caught:
            driver.process()
        assert "time.sleep(60)" in str(caught.value)
    with LocalDriver(rig.namesrv, rig.folder, job=job, batch_timeout=limit) as driver:
        driver.catch_up()
    assert bodies(rig, copies) == Counter(NUMBERS)


@pytest.mark.parametrize("seconds", [3.0, pytest.param(30.0, marks=pytest.mark.soak)])
def test_commit_topic_that_is_away_is_waited_for_and_no_batch_is_missing(
    tmp_path: Path, seconds: float
) -> None:
    lines = make_lines(100)
    with running_broker(tmp_path / "broker") as broker:
        send(broker.address, lines)
        with LocalDriver(broker.address, tmp_path / "state") as driver:
            driver.commit(driver.process())
            staged = driver.process()
            broker.kill()
            back = threading.Timer(seconds, broker.restart)
            back.start()
            began = time.monotonic()
            driver.commit(staged)
            assert time.monotonic() - began >= seconds
            back.join()
            driver.catch_up()
            assert driver.epoch == 1
        assert problems(read_results(broker.address), lines) == []


def test_no_batch_begins_before_the_one_before_is_committed(rig: Rig) -> None:
    numbers, copies = rig.topic(queues=1), rig.topic()
    rig.send(numbers, NUMBERS)
    job = copying(f"slow-{numbers}", numbers, copies, lambda number: number)
    with LocalDriver(rig.namesrv, rig.folder, 10, job=job) as driver:
        # However slow the sink is: the source reads nothing meanwhile.
        first = driver.process()
        with pytest.raises(InputMissingError, match=r"come to batch 1 .* with batch 0 of epoch 1"):
            driver.process()
        driver.commit(first)
        assert driver.plan() is not None


_MESSAGE, _MESSAGES = 64 << 10, 1_200
_LIMIT = 2 << 20


@pytest.mark.slow
def test_memory_of_a_batch_is_bounded_by_its_bytes(rig: Rig) -> None:
    blobs, copies = rig.topic(queues=4), rig.topic()
    producer = Producer(rig.client)
    for queue in rig.client.queues(blobs, for_="write"):
        for _ in range(_MESSAGES // 4 // 50):
            producer.send_columns(queue, pa.array([bytes(_MESSAGE)] * 50, pa.binary()))

    def grown(max_bytes: int) -> tuple[int, int, int]:
        done = subprocess.run(
            [
                *(sys.executable, "-m", memory_program.__name__),
                *(rig.namesrv, str(rig.folder / str(max_bytes)), blobs, copies, str(max_bytes)),
            ],
            check=True,
            capture_output=True,
            text=True,
            timeout=110,
        )
        first, rest, batches = map(int, done.stdout.split())
        return first, rest, batches

    total = _MESSAGE * _MESSAGES
    first, rest, batches = grown(_LIMIT)
    assert batches >= total // _LIMIT
    unbounded, _, one = grown(1 << 40)
    assert one == 1
    print(f"{batches} batches: {first >> 20} MiB, then {rest >> 20}; one: {unbounded >> 20} MiB")
    # However many batches there are, the third needs no more than the second did.
    assert rest < 8 * _LIMIT
    assert first + rest < total < unbounded
