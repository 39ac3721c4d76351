"""Python runs this at its start if this folder is in `PYTHONPATH`: what Spark starts becomes a fork.

`tests/servers/spark_forks.py` forks it. This process has imported next to nothing by then, and never does. It passes its streams
on, ends when the fork does, with the same exit status, and takes the fork along when it is ended itself.
"""

from __future__ import annotations

import os
import sys


def stand_for_a_fork(path: str) -> None:
    """Have the process at this socket fork, and wait for the fork's end. Never returns."""
    import json
    import signal
    import socket

    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(path)
    request = {
        "arguments": sys.orig_argv[1:],
        "directory": os.getcwd(),
        "environment": dict(os.environ),
        "is_leader": False,
    }
    socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
    pid = int(server.recv(100))
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(pid, number))
    status = int(server.recv(100) or b"1")
    os._exit(status if status >= 0 else 128 - status)


# What else tests of the same worker start has the variable, too.
if "REPLOG_SPARK_FORKS" in os.environ and " ".join(sys.orig_argv[1:]).startswith("-m pyspark."):
    stand_for_a_fork(os.environ["REPLOG_SPARK_FORKS"])
