"""A log without any server of one's own but bookies: its leader is killed, and another process takes over."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio
from s3_server import Bucket

import replog

THREE = replog.Quorum(ensemble=3, write=3, ack=2)

LEADER = """
import sys
import trio
import replog

async def main():
    url, name = sys.argv[1:]
    async with replog.connect(url, quorum=replog.Quorum(ensemble=3, write=3, ack=2)) as client:
        async with client.lead_log("orders") as log:
            number = 0
            while True:
                await log.append(b"%b-%d" % (name.encode(), number))
                print(number, flush=True)
                number += 1

trio.run(main)
"""


@asynccontextmanager
async def three_bookies(url: str, directory: Path) -> AsyncIterator[None]:
    """In this process, reached by TCP."""
    async with AsyncExitStack() as bookies:
        for number in range(3):
            options = replog.BookieOptions(storage="memory", listen=("tcp:127.0.0.1:0",))
            config = replog.BookieConfig(directory=str(directory / str(number)), metastore=url, options=options)
            await bookies.enter_async_context(replog.serve_bookie(config))
        yield


def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.PIPE)


async def next_line(leader: subprocess.Popen[bytes]) -> int:
    assert leader.stdout is not None
    line = await trio.to_thread.run_sync(leader.stdout.readline, abandon_on_cancel=True)
    return int(line) if line.endswith(b"\n") else -1


@pytest.mark.slow
@pytest.mark.crash
async def test_log_is_taken_over_when_its_leader_is_killed(bucket: Bucket, tmp_path: Path) -> None:
    url, started = bucket.url(lease_s=1, poll_s=0.5), list[subprocess.Popen[bytes]]()
    confirmed: dict[str, int] = {}
    try:
        async with three_bookies(url, tmp_path):
            with trio.fail_after(150):
                for name in ("first", "second", "third"):
                    command = [sys.executable, "-c", LEADER, url, name]
                    started.append(start(command))
                    if name == "second":  # it waits while the first one leads
                        await trio.sleep(0.5)
                        started[0].send_signal(signal.SIGKILL)
                    if name == "third":
                        started[1].send_signal(signal.SIGKILL)
                    while confirmed.get(name, -1) < 20:
                        confirmed[name] = await next_line(started[-1])
                        assert confirmed[name] >= 0, f"{name} ended"
                    for each, leader in zip(confirmed, started[:-1], strict=False):
                        while (number := await next_line(leader)) >= 0:  # what it had said before it died
                            confirmed[each] = number
                started[-1].kill()
                async with replog.connect(url) as client, client.read_log("orders") as reader:
                    read = [record.data.decode() async for record in reader]
    finally:
        end(started)
    for name, last in confirmed.items():
        numbers = [int(each.partition("-")[2]) for each in read if each.startswith(f"{name}-")]
        assert numbers == list(range(len(numbers))), "each entry once, in order"
        assert len(numbers) > last, "what was confirmed is there"
    assert [each.partition("-")[0] for each in read] == sorted(each.partition("-")[0] for each in read)
