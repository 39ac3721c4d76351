"""Spark's Python processes, forked from one that has imported what all of them need.

`python -m tests.servers.spark_forks SOCKET` is that one.

Spark starts a daemon for each kind of question that it asks of Python: one for tasks, five for its planner, and a process for
each source of a streaming query. Each daemon forks workers, and each of them imports pyarrow, pandas, PySpark and replog, which
takes more than a second of a processor. That was half of the time of all tests of Spark.

In the long lane Spark starts its processes as it does for users.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from tests.forks import ENDING_S, REQUEST_BYTES, become, run_program, tell

VARIABLE = "REPLOG_SPARK_FORKS"
STAND_IN = Path(__file__).with_name("preloaded")  # to be in PYTHONPATH, of what shall become a fork
_IMPORTED = (  # not `data_source_pushdown_filters`, which is how replog knows whether Spark pushes filters
    "pyspark.worker",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark_replog",
    "replog.blocking",
    "replog.spark.filters",
    "replog.spark.json_columns",
    "replog.spark.rows",
    "replog.spark.stream_writing",
    "replog.spark.streaming",
)


@contextmanager
def forking(directory: Path, environment: dict[str, str]) -> Iterator[str]:
    """The process that forks, until the context is left; yields where its socket is."""
    path = directory / "forks"
    command = [sys.executable, "-m", "tests.servers.spark_forks", str(path)]
    # As Spark sets it for its workers; NumPy starts threads otherwise, which no fork would have.
    settings = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
    with Popen(command, env=os.environ | environment | settings, stdin=PIPE, stdout=PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline(), "it has ended"
        try:
            yield str(path)
        finally:
            process.stdin.close()
            process.wait(ENDING_S)


class Forks:
    """The processes that were forked, each with the connection of the one that stands for it."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._waiting = selectors.DefaultSelector()
        self._waiting.register(listener, selectors.EVENT_READ)
        self._waiting.register(0, selectors.EVENT_READ)

    def serve(self) -> tuple[dict[str, Any], list[int]] | None:
        """Returns in each process that was forked what it shall be, and None when nobody needs more of them."""
        while True:
            for key, _ in self._waiting.select():
                if key.fd == 0:
                    return None
                if key.fileobj is self._listener:
                    connection, _ = self._listener.accept()
                    message, streams, _, _ = socket.recv_fds(connection, REQUEST_BYTES, 3)
                    if not message:  # it was killed right away
                        connection.close()
                    elif self._fork(connection) == 0:
                        self._leave(connection)
                        return json.loads(message), streams
                    for each in streams:
                        os.close(each)
                else:
                    self._end(*key.data)

    def _fork(self, connection: socket.socket) -> int:
        pid = os.fork()
        if pid:
            tell(connection.fileno(), pid)
            ended = os.pidfd_open(pid)
            for each in (ended, connection):
                self._waiting.register(each, selectors.EVENT_READ, (pid, ended, connection))
        return pid

    def _leave(self, connection: socket.socket) -> None:
        """In a fork: no object may close a descriptor later, whose number means something else by then."""
        connection.close()
        for key in list(self._waiting.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._waiting.close()

    def _end(self, pid: int, ended: int, connection: socket.socket) -> None:
        """The process has ended, or the one that stands for it."""
        if ended not in self._waiting.get_map():
            return  # both at once
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for each in (ended, connection):
            self._waiting.unregister(each)
        os.close(ended)
        tell(connection.fileno(), status)
        connection.close()


def main(path: str) -> None:
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # what is imported is not looked through by each of them
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen()
    print("forks", flush=True)
    if (forked := Forks(listener).serve()) is not None:
        become(*forked)
        run_program(forked[0]["arguments"])


if __name__ == "__main__":
    main(sys.argv[1])
