"""Real bookies for other programs (Spark's workers, say): `python -m tests.servers.bookies DIRECTORY COUNT METASTORE STORAGE`.

All of them are in one process, reached by TCP; metadata is in LMDB, which several processes of one machine share.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import trio

import replog
from replog.config import BookieOptions
from tests.servers.processes import Server

FILES = "files?journal_file_bytes=16MiB"
_SERVING = "all of them serve"
_ROOT = Path(__file__).parents[2]


class Bookies(Server):
    """The process. `metastore` is the URL to connect to."""

    def __init__(self, directory: Path, count: int, metastore: str = "", storage: str = FILES) -> None:
        self.metastore = metastore or f"lmdb:{directory / 'metadata'}"
        command = [sys.executable, "-m", "tests.servers.bookies", str(directory), str(count), self.metastore, storage]
        self.directory = directory
        super().__init__(
            "bookies", command, directory, {"PYTHONPATH": os.pathsep.join([str(_ROOT / "src"), str(_ROOT)])}
        )

    def start(self) -> None:
        """Returns when all of them serve."""
        self.launch()
        self.wait_until(lambda: _SERVING in self.log(), _SERVING)


@contextmanager
def serving_bookies(directory: Path, count: int = 3) -> Iterator[Bookies]:
    """As many bookies, which serve until the context is left; then they have left in order."""
    server = Bookies(directory, count)
    server.start()
    try:
        yield server
        server.terminate()
    finally:
        server.kill()


async def _serve(directory: Path, count: int, metastore: str, storage: str) -> None:
    options = BookieOptions(listen=("tcp:127.0.0.1:0",), storage=storage, read_only_below_bytes=0)
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with AsyncExitStack() as stack:
            for number in range(count):
                config = replog.BookieConfig(
                    directory=str(directory / f"bookie-{number}"), metastore=metastore, options=options
                )
                await stack.enter_async_context(replog.serve_bookie(config))
            print(_SERVING, flush=True)
            await anext(signals)


if __name__ == "__main__":
    trio.run(_serve, Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
