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

address = os.environ["HEADRACE_TESTS_FORK_SERVER"]
command = [os.environ["HEADRACE_TESTS_PYTHON"], *sys.argv[1:]]
channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
# The server takes a moment to import everything.
while not os.path.exists(address):
    time.sleep(0.01)
channel.connect(address)
order = {
    "command": command,
    "environment": dict(os.environ),
    "folder": os.getcwd(),
    "session": False,
    "group": -1,
    "bound": True,
    "numbers": [0, 1, 2],
}
channel.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, 1 << 18)
channel.sendmsg(
    [json.dumps(order).encode()],
    [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))],
)
pid = int.from_bytes(channel.recv(4), sys.byteorder)


def forward(number, _):
    os.kill(pid, number)


for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, forward)
null = os.open(os.devnull, os.O_RDWR)
for stream in (0, 1, 2):
    os.dup2(null, stream)
told = channel.recv(4)
code = os.waitstatus_to_exitcode(int.from_bytes(told, sys.byteorder)) if told else 1
os._exit(code if code >= 0 else 128 - code)
