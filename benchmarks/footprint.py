"""What an open ledger, a reader, a follower and a connection keep in memory: in the client, and in a bookie process.

Each kind is measured in a fresh process: first the resident memory of some, then, of as many more, what Python allocated for them
(tracemalloc); the rest is the allocators' rounding. The bookie is on loopback, with the storage files.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import trio

import replog
from benchmarks.figures import Figures
from benchmarks.setting import Comparison, Round, Setting
from replog.protocol.quorum import Quorum

_ONE = Quorum(1, 1, 1)
_LOG = "footprint"
_SETTLE_S = 0.5  # for what is published, answered or given back after the last call

# What one of them may keep, in bytes of resident memory: of the client, and of the bookie.
LIMITS: dict[str, tuple[int, int]] = {
    "writer": (24 << 10, 8 << 10),
    "reader": (16 << 10, 4 << 10),
    "follower": (16 << 10, 4 << 10),
    "connection": (96 << 10, 32 << 10),
}


def footprint(setting: Setting) -> Round:
    """Each kind, so many of it at once."""
    found: dict[str, Figures] = {}
    for kind, (client_bytes, bookie_bytes) in LIMITS.items():
        count = setting.scale.footprint if kind != "connection" else min(200, setting.scale.footprint)
        found[kind] = _measure_apart(kind, count, setting.directory)
        found[f"{kind} limit"] = {
            "client_bytes": client_bytes,
            "python_bytes": client_bytes,
            "bookie_bytes": bookie_bytes,
        }
    return found


def _measure_apart(kind: str, count: int, directory: Path) -> Figures:
    command = [sys.executable, "-m", __name__, kind, str(count), str(directory)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=_environment())
    return dict(json.loads(done.stdout))


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@contextmanager
def _bookie(directory: Path) -> Iterator[int]:
    """A bookie process; its id."""
    arguments = [
        str(directory / "bookie"),
        f"lmdb:{directory / 'metadata'}",
        "files?spare_files=0",
        "tcp:127.0.0.1:0",
        "0",
    ]
    command = [sys.executable, "-m", "benchmarks.remote.bookie", *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment()
    ) as process:  # which closes its standard input when it is left, and waits
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("the bookie process has ended early")
        yield process.pid


def resident_bytes(process_id: int | str = "self", field: str = "VmRSS") -> int:
    """The resident memory of a process, or another field of its status."""
    status = Path(f"/proc/{process_id}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{field}:")) * 1024


async def _measure(kind: str, count: int, directory: Path, bookie: int) -> Figures:
    metastore = f"lmdb:{directory / 'metadata'}"
    async with replog.connect(metastore, quorum=_ONE) as client, AsyncExitStack() as stack:
        async with client.write_log(_LOG) as log:
            await log.append(bytes(100))
            ledger_id = log.ledger_id
        for _ in range(5):  # what is made once is there then
            await stack.enter_async_context(_one(kind, client, metastore, ledger_id))
        await trio.sleep(_SETTLE_S)
        gc.collect()
        before, bookie_before = resident_bytes(), resident_bytes(bookie)
        for _ in range(count):
            await stack.enter_async_context(_one(kind, client, metastore, ledger_id))
        await trio.sleep(_SETTLE_S)
        gc.collect()
        client_bytes, bookie_bytes = resident_bytes() - before, max(0, resident_bytes(bookie) - bookie_before)
        tracemalloc.start()
        for _ in range(count):
            await stack.enter_async_context(_one(kind, client, metastore, ledger_id))
        await trio.sleep(_SETTLE_S)
        gc.collect()
        python_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return {
        "client_bytes": client_bytes / count,
        "bookie_bytes": bookie_bytes / count,
        "python_bytes": python_bytes / count,
    }


@asynccontextmanager
async def _one(kind: str, client: replog.Client, metastore: str, ledger_id: int) -> AsyncIterator[None]:
    """One of this kind, used once."""
    if kind == "writer":
        async with client.create_ledger() as writer:
            await writer.append(bytes(100))
            yield
    elif kind == "reader":
        async with client.open_ledger(ledger_id) as reader:
            assert len(await reader.read(0, 0)) == 1
            yield
    elif kind == "follower":
        async with client.read_log(_LOG, follow=True) as log_reader:
            assert await anext(aiter(log_reader))
            yield
    else:
        async with replog.connect(metastore, quorum=_ONE) as another, another.open_ledger(ledger_id) as reader:
            assert len(await reader.read(0, 0)) == 1
            yield


def _kept(kind: str, what: str) -> list[Comparison]:
    rows = ((f"{what}: client", "client_bytes"), ("  of that Python's", "python_bytes"), ("  bookie", "bookie_bytes"))
    goals = {"client_bytes": 1.0, "bookie_bytes": 1.0}
    return [
        Comparison("footprint", title, kind, f"{kind} limit", figure, figure, "B", goals.get(figure), at_least=False)
        for title, figure in rows
    ]


COMPARISONS = (
    *_kept("writer", "an open ledger that was appended to"),
    *_kept("reader", "an open reader of a ledger"),
    *_kept("follower", "a follower of a log"),
    *_kept("connection", "a client with one connection and one reader"),
)


def main(arguments: list[str]) -> None:
    """Measures one kind in this process, and prints the figures."""
    kind, count, parent = arguments
    with tempfile.TemporaryDirectory(prefix="footprint-", dir=parent) as made, _bookie(Path(made)) as bookie:
        print(json.dumps(trio.run(_measure, kind, int(count), Path(made), bookie)))


if __name__ == "__main__":
    main(sys.argv[1:])
