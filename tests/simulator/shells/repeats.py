"""Producers that repeat their appends after every failure, through whoever leads their log at the time (L11).

Invariant: an id is in the log at most once; every answer for it is the same position; an id that was never answered is
never refused. A producer goes on to its next sequence when some leader has answered for the last one. Until then all
leaders may be asked at the same time: those that were deposed meanwhile, too. The windows are tiny, so that much is
forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import trio

from replog.api import Client
from replog.errors import DuplicateError, LogNotFoundError
from replog.log import producers as writers_producers
from replog.log.log_options import LogOptions
from replog.log.log_writer import LogWriter
from replog.protocol import producers
from replog.protocol.envelope import EntryId
from replog.protocol.model import Position
from tests.simulator.shells.world import Act, JudgedWorld

REPEATS = "repeats"  # the strategy
REPEATED_LOG = "repeated"
_PRODUCERS = ("till", "shop", "web")


@contextmanager
def small_windows() -> Iterator[None]:
    """Few ids are remembered, and few make a log roll."""
    with patch.object(producers, "IDS_MAX", 4), patch.object(writers_producers, "IDS_UNSAVED_MAX", 15):
        yield


class Repeats:
    """The actors on that log, and the known facts about it."""

    def __init__(self, world: JudgedWorld, is_stopping: Callable[[], bool]) -> None:
        self.world = world
        self._is_stopping = is_stopping
        self._next = dict.fromkeys(_PRODUCERS, 0)
        self._answered: dict[EntryId, Position] = {}
        self._places: dict[EntryId, Position] = {}
        self._kind = world.stream("repeats").choice(("bounded", "unbounded"))

    @property
    def acts(self) -> list[tuple[str, Act]]:
        """The acts, by role."""
        return [("repeater", self.lead), ("repeater", self.lead), ("repeated reader", self.follow)]

    # -- acting ---------------------------------------------------------------------------------------------------

    async def lead(self, client: Client, process: str) -> None:
        """Leads the log for a while, and appends for all producers; rolls and trims."""
        chance = self.world.stream("repeating")
        begin = client.write_log if chance.random() < 0.5 else client.lead_log
        async with begin(REPEATED_LOG, options=LogOptions(custom={"process": process}, ledgers=self._kind)) as log:
            until_s = self.world.now_s + 0.2 + chance.random() * 3
            async with trio.open_nursery() as nursery:
                for _ in range(chance.randint(1, 4)):
                    nursery.start_soon(self._append, log, until_s)
                while self._goes_on(until_s):
                    await trio.sleep(chance.random() * 0.5)
                    end = await log.roll()
                    if chance.random() < 0.5:
                        await client.trim_log(REPEATED_LOG, before=end)
                        self.world.count("repeated log trimmed")

    def _goes_on(self, until_s: float) -> bool:
        return not self._is_stopping() and self.world.now_s < until_s

    async def _append(self, log: LogWriter, until_s: float) -> None:
        chance = self.world.stream("producing")
        while self._goes_on(until_s):
            name = chance.choice(_PRODUCERS)
            back = chance.choice((0, 0, 0, 1, 2, 9))
            entry_id = EntryId(name, max(0, self._next[name] - back))
            with self.world.cancelled_after(chance.choice((100, 100, 0.0, 0.004))):
                await self._repeat(log, entry_id)
            await trio.sleep(chance.choice((0, 0.003, 0.01)))

    async def _repeat(self, log: LogWriter, entry_id: EntryId) -> None:
        try:
            position = await log.append(b"%s#%d" % (entry_id.producer.encode(), entry_id.sequence), id=entry_id)
        except DuplicateError as error:
            self.world.count("forgotten id refused")
            if entry_id not in self._answered:
                self.world.violated("L11", f"{entry_id} is refused, and nobody was told where it is: {error}")
            return
        is_first = entry_id not in self._answered
        self.world.count("id answered" if is_first else "repeated id answered")
        self.world.tell("producers", f"{tuple(entry_id)} is at {position}")
        self._answered[entry_id] = position
        self._is_at(entry_id, position)
        self._next[entry_id.producer] = max(self._next[entry_id.producer], entry_id.sequence + 1)

    def _is_at(self, entry_id: EntryId, position: Position) -> None:
        if (known := self._places.setdefault(entry_id, position)) != position:
            self.world.violated("L11", f"{tuple(entry_id)} is at {known} and at {position} of the repeated log")

    async def follow(self, client: Client, process: str) -> None:
        """Follows the log: what is read there counts, too."""
        with trio.move_on_after(2):
            async with client.read_log(REPEATED_LOG, follow=True) as reader:
                async for record in reader:
                    assert record.id is not None, "all entries of this log have ids"
                    self._is_at(record.id, record.position)
                    self.world.count("repeated record read")

    # -- judging --------------------------------------------------------------------------------------------------

    async def judge(self, client: Client) -> None:
        """In the calm every producer is told of its last entry, and what is left of the log has each id once."""
        async with client.write_log(REPEATED_LOG, options=LogOptions(ledgers=self._kind)) as log:
            for name, following in self._next.items():
                for sequence in (following - 1, following):
                    if sequence >= 0:
                        await self._repeat(log, EntryId(name, sequence))
        try:
            first = (await client.log_metadata(REPEATED_LOG)).first_segment_number
        except LogNotFoundError:
            return
        async with client.read_log(REPEATED_LOG) as reader:
            found = {record.position: record.id async for record in reader}
        for position, entry_id in found.items():
            assert entry_id is not None, "all entries of this log have ids"
            self._is_at(entry_id, position)
        for entry_id, position in self._answered.items():
            if position.segment >= first and found.get(position) != entry_id:
                self.world.violated(
                    "W2", f"{tuple(entry_id)} was confirmed at {position} of the repeated log, and is lost"
                )
        await client.jobs.sweep(REPEATED_LOG)
