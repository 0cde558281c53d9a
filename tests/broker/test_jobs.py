from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from headrace.broker.jobs import JobBook, JobState, check_commit, check_parts
from headrace.errors import (
    CommitLostError,
    FencedError,
    HeadraceError,
    InputMissingError,
    InvalidParameterError,
    PredecessorMismatchError,
    StagedPartMissingError,
)
from headrace.protocol.transactions import CommitRecord, CommitRequest, OpenRequest, StagedPart
from tests.without import without

TOPIC = "j-commitTopic"


def open_request(job: str = "j", topic: str = TOPIC) -> OpenRequest:
    return OpenRequest(job=job, commit_topic=topic, driver="host:1")


def commit_request(
    batch: int,
    *,
    epoch: int = 1,
    previous: int | None = None,
    job: str = "j",
    kind: str = "commit",
    offset: int = 0,
    timestamp: int = 5,
    parts: tuple[StagedPart, ...] = (),
) -> CommitRequest:
    record = CommitRecord(
        job=job,
        kind=kind,
        epoch=epoch,
        batch=batch,
        offsets={"lines@broker-a@0": offset},
        timestamp=timestamp,
    )
    return CommitRequest(
        commit_topic=TOPIC,
        group="g",
        previous=batch - 1 if previous is None else previous,
        parts=list(parts),
        record=record,
    )


def part(
    *, stage: int = 0, partition: int = 0, attempt: int = 0, chunks: int = 1, records: int = 3
) -> StagedPart:
    return StagedPart(
        stage=stage, partition=partition, attempt=attempt, chunks=chunks, records=records
    )


def opened(*commits: CommitRequest, epochs: int = 1) -> JobBook:
    book = JobBook()
    for request in commits:
        if book.state(TOPIC) is None or request.record.epoch > current(book).epoch:
            reopen(book)
        assert book.commit(request) is None
        book.recorded(TOPIC, JobState(record=request.record, position=request.record.batch * 100))
    while book.state(TOPIC) is None or current(book).epoch < epochs:
        reopen(book)
    return book


def reopen(book: JobBook) -> None:
    request = open_request()
    record = book.open(request, now=1)
    book.recorded(TOPIC, JobState(record=record, position=7, driver=request.driver))


def current(book: JobBook) -> CommitRecord:
    state = book.state(TOPIC)
    assert state is not None
    return state.record


def test_first_open_begins_epoch_one_without_a_batch() -> None:
    record = JobBook().open(open_request(), now=99)
    assert record == CommitRecord(job="j", kind="open", epoch=1, batch=0, timestamp=99)


def test_open_repeats_the_commit_it_builds_on() -> None:
    request = commit_request(1, offset=42)
    record = opened(request).open(open_request(), now=99)
    assert record == msgspec.structs.replace(request.record, kind="open", epoch=2)


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(open_request(topic="j-commits"), id="name not found after a restart"),
        pytest.param(open_request(topic="k-commitTopic"), id="another topic of the same job"),
        pytest.param(open_request(job="k"), id="another job's topic"),
    ],
)
def test_open_refuses_a_commit_topic_that_is_not_the_jobs(request_: OpenRequest) -> None:
    with pytest.raises(InvalidParameterError):
        opened().open(request_, now=0)


@pytest.mark.parametrize(
    ("driver", "after"),
    [
        pytest.param("host:2", 0, id="another driver begins"),
        pytest.param("host:1", 2, id="the driver goes back from the newest epoch"),
        pytest.param("host:1", 1, id="it asks again, as the answer was lost"),
    ],
)
def test_open_follows_the_newest_epoch(driver: str, after: int) -> None:
    assert going_back(opened(epochs=2), driver, after).epoch == 3


def test_epoch_that_the_broker_has_lost_is_not_begun_again() -> None:
    assert going_back(opened(epochs=2), "host:1", 5).epoch == 6


def test_driver_whose_commits_are_all_lost_opens_nothing() -> None:
    with pytest.raises(CommitLostError, match="its newest commit, of epoch 2 of topic"):
        going_back(JobBook(), "host:1", 2)


def test_driver_that_another_one_has_replaced_opens_nothing() -> None:
    with pytest.raises(FencedError, match=r"epoch 2 is open by host:1, this one had epoch 1"):
        going_back(opened(epochs=2), "host:2", 1)


def test_without_the_epoch_guard_a_driver_takes_the_job_back_from_its_successor() -> None:
    with without("epoch"):
        assert going_back(opened(epochs=2), "host:2", 1).epoch == 3


def going_back(book: JobBook, driver: str, after: int) -> CommitRecord:
    request = OpenRequest(job="j", commit_topic=TOPIC, driver=driver, after=after)
    return book.open(request, now=0)


def test_commit_follows_the_last_one() -> None:
    book = opened(commit_request(1), commit_request(2))
    assert book.commit(commit_request(3)) is None


def test_repeated_commit_gets_the_first_answer() -> None:
    book = opened(commit_request(1), commit_request(2))
    answer = book.commit(commit_request(2))
    assert answer is not None
    assert (answer.batch, answer.already, answer.position) == (2, True, 200)


def test_epoch_of_a_primary_that_was_replaced_commits_nothing_more() -> None:
    book = opened(commit_request(1))
    state = book.state(TOPIC)
    assert state is not None
    book.recorded(TOPIC, replace(state, is_over=True))
    answer = book.commit(commit_request(1))
    assert answer is not None
    assert answer.already
    with pytest.raises(InputMissingError, match="took the place"):
        book.commit(commit_request(2))


def test_repeated_commit_is_known_whatever_the_clock_says() -> None:
    answer = opened(commit_request(1)).commit(commit_request(1, timestamp=6))
    assert answer is not None
    assert answer.already


@pytest.mark.parametrize(
    ("book", "request_", "error"),
    [
        (opened(epochs=2), commit_request(1, epoch=1), FencedError),
        (opened(commit_request(1), epochs=2), commit_request(1, epoch=1), FencedError),
        (opened(commit_request(1), epochs=2), commit_request(2, epoch=1), FencedError),
        (opened(), commit_request(1, epoch=2), InputMissingError),
        (JobBook(), commit_request(1), InvalidParameterError),
        (opened(), commit_request(2), PredecessorMismatchError),
        (opened(commit_request(1)), commit_request(3), PredecessorMismatchError),
        (opened(commit_request(1)), commit_request(1, offset=9), PredecessorMismatchError),
        (
            opened(commit_request(1), commit_request(2)),
            commit_request(1),
            PredecessorMismatchError,
        ),
        (opened(), commit_request(2, previous=0), InvalidParameterError),
        (opened(), commit_request(1, job="k"), InvalidParameterError),
        (opened(), commit_request(1, kind="open"), InvalidParameterError),
        (opened(), commit_request(1, parts=(part(), part(attempt=1))), InvalidParameterError),
    ],
    ids=[
        "older epoch",
        "older epoch repeats its own commit",
        "older epoch goes on",
        "epoch that nobody opened",
        "job that nobody opened",
        "gap at the start",
        "gap",
        "other plan of a committed batch",
        "batch before the last",
        "number does not follow its predecessor",
        "other job",
        "no commit",
        "two attempts of one task",
    ],
)
def test_commit_is_refused(
    book: JobBook, request_: CommitRequest, error: type[HeadraceError]
) -> None:
    def judged() -> None:
        check_commit(request_)
        book.commit(request_)

    with pytest.raises(error):
        judged()


@pytest.mark.parametrize(
    ("queue", "offset"),
    [
        ("lines", 0),
        ("lines@0", 0),
        ("@broker-a@0", 0),
        ("lines@@0", 0),
        ("lines@broker-a@", 0),
        ("lines@broker-a@-1", 0),
        ("lines@broker-a@x", 0),
        ("lines@broker-a@\u0663", 0),
        ("lines@broker-a@2147483648", 0),
        ("lines@broker-a@0", -1),
        ("lines@broker-a@0", 1 << 63),
    ],
)
def test_commit_of_what_no_queue_can_hold_is_refused(queue: str, offset: int) -> None:
    asked = commit_request(1)
    record = msgspec.structs.replace(asked.record, offsets={queue: offset})
    with pytest.raises(InvalidParameterError) as caught:
        check_commit(msgspec.structs.replace(asked, record=record))
    assert repr(queue) in str(caught.value)


def test_fence_names_the_epoch_and_what_to_do() -> None:
    with pytest.raises(FencedError) as caught:
        opened(epochs=3).commit(commit_request(1, epoch=2))
    assert "job 'j' cannot commit batch 1 in epoch 2: epoch 3 is open" in str(caught.value)
    assert "stop this one" in str(caught.value)


def test_staging_is_open_to_the_current_epoch_and_the_next_batches() -> None:
    book = opened(commit_request(1))
    book.check_stage("j", 1, 2)


@pytest.mark.parametrize(
    ("epoch", "batch", "error"),
    [(1, 2, FencedError), (3, 2, InputMissingError), (2, 1, PredecessorMismatchError)],
)
def test_staging_what_can_never_be_committed_is_refused(
    epoch: int, batch: int, error: type[HeadraceError]
) -> None:
    with pytest.raises(error):
        opened(commit_request(1), epochs=2).check_stage("j", epoch, batch)


@pytest.mark.parametrize(
    "held",
    [(0, 0), (1, 3), (2, 2)],
    ids=["nothing", "a chunk missing", "records missing"],
)
def test_commit_needs_every_staged_part_whole(held: tuple[int, int]) -> None:
    request = commit_request(1, parts=(part(partition=4, attempt=9, chunks=2, records=6),))
    with pytest.raises(StagedPartMissingError, match=r"partition 4, attempt 9"):
        check_parts(request, lambda _: held)


def test_part_that_staged_nothing_is_complete() -> None:
    check_parts(commit_request(1, parts=(part(chunks=0, records=0),)), lambda _: (5, 5))


def test_without_the_epoch_guard_an_older_epoch_gets_through() -> None:
    with without("epoch"):
        assert opened(epochs=2).commit(commit_request(1, epoch=1)) is None


def test_without_the_predecessor_guard_a_gap_gets_through() -> None:
    with without("predecessor"):
        assert opened().commit(commit_request(5)) is None


def test_forgotten_job_begins_anew() -> None:
    book = opened(commit_request(1))
    book.forget(TOPIC)
    assert book.open(open_request(), now=0).epoch == 1
