"""Frames between tasks and their driver, and who may send them."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import ChannelError
from headrace.runtime.control import Block, BlockKind
from headrace.runtime.resident.channels import (
    DRIVER,
    Badge,
    Frame,
    FrameKind,
    FrameReader,
    MemberListener,
    Mesh,
    connect,
    pack_block,
    unpack_block,
)

BADGE = Badge(7, 99, 3)
SECRET = b"s" * 32


def packed(sizes: list[int]) -> bytes:
    return b"".join(
        b"".join(BADGE.pack(FrameKind.BLOCK, number, 5, [bytes([number % 256]) * size]))
        for number, size in enumerate(sizes)
    )


def cut_at_random(stream: bytes, most: int, chance: random.Random) -> list[Frame]:
    reader, found = FrameReader(), []
    while stream:
        room = reader.buffer()
        count = min(chance.randint(1, most), len(stream), len(room))
        room[:count] = stream[:count]
        found += reader.took(count)
        stream = stream[count:]
    return found


@pytest.mark.parametrize("most", [1, 40, 5_000, 1 << 20])
def test_frames_come_out_as_they_went_in_however_they_are_cut(most: int) -> None:
    chance = random.Random(most)
    sizes = [0, 1, 24, 300, 0, 7] if most < 50 else [0, 1, 300_000, 0, 7, 262_144, 90, 1_000_000, 3]
    for frame, (number, size) in zip(
        cut_at_random(packed(sizes), most, chance), enumerate(sizes), strict=True
    ):
        assert frame == Frame(FrameKind.BLOCK, number, 3, 7, 99, 5, bytes([number % 256]) * size)


@pytest.mark.parametrize("size", [0, 20, 1 << 31, (1 << 32) - 1])
def test_what_is_no_frame_is_refused(size: int) -> None:
    reader = FrameReader()
    reader.buffer()[:4] = size.to_bytes(4, "big")
    with pytest.raises(ChannelError, match=f"a frame of {size} bytes"):
        reader.took(4)


@pytest.mark.parametrize(
    "badge", [Badge(6, 99, 3), Badge(7, 98, 3), Badge(7, 99, 4)], ids=["epoch", "gang", "producer"]
)
def test_a_frame_of_another_gang_or_sender_is_refused(badge: Badge) -> None:
    reader = FrameReader()
    told = b"".join(badge.pack(FrameKind.BARRIER, 1, 5))
    reader.buffer()[: len(told)] = told
    (frame,) = reader.took(len(told))
    with pytest.raises(ChannelError, match="came by the channel of task 3 in epoch 7"):
        BADGE.check(frame, 3)


@pytest.mark.parametrize("operator", ["", "count", "Zähler"])
def test_blocks_come_back(operator: str) -> None:
    block = Block(17, 2, BlockKind.PARTIALS, operator, 1, b"\0payload", 1 << 40)
    assert unpack_block(2, b"".join(pack_block(block))) == block


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[MemberListener]:
    listener = MemberListener(tmp_path)
    yield listener
    listener.close()


def meet(listener: MemberListener, caller: Mesh, called: Mesh) -> tuple[bool, Exception | None]:
    """Have one call the other; return whether it was admitted, and what it raised."""
    raised: list[Exception] = []

    def call() -> None:
        try:
            nonce = caller.call(listener.address, DRIVER)
            caller.welcomed(DRIVER, nonce, time.monotonic() + 5)
        except ChannelError as error:
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    made = listener.accept(5)
    assert made is not None
    hello = called.admit(made)
    if hello is not None:
        called.welcome(hello, FrameKind.WELCOME)
    thread.join()
    return hello is not None, raised[0] if raised else None


def test_members_that_know_the_secret_meet_and_send_what_fits_no_buffer(
    listener: MemberListener,
) -> None:
    task, driver = Mesh(BADGE, SECRET), Mesh(Badge(7, 99, DRIVER), SECRET)
    assert meet(listener, task, driver) == (True, None)
    large = bytes(3_000_000)
    # Both send before either reads.
    task.send(DRIVER, FrameKind.REPORT, 0, 1, [large])
    driver.send(3, FrameKind.CUT, 0, 1, [large, b"end"])
    taken: list[Frame | None] = []

    def exchange(mesh: Mesh) -> None:
        deadline = time.monotonic() + 10
        taken.append(mesh.next(deadline))
        mesh.drain(deadline)

    other = threading.Thread(target=exchange, args=(task,))
    other.start()
    exchange(driver)
    other.join()
    found = {frame.kind: frame.payload for frame in taken if frame is not None}
    assert found == {FrameKind.REPORT: large, FrameKind.CUT: large + b"end"}
    driver.close()
    with pytest.raises(ChannelError, match="the driver has gone"):
        task.next()
    task.close()


@pytest.mark.parametrize(
    "caller", [Mesh(BADGE, b"x" * 32), Mesh(Badge(6, 99, 3), SECRET), Mesh(Badge(7, 1, 3), SECRET)]
)
def test_who_does_not_belong_to_the_gang_is_cut_off(listener: MemberListener, caller: Mesh) -> None:
    called = Mesh(Badge(7, 99, DRIVER), SECRET)
    admitted, raised = meet(listener, caller, called)
    assert not admitted
    assert raised is not None
    assert not called.channels


def test_who_answers_without_the_secret_is_not_believed(listener: MemberListener) -> None:
    caller = Mesh(BADGE, SECRET)

    def answer() -> None:
        made = listener.accept(5)
        assert made is not None
        made.sendall(bytes(16))
        made.recv(1 << 12)
        made.sendall(b"".join(Badge(7, 99, DRIVER).pack(FrameKind.ROSTER, 0, 0, [bytes(40)])))
        made.recv(1)
        made.close()

    thread = threading.Thread(target=answer)
    thread.start()
    nonce = caller.call(listener.address, DRIVER)
    with pytest.raises(ChannelError, match="the driver has not proven"):
        caller.welcomed(DRIVER, nonce, time.monotonic() + 5)
    caller.close()
    thread.join()


def test_what_is_no_hello_is_cut_off(listener: MemberListener) -> None:
    called = Mesh(Badge(7, 99, DRIVER), SECRET)
    for told in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(64), b"\0\0\0\x40" + bytes(64)):
        with connect(listener.address) as made:
            made.sendall(told)
            made.shutdown(socket.SHUT_WR)
            taken = listener.accept(5)
            assert taken is not None
            assert called.admit(taken) is None
    assert not called.channels
