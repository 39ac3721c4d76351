"""The processes of leaders and of the follower: what they append, report and write down, and how they fail."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from replog.api import Client, embed
from replog.config import BookieOptions
from replog.demo import acts
from replog.demo.acts import Actor, acting
from replog.demo.processes import LOG_NAME, QUORUM, Task, _lines_of, as_payload
from replog.protocol.model import Position
from replog.runtime.children import ChildFailedError
from replog.testing import check_history, read_histories

LISTENING = BookieOptions(listen=("tcp:127.0.0.1:0",), read_only_below_bytes=0)


@asynccontextmanager
async def bookies_here(directory: Path) -> AsyncIterator[Client]:
    """Bookies in this process that other processes can reach: they start faster than processes of their own."""
    async with embed(directory, bookies=QUORUM.ensemble, bookie_options=LISTENING) as client:
        yield client


def task(directory: Path, name: str, entries: int | None = None) -> Task:
    (directory / "input").write_bytes(b"one\ntwo\n\xff")
    metastore = f"lmdb:{directory / 'metadata'}"
    return Task(name, metastore, str(directory / f"{name}.history"), str(directory / "input"), entries)


async def final(client: Client) -> list[tuple[Position, str]]:
    async with client.read_log(LOG_NAME) as reader:
        return [(record.position, as_payload(record.data)) async for record in reader]


def test_lines_are_the_file_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replog.demo.processes._LINE_BYTES_MAX", 10)
    data = b"one\r\n\n\x00\xff\x80two\n" + b"x" * 25 + b"\nlast"
    (tmp_path / "input").write_bytes(data)
    lines = list(itertools.islice(_lines_of(tmp_path / "input"), 14))
    assert b"".join(lines[:7]) == data
    assert lines[:7] == lines[7:]
    assert max(map(len, lines)) == 10


async def test_checker_accepts_reports_of_leader_and_follower(tmp_path: Path) -> None:
    async with bookies_here(tmp_path) as client, acting("follower", task(tmp_path, "follower")) as follower:
        async with acting("leader", task(tmp_path, "leader", 11)) as leader:
            while await leader.progresses():
                pass
        await follower.child.until(lambda: follower.entries == 11, "it has read all", 30)
        log = await final(client)
    assert [payload for _, payload in log[:4]] == [
        "leader, 1: one\n",
        "leader, 2: two\n",
        "leader, 3: ÿ",
        "leader, 4: one\n",
    ]
    assert len(log) == leader.entries == 11
    events = read_histories([tmp_path / f"{name}.history" for name in ("leader", "follower")])
    assert sum(event.kind == "confirmed" for event in events) == 11
    assert check_history(events, log) == []
    assert check_history(events, log[:5] + log[6:]) != []


async def test_stopped_leader_names_the_entries_in_doubt(tmp_path: Path) -> None:
    async with bookies_here(tmp_path) as client, acting("leader", task(tmp_path, "leader")) as leader:
        await leader.until("confirmed")
        await leader.child.stop()
        async with client.write_log(LOG_NAME):
            there = await final(client)
            leader.child.wake()
            fenced = await leader.until("fenced")
        assert await leader.child.ended(30) == 0
    first, last = (Position.parse(fenced[name]) for name in ("first", "last"))
    assert fenced["entries"] == last.entry - first.entry + 1 > 0
    events = read_histories([tmp_path / "leader.history"])
    confirmed = sum(event.kind == "confirmed" for event in events)
    assert confirmed <= len(there) <= confirmed + fenced["entries"]
    assert sum(event.kind == "unknown" for event in events) == fenced["entries"]
    assert check_history(events, there) == []


async def test_failing_leader_gives_the_reason(tmp_path: Path) -> None:
    missing = task(tmp_path, "leader", 10)
    (tmp_path / "input").unlink()
    async with bookies_here(tmp_path):
        with pytest.raises(
            ChildFailedError, match=r"leader .* ended by itself with status 1: FileNotFoundError: .*input"
        ):
            async with acting("leader", missing) as leader:
                await leader.until("confirmed")


async def test_silent_process_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acts, "SILENCE_S", 0.01)  # no process starts in so short a time
    async with acting("follower", task(tmp_path, "follower")) as follower:
        with pytest.raises(ChildFailedError, match=r"did not come within 0.01 s to this: it reports 'connected'"):
            await follower.until("connected")
    assert not follower.child.is_running


def test_lines_are_skipped_when_they_are_not_reports() -> None:
    actor = Actor("it")
    actor.hear(b'{"event": "confirmed", "entries": 5, "at_s": 1.5}')
    actor.hear(b'{"event": "confirmed", "entries": 9, "at_s": 2.5}')
    actor.hear(b"Traceback (most recent call last):")
    assert actor.entries == 9
    assert actor.first["confirmed"]["at_s"] == 1.5
