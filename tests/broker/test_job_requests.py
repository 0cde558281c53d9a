from __future__ import annotations

import errno
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.broker import EmbeddedBroker
from headrace.client import Client, Message, Producer
from headrace.errors import InvalidParameterError
from headrace.protocol.codes import RequestCode, ResponseCode
from headrace.protocol.frames import Command
from headrace.protocol.messages import decode_messages
from headrace.protocol.transactions import (
    CommitAnswer,
    CommitRecord,
    OpenAnswer,
    Position,
    StagedPart,
)
from headrace.store import FileOps
from headrace.store.damage.examination import examine_store, repair_store
from tests.broker.wire import COMMIT_TOPIC, JOB, JobWire, carried_part, sections, staged_part
from tests.without import without

NOT_YET = 19


def epoch(answer: Command) -> int:
    assert answer.code == 0, answer.remark
    return msgspec.json.decode(answer.payload, type=OpenAnswer).epoch


def committed(answer: Command) -> CommitAnswer:
    assert answer.code == 0, answer.remark
    return msgspec.json.decode(answer.payload, type=CommitAnswer)


def bodies(wire: JobWire, topic: str, queue: int = 0) -> list[bytes]:
    answer = wire.pull(topic, queue, maxMsgNums=1000)
    return [] if answer.code == NOT_YET else [m.body for m in decode_messages(answer.payload)]


def commit_records(wire: JobWire) -> list[tuple[str | None, CommitRecord]]:
    answer = wire.pull(COMMIT_TOPIC, maxMsgNums=1000)
    return [
        (m.keys, msgspec.json.decode(m.body, type=CommitRecord))
        for m in decode_messages(answer.payload)
    ]


def run_batch(wire: JobWire, batch: int, body: bytes) -> CommitAnswer:
    assert wire.stage({("out", 0): [body]}, batch=batch).code == 0
    return committed(wire.commit(batch, parts=[staged_part()], offsets={"in@broker-a@0": batch}))


def test_commit_makes_exactly_the_named_parts_visible(wire: JobWire) -> None:
    wire.create("out")
    wire.open()
    wire.stage({("out", 0): [b"a", b"b"], ("out", 1): [b"c"]}, partition=0, attempt=1)
    wire.stage({("out", 0): [b"lost"]}, partition=1, attempt=2)
    wire.stage({("out", 0): [b"d"]}, partition=1, attempt=3, chunk=0)
    wire.stage({("out", 0): [b"e"]}, partition=1, attempt=3, chunk=1)
    assert bodies(wire, "out") == []
    parts = [
        staged_part(partition=0, attempt=1, records=3),
        staged_part(partition=1, attempt=3, chunks=2, records=2),
    ]
    answer = committed(wire.commit(parts=parts))
    assert (answer.batch, answer.already) == (1, False)
    assert bodies(wire, "out", 0) == [b"a", b"b", b"d", b"e"]
    assert bodies(wire, "out", 1) == [b"c"]


def test_job_with_tens_of_thousands_of_positions_commits_and_opens_again(wire: JobWire) -> None:
    offset = {"row": 1000, "size": 123_456, "modified": 1_763_800_000_000_000_000, "done": True}
    positions = {
        f'{{"file":"2026/11/24/part-{number:05}-of-99999.csv"}}': Position(offset=offset)
        for number in range(28_000)
    }
    wire.open()
    assert committed(wire.commit(1, positions=positions)).batch == 1
    opened = msgspec.json.decode(wire.open().payload, type=OpenAnswer)
    assert (opened.epoch, opened.record.positions) == (2, positions)
    assert committed(wire.commit(2, epoch=2, positions=positions)).batch == 2


def test_commit_topic_tells_the_whole_story(wire: JobWire) -> None:
    wire.create("out")
    wire.open()
    run_batch(wire, 1, b"x")
    wire.open()
    story = [(key, record.kind, record.epoch, record.batch) for key, record in commit_records(wire)]
    assert story == [
        ("1-open", "open", 1, 0),
        ("1-commit", "commit", 1, 1),
        ("2-open", "open", 2, 1),
    ]


def test_commit_sets_the_groups_offsets(wire: JobWire) -> None:
    wire.open()
    committed(wire.commit(offsets={"in@broker-a@0": 7, "a@b@broker-a@3": 9}, group="group"))
    for topic, queue, offset in [("in", 0, "7"), ("a@b", 3, "9")]:
        answer = wire.ask(
            RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="group", topic=topic, queueId=queue
        )
        assert answer.ext["offset"] == offset


def test_repeated_commit_gets_the_same_answer_also_after_a_restart(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker, JobWire(broker.address) as wire:
        wire.create("out")
        wire.open()
        first = run_batch(wire, 1, b"x")
        again = committed(wire.commit(parts=[staged_part()], offsets={"in@broker-a@0": 1}))
        assert again == msgspec.structs.replace(first, already=True)
        # The same by its numbers alone: another plan of the batch.
        other = wire.commit(parts=[staged_part()], offsets={"in@broker-a@0": 2})
        assert other.code == ResponseCode.PREDECESSOR_MISMATCH
    with EmbeddedBroker(tmp_path) as broker, JobWire(broker.address) as wire:
        later = committed(wire.commit(parts=[staged_part()], offsets={"in@broker-a@0": 1}))
        assert later == again
        assert bodies(wire, "out") == [b"x"]


def test_what_is_no_commit_is_refused_and_passed_over_at_a_start(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker, JobWire(broker.address) as wire:
        wire.create("out")
        wire.open()
        first = run_batch(wire, 1, b"x")
        topic = COMMIT_TOPIC
        with Client(broker.address) as client:
            producer, (queue,) = Producer(client), client.queues(topic)
            with pytest.raises(InvalidParameterError, match="takes the commits of job"):
                producer.send(Message(topic=topic, body=b"hello", keys="k"), queue)
            # As a release did that took it.
            broker._server._running().jobs.forget(topic)
            for body in (b"hello", b"[]", b"\xff"):
                producer.send(Message(topic=topic, body=body, keys="k"), queue)
            # A topic that a producer has made, of a job that there is not yet.
            wire.create("new-commitTopic")
            producer.send(Message(topic="new-commitTopic", body=b"hello", keys="k"))
    with EmbeddedBroker(tmp_path) as broker, JobWire(broker.address) as wire:
        again = committed(wire.commit(parts=[staged_part()], offsets={"in@broker-a@0": 1}))
        assert (again.batch, again.already) == (1, True)
        assert again.position > first.position  # what was sent behind it
        run_batch(wire, 2, b"y")
        assert bodies(wire, "out") == [b"x", b"y"]


def test_unit_that_cannot_be_read_back_is_known_all_the_same(
    wire: JobWire, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.create("out")
    wire.open()
    wire.stage({("out", 0): [b"x"]})

    def no_descriptor(_ops: FileOps, _fd: int, _size: int) -> memoryview:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(FileOps, "map", no_descriptor)
        answers = [wire.commit(parts=[staged_part()]) for _ in range(2)]
        opened = [epoch(wire.open()) for _ in range(2)]
    assert [committed(answer).already for answer in answers] == [False, True]
    assert opened == [2, 3]
    assert bodies(wire, "out") == [b"x"]
    story = [(record.kind, record.epoch, record.batch) for _, record in commit_records(wire)]
    assert story == [("open", 1, 0), ("commit", 1, 1), ("open", 2, 1), ("open", 3, 1)]


@pytest.mark.parametrize("behind", [b"", b"hello"])
def test_job_whose_newest_commit_a_repair_fenced_off_does_not_open(
    tmp_path: Path, behind: bytes
) -> None:
    with EmbeddedBroker(tmp_path) as broker, JobWire(broker.address) as wire:
        wire.create("out")
        wire.open()
        run_batch(wire, 1, b"x")
        run_batch(wire, 2, b"y")
        if behind:
            # As a release did that took it.
            broker._server._running().jobs.forget(COMMIT_TOPIC)
            answer = wire.put(COMMIT_TOPIC, behind, i="KEYS\1k\2")
            assert answer.code == 0, answer.remark
    (file,) = (tmp_path / "store" / "log").iterdir()
    content = bytearray(file.read_bytes())
    content[content.rindex(b'"kind":"commit"')] ^= 1
    file.write_bytes(content)
    store, closed = tmp_path / "store", "the job of topic 'job-commitTopic' does not open"
    (damage,) = examine_store(store).damage
    assert repair_store(store, lambda _plan: True)
    fence, *strangers = examine_store(store).findings
    # The record that was sent behind it is the newest one, by the log alone.
    assert (closed in damage.means, closed in fence.means) == (not behind, not behind)
    stranger = "a record is no commit: topic 'job-commitTopic', queue 0, offset 3"
    assert [each.text for each in strangers] == ([stranger] if behind else [])
    with EmbeddedBroker(tmp_path) as broker, JobWire(broker.address) as wire:
        for answer in (wire.open(), wire.commit(3)):
            assert answer.code == ResponseCode.COMMIT_LOST
            assert re.search(
                r"offset 2 of topic 'job-commitTopic'.*copy", answer.remark or "", re.DOTALL
            )
        assert wire.stage({("out", 0): [b"z"]}, batch=3).code == ResponseCode.INVALID_PARAMETER
        assert bodies(wire, "out") == [b"x", b"y"]
        # What the message names as the way to begin anew.
        assert wire.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=COMMIT_TOPIC).code == 0
        assert epoch(wire.open()) == 1


def test_restart_keeps_epoch_batch_and_staged_parts(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker, JobWire(broker.address) as wire:
        wire.create("out")
        wire.open()
        run_batch(wire, 1, b"x")
        wire.stage({("out", 0): [b"y"]}, batch=2)
    with EmbeddedBroker(tmp_path) as broker, JobWire(broker.address) as wire:
        record = wire.plan(["out"]).record
        assert record is not None
        assert (record.kind, record.epoch, record.batch) == ("commit", 1, 1)
        committed(wire.commit(2, parts=[staged_part()]))
        assert bodies(wire, "out") == [b"x", b"y"]
        assert epoch(wire.open()) == 2


def test_job_whose_commit_topic_was_deleted_begins_without_what_it_had_staged(
    wire: JobWire,
) -> None:
    wire.create("out")
    wire.open()
    wire.stage({("out", 0): [b"x"]})
    assert wire.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=COMMIT_TOPIC).code == 0
    assert epoch(wire.open()) == 1
    # The same attempt by its numbers: those of another Spark.
    assert run_batch(wire, 1, b"y").batch == 1
    assert bodies(wire, "out") == [b"y"]


def test_topic_whose_deletion_failed_half_way_is_deleted_by_the_next(
    wire: JobWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.create("out")
    wire.open()
    run_batch(wire, 1, b"x")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(FileOps, "pwritev", full)
        assert wire.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="out").code != 0
    assert wire.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="out").code == 0
    wire.create("out")
    assert bodies(wire, "out") == []


def test_older_epoch_is_fenced_off(wire: JobWire) -> None:
    wire.create("out")
    assert epoch(wire.open()) == 1
    wire.stage({("out", 0): [b"x"]})
    assert epoch(wire.open()) == 2
    assert wire.commit(parts=[staged_part()]).code == ResponseCode.FENCED
    assert wire.stage({("out", 0): [b"x"]}).code == ResponseCode.FENCED
    assert bodies(wire, "out") == []


def test_commit_that_skips_a_batch_is_refused(wire: JobWire) -> None:
    wire.open()
    assert wire.commit(2).code == ResponseCode.PREDECESSOR_MISMATCH


@pytest.mark.parametrize(
    ("chunks", "records"),
    [(2, 2), (1, 2), (2, 1)],
    ids=["chunk missing", "record missing", "chunk count wrong"],
)
def test_commit_with_a_part_that_is_not_whole_is_refused(
    wire: JobWire, chunks: int, records: int
) -> None:
    wire.create("out")
    wire.open()
    wire.stage({("out", 0): [b"x"]})
    answer = wire.commit(parts=[staged_part(chunks=chunks, records=records)])
    assert answer.code == ResponseCode.STAGED_PART_MISSING
    assert bodies(wire, "out") == []
    assert wire.commit(parts=[staged_part()]).code == 0


def test_a_commit_carries_parts_that_no_request_staged(
    wire: JobWire, broker: EmbeddedBroker
) -> None:
    wire.create("out")
    wire.open()
    wire.stage({("out", 0): [b"a"]}, partition=1)
    parts = [
        carried_part({("out", 0): [b"b"], ("out", 1): [b"c", b"d"]}),
        staged_part(partition=1),
        carried_part({("out", 0): [b"e"], ("out", 1): [b"f"]}, partition=2),
    ]
    first = committed(wire.commit(parts=parts))
    assert committed(wire.commit(parts=parts)) == msgspec.structs.replace(first, already=True)
    assert bodies(wire, "out", 0) == [b"a", b"b", b"e"]
    assert bodies(wire, "out", 1) == [b"c", b"d", b"f"]
    wrong = [
        (carried_part({("out", 0): [b"x"]}, records=2), ResponseCode.STAGED_PART_MISSING),
        (carried_part({("missing", 0): [b"x"]}), ResponseCode.TOPIC_NOT_EXIST),
        (carried_part({("out", 9): [b"x"]}), ResponseCode.INVALID_PARAMETER),
        (cut_short(carried_part({("out", 0): [b"x", b"y"]})), ResponseCode.INVALID_PARAMETER),
        (of_another(carried_part({("out", 0): [b"x"]})), ResponseCode.INVALID_PARAMETER),
    ]
    assert [wire.commit(2, parts=[part]).code for part, _ in wrong] == [code for _, code in wrong]
    assert committed(wire.commit(2)).batch == 2
    assert bodies(wire, "out", 0) == [b"a", b"b", b"e"]


def cut_short(part: StagedPart) -> StagedPart:
    return msgspec.structs.replace(part, sections=part.sections[:-3])


def of_another(part: StagedPart) -> StagedPart:
    """Name another queue than the records do."""
    moved = sections({("out", 1): [b"x"]})
    head = part.sections[: part.sections.index(b"out")]
    return msgspec.structs.replace(part, sections=head + moved[len(head) :])


def test_repeated_chunk_counts_once(wire: JobWire) -> None:
    wire.create("out")
    wire.open()
    for _ in range(2):
        assert wire.stage({("out", 0): [b"x"]}).code == 0
    committed(wire.commit(parts=[staged_part()]))
    assert bodies(wire, "out") == [b"x"]


@pytest.mark.parametrize(
    ("queue", "code"),
    [(("missing", 0), ResponseCode.TOPIC_NOT_EXIST), (("out", 9), ResponseCode.INVALID_PARAMETER)],
)
def test_staging_for_a_queue_that_is_not_there_is_refused(
    wire: JobWire, queue: tuple[str, int], code: int
) -> None:
    wire.create("out")
    wire.open()
    assert wire.stage({queue: [b"x"]}).code == code


def test_what_was_staged_for_old_batches_and_epochs_is_swept(
    wire: JobWire, broker: EmbeddedBroker
) -> None:
    wire.create("out")
    wire.open()
    wire.stage({("out", 0): [b"speculative"]}, attempt=9)
    run_batch(wire, 1, b"x")
    wire.stage({("out", 0): [b"y"]}, batch=2)
    wire.open()
    deadline = time.monotonic() + 10
    while broker.statistics().store.staged_parts and time.monotonic() < deadline:
        time.sleep(0.01)
    assert broker.statistics().store.staged_parts == 0


def test_racing_drivers_commit_each_batch_once(wire: JobWire, broker: EmbeddedBroker) -> None:
    wire.open()
    answers: list[int] = []

    def race(number: int) -> None:
        with JobWire(broker.address) as own:
            answers.append(own.commit(offsets={"in@broker-a@0": number}).code)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [0] + [ResponseCode.PREDECESSOR_MISMATCH] * 7
    assert len(commit_records(wire)) == 2


def test_plan_cuts_all_queues_at_one_position(wire: JobWire) -> None:
    wire.create("in")
    for number in range(6):
        wire.put("in", b"x", number % 2)
    plan = wire.plan(["in"])
    assert plan.record is None
    assert plan.begins == {"in@broker-a@0": 0, "in@broker-a@1": 0}
    assert plan.ends == plan.latest == {"in@broker-a@0": 3, "in@broker-a@1": 3}
    limited = wire.plan(["in"], limit=3)
    assert limited.ends == {"in@broker-a@0": 2, "in@broker-a@1": 1}
    assert limited.latest == plan.latest
    assert limited.position < plan.position
    further = wire.plan(["in"], limited.ends, limit=2)
    assert further.ends == {"in@broker-a@0": 3, "in@broker-a@1": 2}


def test_a_plan_brings_along_messages_of_queues_that_fit(wire: JobWire) -> None:
    wire.create("in")
    for number in range(6):
        wire.put("in", b"%d" % number, number % 2)
    offsets = {"in@broker-a@0": 1, "in@broker-a@1": 0}

    def brought(most: int, **more: int) -> dict[str, list[bytes]]:
        plan = wire.plan(["in"], offsets, messages=most, **more)
        return {
            queue: [message.body for message in decode_messages(block)]
            for queue, block in plan.messages.items()
        }

    whole = {"in@broker-a@0": [b"2", b"4"], "in@broker-a@1": [b"1", b"3", b"5"]}
    assert brought(100_000) == whole
    assert brought(100_000, limit=2) == {"in@broker-a@0": [b"2"], "in@broker-a@1": [b"1"]}
    # A queue comes whole or not at all, and a single message that is too large not either.
    assert brought(300) == {"in@broker-a@0": whole["in@broker-a@0"]}
    assert brought(50) == brought(0) == {}
    assert wire.plan(["in"], {**offsets, "in@broker-a@0": 3}, messages=100_000).messages.keys() == {
        "in@broker-a@1"
    }


def test_plan_waits_for_a_message_and_wakes_at_once(wire: JobWire, broker: EmbeddedBroker) -> None:
    wire.create("in")
    wire.put("in", b"x")
    offsets = {"in@broker-a@0": 1}
    number = wire.start_plan(["in"], offsets, wait=20_000)
    with JobWire(broker.address) as other:
        begin = time.monotonic()
        other.put("in", b"y", 1)
    assert wire.planned(number).ends == {"in@broker-a@0": 1, "in@broker-a@1": 1}
    assert time.monotonic() - begin < 2


def test_plan_gives_up_waiting(wire: JobWire) -> None:
    wire.create("in")
    plan = wire.plan(["in"], wait=30)
    assert plan.ends == plan.begins


def test_plan_of_an_unknown_topic_is_refused(wire: JobWire) -> None:
    answer = wire.receive(wire.start_plan(["missing"]))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


def test_jobs_are_listed_with_their_drivers_also_after_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        with EmbeddedBroker(tmp_path) as broker, JobWire(broker.address) as wire:
            if wire.plan([]).record is None:
                wire.open("host:42")
                committed(wire.commit())
            [job] = msgspec.json.decode(wire.ask(RequestCode.LIST_JOBS).payload)
            assert (job["commit_topic"], job["driver"]) == (COMMIT_TOPIC, "host:42")
            assert (job["record"]["job"], job["record"]["batch"]) == (JOB, 1)


def test_listed_jobs_tell_who_holds_them_and_what_is_staged(wire: JobWire) -> None:
    def listed() -> dict[str, Any]:
        (job,) = msgspec.json.decode(
            wire.ask(RequestCode.LIST_JOBS).payload, type=list[dict[str, Any]]
        )
        return job

    def lock(code: RequestCode) -> None:
        queue = {"topic": COMMIT_TOPIC, "brokerName": "broker-a", "queueId": 0}
        body = {"consumerGroup": JOB, "clientId": "host:42", "mqSet": [queue]}
        wire.ask(code, msgspec.json.encode(body))

    wire.create("out")
    wire.open("host:42")
    assert (listed()["holder"], listed()["staged"]) == ("", [])
    lock(RequestCode.LOCK_BATCH_MQ)
    wire.stage({("out", 0): [b"a", b"b"]}, partition=0, attempt=1)
    wire.stage({("out", 0): [b"c"]}, partition=1, attempt=2)
    told = listed()
    assert told["holder"] == "host:42"
    (staged,) = told["staged"]
    assert staged.pop("size") > 100
    assert staged == {"epoch": 1, "batch": 1, "parts": 2, "records": 3}
    lock(RequestCode.UNLOCK_BATCH_MQ)
    assert listed()["holder"] == ""


def test_malformed_body_is_refused_with_the_reason(wire: JobWire) -> None:
    answer = wire.ask(RequestCode.COMMIT_BATCH, b'{"commit_topic":"t"}')
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "COMMIT_BATCH" in (answer.remark or "")


def test_capabilities_tell_this_broker_from_others(wire: JobWire) -> None:
    answer = wire.ask(RequestCode.HEADRACE_CAPABILITIES)
    assert (answer.code, answer.ext["jobs"]) == (0, "1")


def test_a_broker_without_its_safeguard_lets_an_older_epoch_through(wire: JobWire) -> None:
    with without("epoch"):
        wire.open()
        wire.open()
        assert wire.commit(epoch=1).code == 0
