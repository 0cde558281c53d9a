"""Requests of jobs: open, stage, commit, plan, list."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from headrace import errors
from headrace.broker.handlers.pull import may_pull
from headrace.broker.jobs import JobState, check_commit, check_commit_topic, check_parts
from headrace.failpoints import failpoint
from headrace.protocol import transactions
from headrace.protocol.codes import RequestCode
from headrace.protocol.layout import queue_offset_of
from headrace.protocol.properties import KEYS, encode_properties
from headrace.protocol.records import encode_records, join_records
from headrace.store import QueueAppend, StageKey, appends_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.broker.core import Core
    from headrace.broker.requests import Request
    from headrace.protocol.frames import Command
    from headrace.protocol.records import Records


logger = logging.getLogger(__name__)

_DRIVER, _OWNER = "HEADRACE_DRIVER", "HEADRACE_OWNER"
_QUEUE = 0
#: Epochs whose records compaction keeps.  What is newest is appended last, so no later record
#: of an older epoch can take its key.
_KEPT_EPOCHS = 64
_CAPABILITIES = {"headrace": "1", "jobs": "1"}

_encode = msgspec.json.Encoder().encode


def restore_jobs(core: Core) -> None:
    """Find out where every job stands, from the commit topics. Caller: start of the broker."""
    for topic in core.topics:
        if topic.endswith(transactions.COMMIT_TOPIC_SUFFIX):
            state = _restored(core, topic)
            if state is not None:
                core.jobs.recorded(topic, state)
                # Offsets are saved now and then; the commits since are only here.
                core.show_group(state.record.job)
                _update_offsets(core, state.record.job, state.record.offsets.items())


def _restored(core: Core, commit_topic: str) -> JobState | None:
    """Read the newest record of a commit topic; an older one says nothing when that is lost."""
    bounds = core.store.bounds(commit_topic, _QUEUE)
    # The newest record is the newest of its key, so compaction leaves it, and retention, too.
    for offset in range(bounds.max_offset - 1, bounds.min_offset - 1, -1):
        block = b"".join(core.store.read(commit_topic, _QUEUE, offset, 1, 1 << 30, None).slices)
        # A read of an offset that is lost gives the next one.
        if not block or queue_offset_of(block) != offset:
            core.jobs.lose(commit_topic, offset)
            if core.writable:
                logger.error(
                    "topic %r: its newest commit, offset %d, is lost", commit_topic, offset
                )
            return None
        found = transactions.stored_commit(block)
        if found is None:
            # Whatever somebody has sent there, the broker starts and the job goes on.
            logger.warning("topic %r, offset %d: no commit, passed over", commit_topic, offset)
            continue
        record, message = found
        driver, owner = (message.properties.get(name, "") for name in (_DRIVER, _OWNER))
        # Where its unit ends stands nowhere, but it is whole, so the log's end is not before it.
        log = core.store.replication
        is_over = message.position < log.epochs.promoted_at
        return JobState(
            record=record, position=log.end, driver=driver, owner=owner, is_over=is_over
        )
    return None


def capabilities(_core: Core, request: Request) -> Command:
    """Confirm that this broker knows the requests of jobs."""
    return request.reply(ext=dict(_CAPABILITIES))


async def open_job(core: Core, request: Request) -> Command:
    """Begin a new epoch; everything that an older one still tries is void from here on."""
    asked = request.strict_body(transactions.OpenRequest)
    topic, account = asked.commit_topic, request.account
    check_commit_topic(asked.job, topic)
    core.check_new_topic(topic)
    async with core.turn(topic):
        core.jobs.check_owner(asked.job, account)
        if account is not None and asked.owner not in ("", account):
            message = f"account {account!r} cannot give job {asked.job!r} to {asked.owner!r}"
            raise errors.NoPermissionError(message, hint="Only an admin can.")
        owner = account or asked.owner or core.jobs.owner(asked.job)
        begins = core.jobs.state(topic) is None
        record = core.jobs.open(asked, now=core.now())
        if begins:
            # What is staged is of a job of this name before it, whose attempts had the same names.
            await core.work.in_thread(core.store.drop_staged, asked.job, lambda _: False)
        await core.ensure_compacted(topic)
        state = await _append(core, topic, record, [], [], driver=asked.driver, owner=owner)
        core.work.start_task(_sweep(core, record))
        await _replicated(core, state.position)
    return request.reply(body=_encode(transactions.OpenAnswer(epoch=record.epoch, record=record)))


async def _append(
    core: Core,
    topic: str,
    record: transactions.CommitRecord,
    keys: list[StageKey],
    carried: list[QueueAppend],
    *,
    driver: str,
    owner: str,
) -> JobState:
    """Append parts and the record as one unit, on disk before anybody hears of it.

    Nothing is read back: a read can fail when the unit is there for good, and a book that has not
    heard of it would let the same batch be committed again.
    """
    text = {KEYS: f"{record.epoch % _KEPT_EPOCHS}-{record.kind}"}
    more = {name: value for name, value in ((_DRIVER, driver), (_OWNER, owner)) if value}
    properties = encode_properties(text | more)
    records = encode_records(topic, _QUEUE, [_encode(record)], [properties], core.now())
    unit = core.store.commit_unit(keys, [*carried, QueueAppend(topic, _QUEUE, records)])
    written = await asyncio.wrap_future(unit)
    state = JobState(record=record, position=written.position, driver=driver, owner=owner)
    core.jobs.recorded(topic, state)
    failpoint("broker.jobs.appended")
    return state


async def _replicated(core: Core, position: int) -> None:
    """Wait until followers have a record; it stays, and a repeated request comes here again."""
    try:
        await core.replication.settled(position)
    except errors.NotReplicatedError as error:
        raise errors.BrokerBusyError(error.message, hint=error.hint) from error


async def _sweep(core: Core, record: transactions.CommitRecord) -> None:
    """Drop what was staged for batches that are done and by epochs that are over."""
    await core.work.in_thread(core.store.drop_staged, record.job, partial(_is_needed, record))


def _is_needed(record: transactions.CommitRecord, key: StageKey) -> bool:
    return key.epoch >= record.epoch and key.batch > record.batch


async def stage(core: Core, request: Request) -> Command:
    """Keep what an attempt of a task produced, out of sight until its batch is committed."""
    number = request.number
    key = StageKey(
        request.text("job"),
        number("epoch"),
        number("batch"),
        number("stage"),
        number("partition"),
        number("attempt"),
    )
    core.jobs.check_owner(key.job, request.account)
    core.jobs.check_stage(key.job, key.epoch, key.batch)
    body = memoryview(request.command.payload)
    core.check_staged(key.job, len(body))
    for topic, queue_id in await core.work.in_thread(_queues_in, body):
        _check_queue(core, topic, queue_id)
    await core.work.in_thread(core.store.stage, key, number("chunk"), body)
    failpoint("broker.jobs.staged")
    return request.reply()


def _queues_in(body: memoryview) -> set[tuple[str, int]]:
    return {(section.topic, section.queue_id) for section in transactions.decode_sections(body)}


def _check_queue(core: Core, topic: str, queue_id: int) -> None:
    count = core.topics.get(topic).write_queue_nums
    if not 0 <= queue_id < count:
        message = (
            f"topic {topic!r} has {count} queues to write to, queue {queue_id} is none of them"
        )
        raise errors.InvalidParameterError(message)


async def commit_batch(core: Core, request: Request) -> Command:
    """Make a batch visible, all of it or nothing; a repeat gets the same answer."""
    asked = (
        await core.work.in_thread(_read_commit, request)
        if request.is_large
        else _read_commit(request)
    )
    core.jobs.check_owner(asked.record.job, request.account)
    async with core.turn(asked.commit_topic):
        answer = core.jobs.commit(asked) or await _commit(core, asked)
        await _replicated(core, answer.position)
    return request.reply(body=_encode(answer))


def _read_commit(request: Request) -> transactions.CommitRequest:
    asked = request.strict_body(transactions.CommitRequest)
    check_commit(asked)
    return asked


async def _commit(core: Core, asked: transactions.CommitRequest) -> transactions.CommitAnswer:
    record = asked.record
    before = core.jobs.state(asked.commit_topic)
    await _check_input(core, record, before.record.offsets if before else {})
    carried = _carried(core, asked)

    def held(part: transactions.StagedPart) -> tuple[int, int]:
        chunks, records = core.store.staged(_stage_key(record, part)) if part.chunks else (0, 0)
        own = carried.get((part.stage, part.partition), ())
        return chunks, records + sum(len(append.records) for append in own)

    check_parts(asked, held)
    keys = [_stage_key(record, part) for part in asked.parts if part.chunks]
    await core.ensure_compacted(asked.commit_topic)
    driver, owner = (before.driver, before.owner) if before else ("", "")
    topic = asked.commit_topic
    appends = _joined(chain.from_iterable(carried.values()))
    state = await _append(core, topic, record, keys, appends, driver=driver, owner=owner)
    async for part in core.in_parts(list(record.offsets.items())):
        _update_offsets(core, asked.group, part)
    core.show_group(asked.group)
    failpoint("broker.jobs.committed")
    if record.job in core.store.staged_sums():
        core.work.start_task(_sweep(core, record))
    return transactions.CommitAnswer(batch=record.batch, already=False, position=state.position)


def _carried(
    core: Core, asked: transactions.CommitRequest
) -> dict[tuple[int, int], list[QueueAppend]]:
    """Return what came with a commit, by the stage and the partition of each part."""
    found = {}
    for part in asked.parts:
        if part.sections:
            found[part.stage, part.partition] = appends = appends_in(part.sections)
            for append in appends:
                _check_queue(core, append.topic, append.queue_id)
    return found


def _joined(appends: Iterable[QueueAppend]) -> list[QueueAppend]:
    """Join what goes to the same queue, in order."""
    queues: dict[tuple[str, int], list[Records]] = {}
    for append in appends:
        queues.setdefault(append.key, []).append(append.records)
    return [QueueAppend(*key, join_records(parts)) for key, parts in queues.items()]


async def _check_input(
    core: Core, record: transactions.CommitRecord, before: Mapping[transactions.QueueName, int]
) -> None:
    """Refuse a batch whose messages this broker has lost, also with a topic that was made anew."""
    async for part in core.in_parts(list(record.offsets.items())):
        for queue, offset in part:
            if offset == before.get(queue):
                continue
            topic, broker, number = transactions.split_queue_name(queue) or ("", "", 0)
            if broker != core.name or core.topics.find(topic) is None:
                continue
            end = core.store.bounds(topic, number).max_offset
            if offset > end:
                batch = f"batch {record.batch} of job {record.job!r}"
                raise errors.InputMissingError.beyond(batch, queue, offset, end)


def _stage_key(record: transactions.CommitRecord, part: transactions.StagedPart) -> StageKey:
    return StageKey(
        record.job, record.epoch, record.batch, part.stage, part.partition, part.attempt
    )


def _update_offsets(
    core: Core, group: str, offsets: Iterable[tuple[transactions.QueueName, int]]
) -> None:
    for queue, offset in offsets:
        if parts := transactions.split_queue_name(queue):
            topic, _, number = parts
            core.offsets.update(group, topic, number, offset)


async def plan_batch(core: Core, request: Request) -> Command:
    """Cut all queues of some topics at one position, waiting for a message when there is none."""
    asked = request.strict_body(transactions.PlanRequest)
    check_commit_topic(asked.job, asked.commit_topic)
    core.jobs.check_owner(asked.job, request.account)
    answer = _plan(core, asked)
    deadline = core.loop.time() + asked.wait / 1000
    while not _has_news(asked, answer) and (left := deadline - core.loop.time()) > 0:
        come = asyncio.Event()
        end_wait = core.wait(list(_queues(core, asked)), left, request.peer, come.set)
        try:
            answer = _plan(core, asked)
            if not _has_news(asked, answer):
                # Nobody wakes who waits for a connection that is gone: look at the time as well.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(come.wait(), left)
                answer = _plan(core, asked)
        finally:
            end_wait()
    if asked.messages:
        answer = msgspec.structs.replace(answer, messages=_messages(core, asked, answer))
    return request.reply(body=_encode(answer))


def _messages(
    core: Core, asked: transactions.PlanRequest, answer: transactions.PlanAnswer
) -> dict[transactions.QueueName, bytes]:
    """Return the messages of a plan, of as many queues as all of them fit."""
    found: dict[transactions.QueueName, bytes] = {}
    left = asked.messages
    for (topic, queue_id), name in _queues(core, asked).items():
        begin, end = asked.offsets.get(name, answer.begins[name]), answer.ends[name]
        if begin >= end or not may_pull(core, asked.job, topic):
            continue
        # Whoever pulls the rest is told what of it is damaged or gone.
        with contextlib.suppress(errors.CorruptLogError):
            read = core.store.read(topic, queue_id, begin, end - begin, left)
            block = b"".join(read.slices)
            if read.count == end - begin and len(block) <= left:
                core.messages_out += read.count
                left -= len(block)
                found[name] = block
    return found


def _queues(core: Core, asked: transactions.PlanRequest) -> dict[tuple[str, int], str]:
    return {
        (topic, queue_id): name
        for topic in dict.fromkeys(asked.topics)
        for queue_id in range(core.topics.get(topic).read_queue_nums)
        if asked.share.owns(name := f"{topic}@{core.name}@{queue_id}")
    }


def _plan(core: Core, asked: transactions.PlanRequest) -> transactions.PlanAnswer:
    names = _queues(core, asked)
    firsts = {queue: core.store.bounds(*queue).min_offset for queue in names}
    starts = {queue: asked.offsets.get(name, firsts[queue]) for queue, name in names.items()}
    cut = core.store.cut(starts, asked.limit, asked.max_bytes)
    core.jobs.check_not_lost(asked.job, asked.commit_topic)
    state = core.jobs.state(asked.commit_topic)
    return transactions.PlanAnswer(
        record=state.record if state else None,
        begins={name: firsts[queue] for queue, name in names.items()},
        ends={name: cut.ends[queue] for queue, name in names.items()},
        latest={name: cut.latest[queue] for queue, name in names.items()},
        position=cut.position,
        clock=core.now(),
    )


def _has_news(asked: transactions.PlanRequest, answer: transactions.PlanAnswer) -> bool:
    return any(
        end > asked.offsets.get(name, answer.begins[name]) for name, end in answer.ends.items()
    )


def list_jobs(core: Core, request: Request) -> Command:
    """List the jobs of who asks: where they stand, who runs them, and what they have staged."""
    if not core.writable:
        # Commits come by the log, past this table.
        restore_jobs(core)
    now = core.loop.time()
    jobs = [
        {
            "commit_topic": topic,
            "owner": state.owner,
            "driver": state.driver,
            "record": state.record,
            "holder": core.locks.holder(state.record.job, (topic, _QUEUE), now=now),
            "staged": core.store.waiting(state.record.job),
        }
        for topic, state in core.jobs.items()
        if request.account in (None, state.owner) or not state.owner
    ]
    return request.reply(body=_encode(jobs))


HANDLERS = {
    RequestCode.HEADRACE_CAPABILITIES: capabilities,
    RequestCode.OPEN_JOB: open_job,
    RequestCode.STAGE: stage,
    RequestCode.COMMIT_BATCH: commit_batch,
    RequestCode.PLAN_BATCH: plan_batch,
    RequestCode.LIST_JOBS: list_jobs,
}
