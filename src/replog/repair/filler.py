"""Performs the effects of filling machines: asks bookies what they hold, reads copies and stores them (F1-F3).

Repairs use it, and what brings a ledger to its full write quorum (W8): there is one code that copies. It copies so many bytes
a second, and has only so many on their way to one bookie, so that appends come first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import trio

from replog.client.archive_reading import SCAN_BYTES_MIN, ArchiveReader
from replog.client.ledger_effects import ClientContext
from replog.config.client import ClientTuning
from replog.errors import ArchiveError, BookieError, ReplogError
from replog.protocol.batch import Batch
from replog.protocol.effects import (
    AskHolding,
    Effect,
    Failed,
    ReadMetadata,
    SendCopy,
    SendCopyRead,
    WriteMetadata,
)
from replog.protocol.filling import Filled, LedgerFilling
from replog.protocol.fragment_copies import FixedFragment, fixed_fragments
from replog.protocol.messages import Status
from replog.protocol.model import LedgerMetadata
from replog.repair.bookie_questions import BookieQuestions
from replog.repair.progress import RepairCounts

# The bytes of one group may be sent at once. A longer burst would keep an append waiting that arrives behind it.
_BURST_S = 1 / 64


class Pace:
    """Copies no more than so many bytes a second, over all that uses it."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    def groups(self, copies: Sequence[SendCopy]) -> Iterator[list[SendCopy]]:
        """These copies in groups that may be sent at once: a 64th of a second's, or a larger one alone."""
        group: list[SendCopy] = []
        group_bytes = 0
        for copy in copies:
            group_bytes += len(copy.batch.data)
            if group and group_bytes > self._bytes_per_s * _BURST_S:
                yield group
                group, group_bytes = [], len(copy.batch.data)
            group.append(copy)
        if group:
            yield group

    async def spend(self, size_bytes: int) -> None:
        """Returns when so many bytes may be copied."""
        now_s = trio.current_time()
        start_s = max(now_s, self._free_at_s)
        # Taken before the wait: fillings that copy at the same time queue up behind one another.
        self._free_at_s = start_s + size_bytes / self._bytes_per_s
        await trio.sleep(start_s - now_s)


class Room:
    """Room for copies on their way to one bookie. One that is larger than all of it goes alone.

    An append that arrives behind such copies waits until they are durable."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._used_bytes = 0
        self._waiting = trio.lowlevel.ParkingLot()

    async def take(self, size_bytes: int) -> None:
        """Returns when there is room for so many bytes: they must be given back."""
        while self._used_bytes and self._used_bytes + size_bytes > self._bytes_max:
            await self._waiting.park()
        self._used_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        """So many bytes have arrived, or were lost."""
        self._used_bytes -= size_bytes
        self._waiting.unpark_all()


class FragmentFiller:
    """Runs filling machines: any number at once, which share a pace and the room before each bookie."""

    def __init__(
        self, context: ClientContext, questions: BookieQuestions, options: ClientTuning, counts: RepairCounts
    ) -> None:
        self._context = context
        self._questions = questions
        self._options = options
        self._counts = counts
        self._pace = Pace(options.repair_bytes_per_s)
        self._rooms: dict[str, Room] = {}  # by bookie

    async def run(self, machine: LedgerFilling) -> Filled:
        """Performs the machine's effects. Raises what it failed with."""
        failure: ReplogError | None = None
        machine.start()
        # Each answer may have others follow, while those that were sent before are on their way.
        async with trio.open_nursery() as nursery:

            def perform_next() -> None:
                nonlocal failure
                copies: dict[str, list[SendCopy]] = {}
                for effect in machine.take_effects():
                    if isinstance(effect, SendCopy):
                        copies.setdefault(effect.bookie_id, []).append(effect)
                    elif isinstance(effect, Failed):
                        failure = effect.error
                    else:
                        nursery.start_soon(perform, self._perform, effect)
                for of_bookie in copies.values():
                    for group in self._pace.groups(of_bookie):
                        nursery.start_soon(perform, self._store, group)

            async def perform(do: Callable[[Any, LedgerFilling], Awaitable[None]], what: object) -> None:
                await do(what, machine)
                if machine.is_done:
                    # It was overtaken: nothing that is still under way matters.
                    nursery.cancel_scope.cancel()
                perform_next()

            perform_next()
        if failure is not None:
            raise failure
        return machine.result

    async def _perform(self, effect: Effect, machine: LedgerFilling) -> None:
        if isinstance(effect, AskHolding):
            await self._ask_holding(effect, machine)
        elif isinstance(effect, SendCopyRead):
            await self._read(effect, machine)
        elif isinstance(effect, WriteMetadata | ReadMetadata):
            await self._context.records.perform(effect, machine)

    async def _ask_holding(self, effect: AskHolding, machine: LedgerFilling) -> None:
        fragment = FixedFragment(0, effect.first_entry_id, effect.last_entry_id, (), effect.stamp)
        ranges: Sequence[tuple[int, int, int]]
        try:
            if effect.bookie_id == machine.archive:
                ranges = await self._reader.ranges(machine.metadata.ledger_id, machine.archive)
            else:
                ranges = (await self._questions.holding(effect.bookie_id, machine.metadata, fragment)).ranges
        except (BookieError, ArchiveError) as error:
            machine.holding_unknown(effect.bookie_id, str(error))
        else:
            machine.holding_told(effect.bookie_id, ranges)

    async def _read(self, effect: SendCopyRead, machine: LedgerFilling) -> None:
        metadata, entry_id = machine.metadata, effect.entry_id
        batches: Sequence[Batch]
        try:
            if effect.bookie_id == machine.archive:
                batches = await self._reader.read(metadata.ledger_id, machine.archive, entry_id, SCAN_BYTES_MIN)
            else:
                batches = await self._questions.copies(effect.bookie_id, metadata, entry_id, effect.stamp)
        except (BookieError, ArchiveError) as error:
            machine.copies_unreadable(effect.bookie_id, effect.entry_id, str(error))
            return
        if batches:
            machine.copies_found(effect.bookie_id, effect.entry_id, batches)
        else:
            machine.copies_unreadable(effect.bookie_id, effect.entry_id)

    @property
    def _reader(self) -> ArchiveReader:
        reader = self._context.archive_reader
        assert reader is not None, "a client whose records can name archives has a reader of them"
        return reader

    def _new_room(self) -> Room:
        return Room(self._options.repair_in_flight_bytes_max)

    async def _store(self, copies: Sequence[SendCopy], machine: LedgerFilling) -> None:
        """Stores these copies on one bookie."""
        bookie_id, term = copies[0].bookie_id, copies[0].term
        batches = [each.batch for each in copies]
        size_bytes, room = sum(len(each.data) for each in batches), self._rooms.setdefault(bookie_id, self._new_room())
        await self._pace.spend(size_bytes)
        await room.take(size_bytes)
        try:
            answers = await self._questions.store(bookie_id, machine.metadata, batches, term)
        except BookieError as error:
            answers = [error for _ in batches]
        finally:
            room.give(size_bytes)
        for batch, answer in zip(batches, answers, strict=True):
            if isinstance(answer, BookieError):
                machine.copy_refused(bookie_id, batch, str(answer))
            elif answer is Status.FENCED:
                machine.copy_fenced(bookie_id, batch)
            else:
                self._counts.copied_batches += 1
                self._counts.copied_bytes += len(batch.data)
                machine.copy_stored(bookie_id, batch)


def fragment_at(metadata: LedgerMetadata, first_entry_id: int) -> FixedFragment | None:
    """The fragment that begins at this entry, if its range is fixed (F2)."""
    for fragment in fixed_fragments(metadata):
        if fragment.first_entry_id == first_entry_id:
            return fragment
    return None
