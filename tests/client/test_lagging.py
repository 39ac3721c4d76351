"""A bookie that takes everything and answers nothing (a gray failure) holds up a fast writer only for a while."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from replog.client.connections import OUTSTANDING_BYTES_MAX
from replog.client.writer_background import _LAG_BYTES_MAX, LAG_CHECK_BYTES, SlowBookies
from replog.config.client import ClientTuning
from replog.hookspecs import EnsembleChanged
from replog.protocol.quorum import Quorum
from tests.kit import cluster

OPTIONS = ClientTuning(add_timeout_s=5.0, lagging_bookie_timeout_s=1.0)
ENTRY = bytes(1 << 20)
ENTRIES = 2 * _LAG_BYTES_MAX // len(ENTRY)


@pytest.mark.parametrize("bookies", [3, 4])
async def test_unanswering_bookie_is_replaced_or_left_out(bookies: int, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(bookies) as world, world.client(OPTIONS, Quorum(3, 3, 2)) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"all answer")
            world.named(writer.metadata.last_fragment.ensemble)[1].wire.is_deaf = True
            begin_s, longest_s = trio.current_time(), 0.0
            for _ in range(ENTRIES):
                before_s = trio.current_time()
                await writer.append(ENTRY)
                longest_s = max(longest_s, trio.current_time() - before_s)
            assert longest_s < 0.3, "as soon as its silence is many times what the others take"
            assert trio.current_time() - begin_s < 0.5
            await trio.sleep(OPTIONS.add_timeout_s + 1)
            assert len(world.told(EnsembleChanged)) == bookies - 3


async def test_hanging_bookie_is_given_up_when_its_channel_is_full(autojump_clock: trio.testing.MockClock) -> None:
    """C9: until then the writer goes on without it, and appends never wait."""
    patient = ClientTuning(add_timeout_s=30.0, lagging_bookie_timeout_s=30.0)
    async with cluster(4) as world, world.client(patient, Quorum(3, 3, 2)) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"all answer")
            silent = world.named(writer.metadata.last_fragment.ensemble)[1]
            silent.wire.is_deaf = True
            longest_s = 0.0
            for _ in range(OUTSTANDING_BYTES_MAX // len(ENTRY) + 1):
                before_s = trio.current_time()
                await writer.append(ENTRY)
                longest_s = max(longest_s, trio.current_time() - before_s)
                await trio.sleep(0.01)
            assert longest_s == 0
            assert silent.bookie_id not in writer.metadata.last_fragment.ensemble


class SlowChannel:
    """The channel of a bookie that is far behind; the test says which of its adds is the oldest."""

    bookie_id = "slow"
    outstanding_bytes = _LAG_BYTES_MAX + 1
    oldest = 0

    def oldest_add(self) -> int:
        return self.oldest


@pytest.mark.parametrize(("round_s", "patience_s"), [(0.001, 0.1), (0.05, 0.4)])
async def test_patience_is_a_multiple_of_the_others_latency(
    round_s: float, patience_s: float, autojump_clock: trio.testing.MockClock
) -> None:
    """C9, W6: a writer waits for a bookie as long as that answers something, however far it is behind."""
    channel, failed = SlowChannel(), list[int]()
    machine: Any = SimpleNamespace(ensemble=lambda: ("slow",), unused=0)
    connections: Any = SimpleNamespace(channel=lambda _bookie_id: channel)
    slow = SlowBookies(machine, connections, 1.0, lambda index, _bookie_id: failed.append(index), lambda: round_s)
    slow.unchecked_bytes = LAG_CHECK_BYTES
    for _ in range(100):
        channel.oldest += 1
        assert not slow.keep_up()
        await trio.sleep(patience_s / 2)
        slow.replace_silent()
    assert failed == []
    silent_since_s = trio.current_time() - patience_s / 2
    while not slow.keep_up():  # noqa: ASYNC110 - only time changes it
        await trio.sleep(0.01)
    assert trio.current_time() - silent_since_s == pytest.approx(patience_s, abs=0.02)
    slow.replace_silent()
    assert failed == []
    await trio.sleep(1.0)
    slow.replace_silent()
    assert failed == [0]


async def test_slow_answering_bookie_is_awaited(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(4) as world, world.client(OPTIONS, Quorum(3, 3, 2)) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"all answer")
            slow = world.named(writer.metadata.last_fragment.ensemble)[1]
            slow.wire.delay_s = 0.8
            for _ in range(ENTRIES):
                await writer.append(ENTRY)
                await trio.sleep(0.01)
            assert world.told(EnsembleChanged) == []


async def test_a_writer_goes_on_when_the_slow_bookie_answers(autojump_clock: trio.testing.MockClock) -> None:
    """An answer tells more than confirmed entries: others may have gathered because of the bookie that gives it."""
    looks_rarely = ClientTuning(add_timeout_s=60.0, add_quorum_timeout_s=60.0, explicit_last_add_confirmed_after_s=30.0)
    async with cluster(3) as world, world.client(looks_rarely, Quorum(3, 3, 2)) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"all answer")
            world.named(writer.metadata.last_fragment.ensemble)[1].wire.delay_s = 0.8
            longest_s = 0.0
            for _ in range(ENTRIES):
                before_s = trio.current_time()
                await writer.append(ENTRY)
                longest_s = max(longest_s, trio.current_time() - before_s)
            assert longest_s == pytest.approx(0.8), (
                "as long as its first answer takes, and not until the writer looks around"
            )


async def test_silent_bookie_without_lag_keeps_its_index(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster(4) as world, world.client(OPTIONS, Quorum(3, 3, 2)) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"all answer")
            world.named(writer.metadata.last_fragment.ensemble)[1].wire.is_deaf = True
            for _ in range(40):
                await writer.append(b"a little")
                await trio.sleep(0.1)
            assert world.told(EnsembleChanged) == []
            await trio.sleep(2.0)
            assert len(world.told(EnsembleChanged)) == 1


@pytest.mark.parametrize("answered_after_s", [0.01, 0.26, 0.49])
async def test_silence_is_never_overstated(answered_after_s: float, autojump_clock: trio.testing.MockClock) -> None:
    """It counts checks, of which there are ten in the shortest timeout: it may be late by two, and never early."""
    check_s = 0.5
    async with cluster(1) as world, world.client(OPTIONS, Quorum(1, 1, 1)) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"it answers")
            channel = client._opened.ledgers.context.connections.channel(world.bookies[0].bookie_id)
            assert channel is not None
            assert channel.silence_s == 0
            world.bookies[0].wire.is_deaf = True
            writer.push_nowait(b"unheard")
            await trio.sleep(answered_after_s)
            channel.responses_received([])
            heard_s = trio.current_time()
            for _ in range(40):
                await trio.sleep(0.1)
                silence_s = trio.current_time() - heard_s
                assert silence_s - 2 * check_s <= channel.silence_s <= silence_s + 1e-9
            world.bookies[0].wire.is_deaf = False
