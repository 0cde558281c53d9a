"""What Spark's Java starts in place of Python: it has a process forked, and lives as long as it.

Made a program of its own at the start of a run, whose Python imports nothing but what is built in:
see ``forking.fork_client``.
"""

import _socket
import array
import json
import os
import signal
import sys
import time
from types import FrameType


def main() -> int:
    """Have the process forked, and wait for its end."""
    address = os.environ["TESTS_FORK_SERVER"]
    order = {
        "command": [os.environ["TESTS_PYTHON"], *sys.argv[1:]],
        "environment": {**os.environ, "TESTS_FORK_CLIENT": str(os.getpid())},
        "folder": os.getcwd(),  # noqa: PTH109  # pathlib takes longer than all the rest
        "session": False,
        "group": -1,
        "bound": True,
        "numbers": [0, 1, 2],
    }
    # The server takes a moment to import everything.
    while not os.path.exists(address):  # noqa: PTH110
        time.sleep(0.01)
    channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    channel.connect(address)
    channel.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, 1 << 18)
    streams = array.array("i", [0, 1, 2])
    rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)
    channel.sendmsg([json.dumps(order).encode()], [rights])
    pid = int.from_bytes(channel.recv(4), sys.byteorder)

    def forward(number: int, _: FrameType | None) -> None:
        os.kill(pid, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, forward)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in streams:
        os.dup2(null, stream)
    told = channel.recv(4)
    code = os.waitstatus_to_exitcode(int.from_bytes(told, sys.byteorder)) if told else 1
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    os._exit(main())
