"""`replog log append` and `tail -f` beside others: takeovers, rolls, logs that come and go. In one trio run, with bookies that
others use too, and pipes for the standard streams."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest
import trio

import replog
from replog.cli.connecting import Connection, Stop
from replog.cli.entries import Delimited, shown
from replog.cli.log.appending import AppendFailedError, Asked
from replog.cli.log.appending import _append as append
from replog.cli.log.printing import _tail as tail
from replog.config.client import tuned
from replog.errors import LogNotFoundError
from replog.protocol.digest import DigestType
from replog.runtime.nursery import open_service_nursery
from tests.cli.test_pipes import Piped
from tests.kit import deafen_leaders

_names = itertools.count(1)
TEXT = shown(None, False, False)


class Pipes:
    """The other ends of the command's standard streams."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._command_reads, self._to_command = os.pipe()
        self._from_command, self._command_writes = os.pipe()
        self._rest = b""
        monkeypatch.setattr(sys, "stdin", Piped(self._command_reads))
        monkeypatch.setattr(sys, "stdout", Piped(self._command_writes))
        monkeypatch.setattr(Piped, "isatty", lambda _: False, raising=False)
        monkeypatch.setattr(Piped, "write", lambda pipe, text: os.write(pipe.fileno(), text.encode()), raising=False)

    def give(self, data: bytes) -> None:
        os.write(self._to_command, data)

    async def line(self) -> str:
        """The next line that the command wrote."""
        while b"\n" not in self._rest:
            await trio.lowlevel.wait_readable(self._from_command)
            self._rest += os.read(self._from_command, 1 << 16)
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        """Closes the outer ends only. A thread that a cancelled command left behind may be about to use one of the others: if its
        number were given to the next test's pipe, it would take that one's lines."""
        os.close(self._to_command)
        os.close(self._from_command)


class World:
    """A client of some bookies, and how the command gets to the same ones."""

    def __init__(self, client: replog.Client, connection: Connection, pipes: Pipes) -> None:
        self.client = client
        self.connection = connection
        self.pipes = pipes

    async def wait_told(self, log: replog.LogWriter, entry_id: int) -> None:
        """Until others can know that this entry is confirmed (W5)."""
        assert self.connection.metastore is not None
        async with (
            replog.connect(self.connection.metastore) as other,
            other.open_ledger(log.ledger_id) as reader,
        ):
            while reader.last_add_confirmed < entry_id:
                await reader.refresh(1.0)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[World]:
    url = f"memory:following-{next(_names)}"
    pipes = Pipes(monkeypatch)
    with trio.fail_after(60):
        async with replog.embed(tmp_path, bookies=3, storage="memory", metastore=url) as client:
            yield World(client, Connection(metastore=url), pipes)
    pipes.close()


def asked(*, leads: bool = False, for_programs: bool = False, positions: bool = True) -> Asked:
    return Asked("log", (), Delimited(b"\n", "line"), leads, positions, for_programs, None, DigestType.CRC32C, None)


# -- tail ---------------------------------------------------------------------------------------------------------


async def test_it_follows_across_rolls_and_takeovers(world: World) -> None:
    async with trio.open_nursery() as nursery:
        async with world.client.write_log("log") as log:
            await log.extend([b"one", b"two", b"three"])
            await world.wait_told(log, 2)
            nursery.start_soon(tail, world.connection, "log", 2, True, False, TEXT)
            assert [await world.pipes.line(), await world.pipes.line()] == ["two", "three"]
            await log.append(b"four")
            assert await world.pipes.line() == "four"
            await log.roll()
            await log.append(b"five")
            assert await world.pipes.line() == "five"
            async with world.client.write_log("log") as other:
                await other.append(b"six")
                assert await world.pipes.line() == "six"
            with pytest.raises(replog.FencedError):
                await log.append(b"lost")
        nursery.cancel_scope.cancel()


async def test_tail_waits_for_a_log_only_if_asked(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LogNotFoundError):
        await tail(world.connection, "log", 10, True, False, TEXT)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tail, world.connection, "log", 0, False, True, TEXT)
        for text in ("first", "again"):
            async with world.client.write_log("log") as log:
                await log.append(text.encode())
                assert await world.pipes.line() == text
            capfd.readouterr()  # what it said when it waited before
            await world.client.delete_log("log")
            told = ""
            while "does not exist" not in told:
                told += capfd.readouterr().err
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


async def test_deleted_log_ends_a_follower(world: World) -> None:
    async with world.client.write_log("log") as log:
        await log.append(b"one")
    with pytest.raises(LogNotFoundError):
        async with open_service_nursery() as nursery:
            nursery.start_soon(tail, world.connection, "log", 1, True, False, TEXT)
            assert await world.pipes.line() == "one"
            await world.client.delete_log("log")
            await trio.sleep_forever()


# -- append -------------------------------------------------------------------------------------------------------


async def test_fenced_append_reports_confirmed_and_unknown_entries(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    deafen_leaders(monkeypatch)
    raised: list[AppendFailedError] = []
    # It publishes nothing (W5): else it may learn of its fence by that, and have nothing in doubt.
    monkeypatch.setattr(
        "replog.api.connecting.tuned",
        lambda given: attrs.evolve(tuned(given), explicit_last_add_confirmed_after_s=600.0),
    )

    async def append_until_fenced() -> None:
        try:
            await append(Stop(), world.connection, asked(for_programs=True))
        except AppendFailedError as error:
            raised.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(append_until_fenced)
        world.pipes.give(b"one\ntwo\n")
        assert [json.loads(await world.pipes.line())["position"] for _ in range(2)] == ["1:0", "1:1"]
        async with world.client.write_log("log") as other:
            world.pipes.give(b"three\nfour\n")
            summary = json.loads(await world.pipes.line())
            await other.append(b"of the other")
    assert (summary["entries"], summary["last_position"]) == (2, "1:1")
    assert (summary["unknown_entries"], summary["first_unknown_position"]) == (2, "1:2")
    assert summary["last_unknown_position"] == "1:3"
    assert "2 entries are confirmed (1:0..1:1); of 2 more the outcome is unknown (1:2..1:3)" in str(raised[0])
    async with world.client.read_log("log") as reader:
        assert [record.data async for record in reader] == [b"one", b"two", b"of the other"]


async def test_append_ends_when_fenced_without_more_input(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are in flight, and the pipe is silent: it is told all the same."""
    deafen_leaders(monkeypatch)
    with pytest.raises(AppendFailedError):
        async with open_service_nursery() as nursery:
            nursery.start_soon(append, Stop(), world.connection, asked())
            world.pipes.give(b"one\n")
            assert await world.pipes.line() == "1:0"
            async with world.client.write_log("log"):
                world.pipes.give(b"two\n")
                await trio.sleep_forever()


async def test_it_waits_for_its_turn_to_lead(world: World) -> None:
    async with trio.open_nursery() as nursery:
        async with world.client.lead_log("log") as log:
            nursery.start_soon(append, Stop(), world.connection, asked(leads=True))
            world.pipes.give(b"mine\n")
            for number in range(20):
                await log.append(b"%d" % number)  # it is not fenced
                await trio.sleep(0.01)
        assert await world.pipes.line() == "2:0"
        nursery.cancel_scope.cancel()
