"""The processes of the demonstration: how bookies, leaders and followers begin and end, and what is said of it."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
import trio

from replog.api import Client, embed
from replog.config import BookieOptions
from replog.demo.bookies import serving_bookies
from replog.demo.errors import DemoFailedError
from replog.demo.following import following
from replog.demo.leader import LeaderConfig
from replog.demo.leading import LeaderProcess, leading, takeover_faults
from replog.demo.options import LOG_NAME, QUORUM, metastore_url
from replog.demo.processes import Process, running
from replog.demo.reports import Closed, Confirmed
from replog.demo.verdict import EntriesDigest
from replog.protocol.model import Position
from tests.kit import settle

LISTENING = BookieOptions(listen=("tcp:127.0.0.1:0",))


@asynccontextmanager
async def bookies_here(directory: Path) -> AsyncIterator[Client]:
    """Bookies in this process that the processes under test can reach, which is quicker than processes of their own."""
    async with embed(directory, bookies=QUORUM.ensemble, bookie_options=LISTENING) as client:
        yield client


async def test_a_leader_that_fails_says_why(tmp_path: Path) -> None:
    config = LeaderConfig(metastore_url(tmp_path), str(tmp_path / "nowhere"), 10)
    async with bookies_here(tmp_path), leading("leader 9", config, tmp_path / "stderr") as leader:
        with pytest.raises(
            DemoFailedError, match=r"leader 9 .* ended by itself with status 1: .*nowhere: cannot be read"
        ):
            await leader.take_over()


async def test_a_leader_is_followed_until_it_has_closed_the_log(tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"one\ntwo\n")
    config = LeaderConfig(metastore_url(tmp_path), str(tmp_path / "input"), 11)
    digest = EntriesDigest()
    digest.update([b"one\n", b"two\n"] * 5 + [b"one\n"])
    async with bookies_here(tmp_path), following(config.metastore, tmp_path) as follower:
        async with leading("leader", config, tmp_path / "stderr") as leader:
            takeover = await leader.take_over()
            await leader.until_closed(lambda: None)
        followed = await follower.read_so_many(11)
    assert (leader.before, leader.last.entries, takeover.ledgers_recovered) == (0, 11, 0)
    assert (followed.entries, followed.digest) == (11, digest.hexdigest())


async def test_a_leader_that_was_stopped_names_what_is_in_doubt(tmp_path: Path) -> None:
    async with bookies_here(tmp_path) as client:
        async with leading("leader", LeaderConfig(metastore_url(tmp_path)), tmp_path / "stderr") as leader:
            await leader.take_over()
            await leader.process.stop()
            async with client.write_log(LOG_NAME) as log:
                there = [each async for each in _entries(client)]
                await log.append(b"mine")
                leader.process.wake()
                fenced = await leader.until_fenced(30)
    assert fenced.entries == fenced.last.entry - fenced.first.entry + 1 > 0
    assert leader.last.entries <= there[-1] <= leader.last.entries + fenced.entries


async def _entries(client: Client) -> AsyncIterator[int]:
    entries = 0
    async with client.read_log(LOG_NAME) as reader:
        async for batch in reader.batches():
            entries += len(batch.payloads())
            yield entries


async def test_a_leader_that_goes_on_has_not_learnt(tmp_path: Path) -> None:
    async with bookies_here(tmp_path):
        async with leading("leader", LeaderConfig(metastore_url(tmp_path)), tmp_path / "stderr") as leader:
            await leader.take_over()
            with pytest.raises(DemoFailedError, match="did not learn within"):
                await leader.until_fenced(0.1)
            with pytest.raises(DemoFailedError, match="did not replace the bookie b"):
                await leader.until_replaced("b", 0.1, lambda: None)
        quota = LeaderConfig(metastore_url(tmp_path), entries=10)
        async with leading("leader", quota, tmp_path / "stderr") as leader:
            await leader.take_over()
            with pytest.raises(DemoFailedError, match="ended by itself with status 0"):
                await leader.until_fenced(30)


@pytest.mark.parametrize(
    ("found", "named", "fault"),
    [
        (9, 3, "missing: 10 entries were confirmed to it, and the next found 9"),
        (10, 3, None),
        (13, 3, None),
        (14, 3, "4 unconfirmed entries of it are in the log, and it named 3"),
        (14, None, None),  # a dead leader names nothing
    ],
)
def test_a_takeover_that_finds_too_little_or_too_much_is_a_fault(
    found: int, named: int | None, fault: str | None
) -> None:
    process = cast(Process, None)
    leader, successor = LeaderProcess("it", process), LeaderProcess("the next", process)
    leader.told.append(Confirmed(10, Position(1, 9), 13))
    successor.before = found
    faults = takeover_faults(leader, successor, named)
    assert len(faults) == (fault is not None)
    assert fault is None or fault in faults[0]


async def test_a_silent_process_is_given_up(tmp_path: Path) -> None:
    async with running("it", ["replog.demo.follower", metastore_url(tmp_path)], tmp_path / "stderr") as process:
        with pytest.raises(DemoFailedError, match=r"it .* told nothing for 0.01 s"):
            await process.next_report(0.01)  # no process starts in so short a time
        with pytest.raises(DemoFailedError, match="where Closed was due"):
            await process.expect(Closed)
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


async def test_a_follower_that_comes_no_further_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replog.demo.following.SILENCE_S", 0.05)
    async with bookies_here(tmp_path), following(metastore_url(tmp_path), tmp_path) as follower:
        with pytest.raises(DemoFailedError, match="has read 0 of 1 entries"):
            await follower.read_so_many(1)


async def test_bookies_leave_in_order_but_for_those_that_are_killed(tmp_path: Path) -> None:
    async with serving_bookies(tmp_path, 2) as cluster:
        one, other = cluster.bookies
        assert cluster.find(one.bookie_id) is one
        with pytest.raises(DemoFailedError, match="nobody started"):
            cluster.find("a stranger")
        await one.kill()
        await cluster.leave()
        assert not other.is_running
    assert '"stopped"' in (tmp_path / "bookie-1.log").read_text(encoding="utf-8")


async def test_what_a_bookie_says_last_is_in_its_log_however_late_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    next_line = Process.next_line

    async def late_line(process: Process, silence_s: float | None) -> bytes | None:
        if silence_s is None:  # it serves
            await process.wait()
            await settle()  # whoever waits for its end alone has gone on
        return await next_line(process, silence_s)

    async with serving_bookies(tmp_path, 1) as cluster:
        monkeypatch.setattr(Process, "next_line", late_line)
        await cluster.leave()
    assert '"stopped"' in (tmp_path / "bookie-0.log").read_text(encoding="utf-8")


async def test_a_bookie_that_ends_by_itself_ends_the_demonstration(tmp_path: Path) -> None:
    with pytest.raises(DemoFailedError, match=r"bookie 0 \(process \d+\) ended by itself with status -9"):
        async with serving_bookies(tmp_path, 1) as cluster:
            os.kill(cluster.bookies[0].pid, signal.SIGKILL)
            with trio.fail_after(30):
                await trio.sleep_forever()


async def test_a_bookie_that_cannot_begin_says_why(tmp_path: Path) -> None:
    (tmp_path / "bookie-0").write_text("a file", encoding="utf-8")
    with pytest.raises(DemoFailedError, match=r"^bookie 0 .* ended by itself with status \d: [^{]*bookie-0"):
        async with serving_bookies(tmp_path, 1):
            pass
