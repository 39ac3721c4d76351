"""Appends by callers that have no task of trio's: what they are told, when, and what is raised instead (W2, W4, W6)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing

from replog.errors import FencedError, PayloadTooLargeError
from replog.protocol.batch import ENTRY_BYTES_MAX, Payloads
from replog.protocol.model import Position
from tests.client.test_writer import SMALL
from tests.kit import cluster, read_ledger, read_log, settle, until


class Told:
    """The calls that callers received, by a name for each."""

    def __init__(self) -> None:
        self.of: dict[str, bool] = {}

    def by(self, name: str) -> Callable[[bool], None]:
        def ended(is_confirmed: bool) -> None:
            assert name not in self.of, "told twice"
            self.of[name] = is_confirmed

        return ended


async def test_callers_are_called_once_in_order_after_the_quorum(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.client() as client:
        async with client.create_ledger() as writer:
            for bookie in world.bookies:
                bookie.wire.is_held = True
            told = Told()
            assert writer._entries.append_nowait(b"0", told.by("zero")) == 0
            assert list(writer._entries.extend_nowait(Payloads([b"1", b"2"]), told.by("one, two"))) == [1, 2]
            assert writer._entries.flush_nowait(told.by("flush")) == 2
            world.bookies[0].wire.release()
            await settle()
            assert told.of == {}
            world.bookies[1].wire.release()
            await settle()
            assert list(told.of.items()) == [("zero", True), ("one, two", True), ("flush", True)]
            writer._entries.check_confirmed(2)
            assert list(writer._entries.extend_nowait(Payloads([]), told.by("nothing"))) == []
            assert writer._entries.flush_nowait(told.by("flush of nothing")) == 2
            assert told.of["nothing"]
            assert told.of["flush of nothing"]
            world.bookies[2].wire.release()
        assert await read_ledger(client, writer.ledger_id) == [b"0", b"1", b"2"]


async def test_entries_share_a_batch_while_one_is_in_flight(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client, client.create_ledger() as writer:
        told = Told()
        for number in range(100):
            writer._entries.append_nowait(b"%d" % number, told.by(str(number)))
        with trio.fail_after(1):
            await writer.flush()
        assert len(told.of) == 100
        assert all(told.of.values())
        assert writer._entries.batches_sent <= 3
        # After a batch of many a lone entry waits for a turn, in which others may come.
        writer._entries.append_nowait(b"next", told.by("next"))
        assert "next" not in told.of
        await settle()
        assert told.of["next"]


async def test_without_room_nothing_is_appended(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(SMALL) as client, client.create_ledger() as writer:
        for bookie in world.bookies:
            bookie.wire.is_held = True
        told = Told()
        writer._entries.append_nowait(bytes(3000), told.by("larger than the budget, and the only one"))
        with pytest.raises(trio.WouldBlock):
            writer._entries.append_nowait(b"x", told.by("x"))
        with pytest.raises(trio.WouldBlock):
            writer._entries.extend_nowait(Payloads([b"y"]), told.by("y"))
        with pytest.raises(PayloadTooLargeError):
            writer._entries.append_nowait(bytes(ENTRY_BYTES_MAX + 1), told.by("too large"))
        with pytest.raises(TypeError):
            writer._entries.append_nowait("text", told.by("text"))  # type: ignore[arg-type]
        for bookie in world.bookies:
            bookie.wire.release()
        await settle()
        assert list(told.of) == ["larger than the budget, and the only one"]
        assert writer.last_add_pushed == 0


async def test_unconfirmed_callers_learn_it_and_the_reason_is_raised(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        with pytest.raises(KeyError):
            async with client.create_ledger() as writer:
                told = Told()
                writer._entries.append_nowait(b"kept", told.by("kept"))
                await settle()
                await client.recover_ledger(writer.ledger_id)
                writer._entries.append_nowait(b"late", told.by("late"))
                writer._entries.flush_nowait(told.by("flush"))
                await settle()
                assert told.of == {"kept": True, "late": False, "flush": False}
                writer._entries.check_confirmed(0)
                with pytest.raises(FencedError) as raised:
                    writer._entries.check_confirmed(1)
                assert list(raised.value.unconfirmed) == [1]
                with pytest.raises(FencedError):
                    writer._entries.append_nowait(b"later", told.by("later"))
                raise KeyError
        assert "later" not in told.of
        with pytest.raises(FencedError):
            writer._entries.flush_nowait(told.by("after the end"))


async def test_a_closed_writer_takes_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        async with client.create_ledger() as writer:
            pass
        told = Told()
        with pytest.raises(trio.ClosedResourceError):
            writer._entries.append_nowait(b"x", told.by("x"))
        with pytest.raises(trio.ClosedResourceError):
            writer._entries.extend_nowait(Payloads([]), told.by("y"))
        with pytest.raises(trio.ClosedResourceError):
            writer._entries.flush_nowait(told.by("z"))
        assert told.of == {}


async def test_appends_and_flush_in_a_roll_wait_for_the_ledger_before(autojump_clock: trio.testing.MockClock) -> None:
    """Entries of the next ledger are sent when those of the one before are confirmed (L2)."""
    async with cluster() as world, world.client() as client:
        async with client.write_log("log") as log, trio.open_nursery() as nursery:
            told = Told()
            for bookie in world.bookies:
                bookie.wire.delay_s = 0.5
            assert log._entries.append_nowait(b"before", told.by("before")) == Position(1, 0)
            nursery.start_soon(log.roll)
            await until(lambda: log.segment > 1)
            assert told.of == {}
            assert log._entries.flush_nowait(told.by("flush of the ledger before")) == Position(1, 0)
            assert list(log._entries.extend_nowait(Payloads([b"after"]), told.by("after"))) == [Position(2, 0)]
            assert log._entries.flush_nowait(told.by("flush of both")) == Position(2, 0)
            with trio.fail_after(5):
                await log.flush()
            assert list(told.of) == ["before", "flush of the ledger before", "after", "flush of both"]
            assert all(told.of.values())
            for position in (Position(1, 0), Position(2, 0)):
                log._entries.check_confirmed(position)
        assert await read_log(client) == [b"before", b"after"]


async def test_a_deposed_log_names_the_positions_in_doubt(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        async with client.write_log("log") as old:
            told = Told()
            await old.append(b"kept")
            async with client.write_log("log"):
                position = old._entries.append_nowait(b"in doubt", told.by("in doubt"))
                await settle()
                assert told.of == {"in doubt": False}
                for check in (
                    lambda: old._entries.check_confirmed(position),
                    lambda: old._entries.append_nowait(b"x", told.by("x")),
                    lambda: old._entries.extend_nowait(Payloads([b"x"]), told.by("y")),
                    lambda: old._entries.flush_nowait(told.by("z")),
                ):
                    with pytest.raises(FencedError) as raised:
                        check()
                    assert list(raised.value.positions) == [position]
                old._entries.check_confirmed(Position(position.segment, 0))
