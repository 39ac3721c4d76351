"""A storm over the real shells, with a seed: leaders, followers, bookies that die, hang and lose answers, a metastore that
fails; and an oracle (W2, L1-L6, D3).

What must hold whatever happens: every confirmed record is in the final log, once, where it was confirmed; each task's
records are in the order of its calls; nothing of a deposed leader is confirmed after the next one has served; what
followers saw is a prefix of the final log; and in the calm afterwards everything works again.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from contextlib import suppress

import pytest
import trio
import trio.testing

import replog
from replog.chance import Chance, use_chance
from replog.config import ClientOptions
from replog.errors import FencedError, MetastoreError, ReplogError, StorageFullError
from replog.hookspecs import EnsembleChanged, LogRolled, LogTakenOver
from replog.protocol.model import Position
from replog.testing import Fault
from tests.kit import Bookie, Cluster, cluster

OPTIONS = ClientOptions(
    add_timeout_s=0.5,
    read_timeout_s=0.5,
    speculative_read_after_s=0.1,
    add_quorum_timeout_s=4.0,
    bookie_retry_after_s=0.4,
    metastore_timeout_s=2.0,
    takeover_timeout_s=8.0,
    recovery_timeout_s=4.0,
    in_flight_bytes_max=2000,
    batch_bytes_max=300,
    roll_entries=40,
)
STORM_S = 12.0
SEEDS = int(os.environ.get("STORM_SEEDS", "10"))  # more of them, to look for more
QUORUMS = [replog.Quorum(3, 3, 2), replog.Quorum(3, 2, 2), replog.Quorum(4, 3, 2), replog.Quorum(5, 3, 2)]


class Oracle:
    """What happened, and whether it may."""

    def __init__(self) -> None:
        self.confirmed: dict[Position, bytes] = {}
        self.pushed: list[tuple[Position, bytes]] = []  # by who serves now, in the order of the calls
        self.followed: list[list[tuple[Position, bytes]]] = []
        self.highest_served = 0
        self.deposed = 0

    def serving(self, segment: int) -> None:
        """A leader has taken over, and begins with this segment."""
        assert segment > self.highest_served, "two leaders begin with one segment"
        self.highest_served = segment
        self.pushed.clear()

    def push(self, position: Position, data: bytes, began: int) -> None:
        """A leader that began with this segment has put the record in flight."""
        if began == self.highest_served:
            self.pushed.append((position, data))

    def confirm(self, position: Position, data: bytes, began: int) -> None:
        """A leader that began with this segment was told that the record is confirmed there."""
        assert began == self.highest_served, "confirmed for a leader after another had served (L5)"
        assert self.confirmed.setdefault(position, data) == data, "one position was confirmed twice"
        for earlier, pushed in self.pushed:  # all that stands before it is confirmed with it (W2, L2)
            if earlier < position:
                self.confirmed[earlier] = pushed
        self.pushed = [each for each in self.pushed if each[0] > position]

    def judge(self, final: list[tuple[Position, bytes]]) -> None:
        """The final log against all that was seen."""
        positions = [position for position, _ in final]
        assert positions == sorted(set(positions))
        by_position = dict(final)
        for position, data in self.confirmed.items():
            assert by_position.get(position) == data, f"{position} was confirmed as {data!r}"
        twice = [data for data, count in Counter(data for _, data in final).items() if count > 1]
        assert not twice
        last: dict[bytes, int] = {}
        for _, data in final:
            task, _, number = data.partition(b"#")
            assert int(number) > last.get(task, -1), "a task's records are not in the order of its calls"
            last[task] = int(number)
        for seen in self.followed:
            assert seen == final[: len(seen)], "a follower saw something else than a prefix"


class Storm:
    """The schedule: everything is drawn from one seed."""

    def __init__(self, world: Cluster, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.quorum = self.random.choice(QUORUMS)
        self.oracle = Oracle()
        self.names = 0

    # -- those who use the log ---------------------------------------------------------------------------------------

    async def lead(self) -> None:
        """Takes the log over, appends in every way there is for a while, and leaves or is deposed; then again."""
        while True:
            await trio.sleep(self.random.uniform(0.1, 3.0))
            try:
                async with self.world.client(OPTIONS, self.quorum) as client:
                    await self._serve(client)
            except* FencedError:
                self.oracle.deposed += 1
            except* (ReplogError, trio.ClosedResourceError):
                pass

    async def _serve(self, client: replog.Client) -> None:
        async with client.write_log("log") as log:
            began = log.segment
            self.oracle.serving(began)
            with trio.move_on_after(self.random.uniform(0.2, 4.0)):
                async with trio.open_nursery() as nursery:
                    for _ in range(self.random.randint(1, 4)):
                        self.names += 1
                        nursery.start_soon(self._append, log, began, b"%d" % self.names)
                    while True:
                        await trio.sleep(self.random.uniform(0.1, 1.5))
                        await self.random.choice((log.roll, log.flush))()

    async def _append(self, log: replog.LogWriter, began: int, name: bytes) -> None:
        number = 0
        while True:
            data = b"%s#%d" % (name, number)
            way = self.random.random()
            number += 1
            if way < 0.4:
                with trio.move_on_after(self.random.choice((100, 100, 0.0, 0.01))) as scope:
                    position = await log.append(data)
                if not scope.cancelled_caught:
                    self.oracle.confirm(position, data, began)
            elif way < 0.5:
                more = [data, *(b"%s#%d" % (name, number + extra) for extra in range(self.random.randint(0, 20)))]
                number += len(more) - 1
                for position, each in zip(await log.extend(more), more, strict=True):
                    self.oracle.confirm(position, each, began)
            else:
                position = await log.push(data)
                self.oracle.push(position, data, began)
                if self.random.random() < 0.3:
                    await log.flush()
                    self.oracle.confirm(position, data, began)
            await trio.sleep(self.random.choice((0, 0.001, 0.02, 0.2)))

    async def follow(self) -> None:
        """Follows from the beginning, through errors and cancelled waits, and now and then with another reader."""
        seen: list[tuple[Position, bytes]] = []
        self.oracle.followed.append(seen)
        while True:
            with suppress(ReplogError, trio.ClosedResourceError):
                async with self.world.client(OPTIONS, self.quorum) as client:
                    after = seen[-1][0] if seen else None
                    async with client.read_log("log", after=after, follow=True) as reader:
                        while self.random.random() > 0.05:
                            with trio.move_on_after(self.random.choice((0.001, 0.05, 1.0, 5.0))):
                                record = await reader.receive()
                                seen.append((record.position, record.data))
            await trio.sleep(self.random.uniform(0.01, 0.5))

    # -- those who disturb it ----------------------------------------------------------------------------------------

    async def harm_bookies(self) -> None:
        """Kills, hangs, slows, fills up and mutes bookies: not more at a time than recovery can do without."""
        while True:
            await trio.sleep(self.random.uniform(0.05, 0.8))
            bookie = self.random.choice(self.world.bookies)
            await self.random.choice((self._kill, self._hang, self._slow, self._fill, self._mute, self._lose))(bookie)

    async def _kill(self, bookie: Bookie) -> None:
        await bookie.kill()
        await trio.sleep(self.random.uniform(0.0, 1.5))
        while bookie.served is None:
            with suppress(MetastoreError):  # it can't tell whether its cookie is there
                await bookie.start()
            await trio.sleep(0.05)

    async def _hang(self, bookie: Bookie) -> None:
        bookie.wire.is_held = True
        await trio.sleep(self.random.uniform(0.1, 1.5))
        bookie.wire.release()

    async def _slow(self, bookie: Bookie) -> None:
        bookie.wire.delay_s = self.random.choice((0.001, 0.05, 0.3))
        await trio.sleep(self.random.uniform(0.1, 1.0))
        bookie.wire.delay_s = 0.0

    async def _fill(self, bookie: Bookie) -> None:
        bookie.storage.commit_error = StorageFullError("no space", "make some")
        await trio.sleep(self.random.uniform(0.1, 1.0))
        bookie.storage.commit_error = None

    async def _mute(self, bookie: Bookie) -> None:
        bookie.wire.is_mute = True
        await trio.sleep(self.random.uniform(0.1, 1.0))
        bookie.wire.is_mute = False

    async def _lose(self, bookie: Bookie) -> None:
        rate = self.random.choice((0.05, 0.5))
        bookie.wire.lose_answer = lambda _request: self.random.random() < rate
        await trio.sleep(self.random.uniform(0.1, 1.0))
        bookie.wire.lose_answer = lambda _request: False

    async def harm_metastore(self) -> None:
        """Bad weather now and then: answers lost, requests lost, late arrivals, conflicts, outages."""
        while True:
            await trio.sleep(self.random.uniform(0.5, 2.0))
            faults = self.random.sample(list(Fault), 2)
            rate = self.random.choice((0.1, 0.3, 0.9))
            self.world.metastore._choose = lambda _operation, _key, faults=faults, rate=rate: (
                self.random.choice(faults) if self.random.random() < rate else None
            )
            await trio.sleep(self.random.uniform(0.1, 0.8))
            self.world.metastore._choose = None

    # -- and afterwards ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """The storm, the calm, and the verdict."""
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(self.lead)
                nursery.start_soon(self.follow)
            nursery.start_soon(self.harm_bookies)
            nursery.start_soon(self.harm_metastore)
            await trio.sleep(STORM_S)
            nursery.cancel_scope.cancel()
        await self._calm()
        async with self.world.client(OPTIONS, self.quorum) as client:
            async with client.write_log("log") as log:
                self.oracle.serving(log.segment)
                self.oracle.confirm(await log.append(b"end#0"), b"end#0", log.segment)
            async with client.read_log("log") as reader:
                final = [(record.position, record.data) async for record in reader]
        self.oracle.judge(final)

    async def _calm(self) -> None:
        self.world.metastore._choose = None
        for bookie in self.world.bookies:
            if bookie.served is None:
                await bookie.start()
            bookie.wire.is_mute = False
            bookie.wire.delay_s = 0.0
            bookie.wire.lose_answer = lambda _request: False
            bookie.storage.commit_error = None
            bookie.wire.release()
        await trio.sleep(10)


def schedule_by(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes trio's order of tasks, and the choice of bookies, depend on the seed alone."""
    monkeypatch.setattr(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
    trio._core._run._r.seed(seed)
    use_chance(Chance(random.Random(seed)))


happened: Counter[str] = Counter()


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_storm_loses_nothing(
    seed: int, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule_by(seed, monkeypatch)
    async with cluster(6) as world:
        storm = Storm(world, seed)
        await storm.run()
        happened["confirmed"] += len(storm.oracle.confirmed)
        happened["deposed"] += storm.oracle.deposed
        happened["followed"] += sum(map(len, storm.oracle.followed))
        for kind in (LogTakenOver, LogRolled, EnsembleChanged):
            happened[kind.__name__] += len(world.told(kind))


def test_the_storms_were_storms() -> None:
    """Else the tests before this one have proven little."""
    if not happened:
        pytest.skip("the storms did not run")
    for what in ("deposed", "LogTakenOver", "LogRolled", "EnsembleChanged"):
        assert happened[what] >= 10, happened
    assert happened["confirmed"] >= 500, happened
    assert happened["followed"] >= 500, happened
