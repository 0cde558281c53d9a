"""The fork server: a process that has everything imported which hosts need, and forks them.

A host is there in the time of two forks, and all hosts share the memory of what was imported.
The fork server runs no plugin code and no threads, so that a fork never copies a lock that somebody
holds.  It is started by :class:`~headrace.connect.hosts.fork_client.ForkClient`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable

from headrace.connect.channel import Forked, KeeperEnded, Messages, Order, encode
from headrace.connect.hosts.keeper import SharedLease, keep
from headrace.connect.hosts.processes import (
    adopt_orphans,
    children,
    end_descendants,
    fill_holes,
    has_ended,
    reap,
)

#: Keepers end their hosts by themselves when the worker is gone; then the fork server helps, s.
_KEEPERS_PATIENCE = 6.0
_ADOPTED_PATIENCE = 3.0


class ForkServer:
    """Forks keepers, which fork hosts.

    Parameters
    ----------
    control
        Takes an order and three descriptors per message; gives the keeper's number and a
        descriptor of its process, and tells when a keeper has ended.
    lease
        Until when hosts may live.
    run
        What a host does with its socket.
    """

    def __init__(
        self,
        control: socket.socket,
        lease: SharedLease,
        run: Callable[[socket.socket], object],
    ) -> None:
        self._control = control
        self._lease = lease
        self._run = run
        self._orders = Messages(Order)
        #: Descriptor of each keeper, with its number and its order's.
        self._keepers: dict[int, tuple[int, int]] = {}

    def serve(self) -> None:
        """Answer orders until the worker is gone; then see that all keepers end."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        while True:
            for number, _ in poll.poll():
                if number != self._control.fileno():
                    poll.unregister(number)
                    self._keeper_ended(number)
                elif handle := self._next_order():
                    poll.register(handle, select.POLLIN)
                else:
                    self._end()
                    return

    def _next_order(self) -> int | None:
        """Carry an order out; give the keeper's descriptor, or None when there is nobody left."""
        try:
            text, numbers, _, _ = socket.recv_fds(self._control, 4096, 3)
        except ConnectionError:
            return None
        if not text:
            return None
        order: Order = self._orders.read(text)
        pid = os.fork()
        if pid == 0:
            self._be_keeper(order, numbers)
        for number in numbers:
            os.close(number)
        handle = os.pidfd_open(pid)
        self._keepers[handle] = (pid, order.number)
        socket.send_fds(self._control, [encode(Forked(order.number, pid))], [handle])
        return handle

    def _be_keeper(self, order: Order, numbers: list[int]) -> None:
        try:
            self._control.close()
            for handle in self._keepers:
                os.close(handle)
            worker, host = (socket.socket(fileno=number) for number in numbers[:2])
            keep(order, self._lease, worker, host, numbers[2], self._run)
        finally:
            os._exit(0)

    def _keeper_ended(self, handle: int) -> None:
        """Take leave of a keeper, and end what one that was killed has left to the fork server."""
        pid, number = self._keepers.pop(handle)
        os.waitpid(pid, 0)
        os.close(handle)
        ended = KeeperEnded(number, self._end_adopted())
        with contextlib.suppress(OSError):
            # A worker that is gone needs no word.
            self._control.send(encode(ended))

    def _end_adopted(self) -> bool:
        """End all children that are no keepers: they are what a killed keeper left behind."""
        deadline = time.monotonic() + _ADOPTED_PATIENCE
        while adopted := set(children(os.getpid())) - {pid for pid, _ in self._keepers.values()}:
            for pid in adopted:
                os.kill(pid, signal.SIGKILL)
                handle = os.pidfd_open(pid)
                if has_ended(handle, 0.05):
                    os.waitpid(pid, 0)
                os.close(handle)
            if time.monotonic() > deadline:
                return False
        return True

    def _end(self) -> None:
        poll = select.poll()
        for handle in self._keepers:
            poll.register(handle, select.POLLIN)
        while self._keepers and (ready := poll.poll(_KEEPERS_PATIENCE * 1000)):
            for handle, _ in ready:
                poll.unregister(handle)
                os.waitpid(self._keepers.pop(handle)[0], 0)
        if reap({}):
            end_descendants({}, _ADOPTED_PATIENCE)


def main() -> None:
    """Serve the control socket; arguments are its descriptor, the lease's, and maybe ``warm``."""
    control, lease = socket.socket(fileno=int(sys.argv[1])), SharedLease(int(sys.argv[2]))
    control.set_inheritable(False)
    os.set_inheritable(lease.descriptor, False)  # noqa: FBT003 - it takes no names
    adopt_orphans()
    import pyarrow as pa

    from headrace.connect.hosts.host import run, set_up_logging

    # Arrow's first array of Python's values imports pandas, where there is one: once for all hosts.
    pa.array([None])
    set_up_logging()
    if "warm" in sys.argv[3:]:
        from headrace.connect.hosts.host import warm_up

        warm_up()
    # What is there now is never collected: a collection would write to every page of it.
    gc.collect()
    fill_holes()
    gc.freeze()
    ForkServer(control, lease, run).serve()


if __name__ == "__main__":
    main()
