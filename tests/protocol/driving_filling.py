"""Drives the machine that fills a fragment, over bookies in memory: with faults, in any order, killed at any effect."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from replog.protocol.batch import Batch, build
from replog.protocol.digest import Digest, DigestType, ledger_key, ledger_key_check
from replog.protocol.effects import (
    AskHolding,
    Effect,
    Failed,
    Finished,
    ReadMetadata,
    SendCopy,
    SendCopyRead,
    WriteMetadata,
)
from replog.protocol.entry_ranges import EntryRanges
from replog.protocol.filling import Filled, LedgerFilling
from replog.protocol.fragment_copies import Copies, fixed_fragments
from replog.protocol.holding import Holding, hold
from replog.protocol.messages import AddRequest, CopyReadRequest, CopyRequest, RangesRequest, Status
from replog.protocol.model import Fragment, LedgerMetadata, LedgerState
from replog.protocol.quorum import Quorum
from replog.protocol.releasing import Release, foreign_ranges
from tests.protocol.bookies import Bookie

LEDGER = 7
PASSWORD = b"secret"
KEY = ledger_key(LEDGER, PASSWORD)


@attrs.define
class Faults:
    """Probabilities per effect. `dies_after` so many effects the filler is killed."""

    lost_rate: float = 0.0
    answer_lost_rate: float = 0.0
    dies_after: int | None = None


class World:
    """A ledger's record, and bookies that store it."""

    def __init__(
        self,
        quorum: Quorum,
        fragments: Sequence[tuple[int, Sequence[str]]],
        state: LedgerState = LedgerState.CLOSED,
        last_entry_id: int | None = 29,
        digest_type: DigestType = DigestType.CRC32C,
        term: int = 1,
    ) -> None:
        self.bookies = {name: Bookie() for name in "abcdefgh"}
        self.away: set[str] = set()
        self.digest = Digest(digest_type, LEDGER, PASSWORD)
        self.metadata = LedgerMetadata(
            LEDGER,
            quorum,
            digest_type,
            ledger_key_check(KEY),
            tuple(Fragment(first, tuple(ensemble)) for first, ensemble in fragments),
            state,
            term,
            last_entry_id if state is LedgerState.CLOSED else None,
        )
        self.version = 1
        self.batches: list[Batch] = []
        self.before_write: Callable[[LedgerMetadata], None] = lambda _metadata: None
        self._nonces = 0

    # -- what a writer did --------------------------------------------------------------------------------------------

    def write(self, counts: Iterable[int] = (3,) * 10, missed: Mapping[str, Iterable[int]] | None = None) -> None:
        """Stores gatherings of so many entries from 0 on, everywhere but at those that missed the batches beginning there."""
        first = 0
        for count in counts:
            for rotation in range(min(self.metadata.quorum.stride, count)):
                self._store(first, count, rotation, missed or {})
            first += count

    def _store(self, first: int, count: int, rotation: int, missed: Mapping[str, Iterable[int]]) -> None:
        stride = self.metadata.quorum.stride
        ids = range(first + rotation, first + count, stride)
        batch = self.make(ids[0], [b"%d" % entry_id for entry_id in ids])
        self.batches.append(batch)
        fragment = self.metadata.fragment_of(ids[0])
        for index in self.metadata.quorum.write_set(ids[0]):
            bookie_id = fragment.ensemble[index]
            if ids[0] not in missed.get(bookie_id, ()):
                self.store(bookie_id, batch)

    def make(self, first: int, payloads: Sequence[bytes], stamp: int = 1) -> Batch:
        return build(
            self.digest,
            ledger_id=LEDGER,
            first_entry_id=first,
            stride=self.metadata.quorum.stride,
            payloads=list(payloads),
            last_add_confirmed=first - 1,
            stamp=stamp,
            timestamp_ns=5,
            cumulative_length=100,
        )

    def add(self, bookie_id: str, batch: Batch) -> Status:
        """A writer's add."""
        return self.bookies[bookie_id].handle(AddRequest(1, LEDGER, KEY, batch.stamp, batch)).status

    def store(self, bookie_id: str, batch: Batch) -> None:
        assert self.add(bookie_id, batch) is Status.OK

    def lose(self, bookie_id: str) -> None:
        """Its disk is gone, and it never comes back."""
        del self.bookies[bookie_id]

    def shorten(self, bookie_id: str, entry_id: int) -> None:
        """Its disk forgets what was stored from this entry on, and the bookie knows."""
        self.bookies[bookie_id].disk.lose_from(LEDGER, entry_id)
        self.bookies[bookie_id].restart_in_doubt()

    # -- filling ------------------------------------------------------------------------------------------------------

    def filler(self, place: int = 0, *, knows_password: bool = False, **named: Any) -> Filler:
        self._nonces += 1
        lost = [each for fragment in self.metadata.fragments for each in fragment.ensemble if each not in self.bookies]
        digest = self.digest if knows_password else None
        named.setdefault("lost", lost)
        machine = LedgerFilling(self.metadata, self.version, f"n{self._nonces}", place, digest=digest, **named)
        return Filler(self, machine)

    def fill(self, place: int = 0, **named: Any) -> Filled:
        filler = self.filler(place, **named)
        filler.start()
        filler.run()
        return filler.machine.result

    def lacking(self) -> dict[tuple[int, str], list[tuple[int, int]]]:
        """The lacks that an audit of all fixed fragments finds, by fragment and bookie."""
        found = {}
        for fragment in fixed_fragments(self.metadata):
            copies = Copies(self.metadata.quorum, fragment)
            for bookie_id in fragment.ensemble:
                if bookie_id in self.bookies:
                    copies.told(bookie_id, self.holding(bookie_id, 0, 1 << 40).ranges)
            for index, bookie_id in enumerate(fragment.ensemble):
                if missing := copies.missing(index, bookie_id):
                    found[fragment.place, bookie_id] = list(missing)
        return found

    def holding(self, bookie_id: str, first: int, last: int, stamp: int = 1) -> Holding:
        disk = self.bookies[bookie_id].disk
        ranges = EntryRanges(self.metadata.quorum.stride)
        for batch in disk.batches.get(LEDGER, ()):
            if batch.stamp == stamp and not any((LEDGER, each) in disk.damaged for each in batch.entry_ids):
                ranges.add(batch.first_entry_id, batch.last_entry_id)
        stored = [(*each, ranges.stride) for each in ranges]
        release = self.bookies[bookie_id].leaving.get(LEDGER)
        if release is not None:
            release.asked()
            stored = release.shown(stamp, stored)
        return hold(stored, self.bookies[bookie_id].denial, RangesRequest(1, LEDGER, b"", stamp, first, last))


class Releaser:
    """A bookie that drops what the record says is not its own, one step at a time (F5)."""

    def __init__(self, world: World, bookie_id: str) -> None:
        self.world = world
        self.bookie_id = bookie_id
        self.dropped = 0

    def steps(self) -> Iterator[None]:
        """Reads, hides and refuses, proves, drops, shows."""
        world, bookie = self.world, self.world.bookies[self.bookie_id]
        metadata, version = world.metadata, world.version
        release = Release(foreign_ranges(metadata, self.bookie_id))
        yield
        bookie.leaving[LEDGER] = release
        yield
        if version == world.version:
            world.version += 1
            yield
            for each in release.ranges:
                if release.may_drop():
                    bookie.finish(bookie.ledger(LEDGER).drop(each))
                    self.dropped += 1
                yield
        bookie.leaving.pop(LEDGER, None)

    def run(self) -> None:
        for _ in self.steps():
            pass


class Filler:
    """One filler. `step` performs one of its effects."""

    def __init__(self, world: World, machine: LedgerFilling, faults: Faults | None = None) -> None:
        self.world = world
        self.machine = machine
        self.faults = faults or Faults()
        self.sent: list[Effect] = []
        self.batches_per_read: int | None = None
        self.error: Exception | None = None
        self._waiting: list[Effect] = []

    def start(self) -> None:
        self.machine.start()
        self._waiting += self.machine.take_effects()

    @property
    def is_over(self) -> bool:
        return not self._waiting or (self.faults.dies_after is not None and len(self.sent) >= self.faults.dies_after)

    def run(self, chance: random.Random | None = None) -> None:
        for _ in range(100_000):
            if self.is_over:
                return
            self.step(chance)
        raise AssertionError("the filler never ends")

    def step(self, chance: random.Random | None = None) -> None:
        effect = self._waiting.pop(chance.randrange(len(self._waiting)) if chance else 0)
        self.sent.append(effect)
        self._perform(effect, chance or random.Random(1))
        self._waiting += self.machine.take_effects()

    def run_but_copies(self) -> list[SendCopy]:
        """Performs whatever is not a copy to be stored; returns those, which wait."""
        while others := [each for each in self._waiting if not isinstance(each, SendCopy)]:
            self._waiting.remove(others[0])
            self._waiting.insert(0, others[0])
            self.step()
        return [each for each in self._waiting if isinstance(each, SendCopy)]

    def _perform(self, effect: Effect, chance: random.Random) -> None:
        if isinstance(effect, Finished):
            assert self.machine.is_done
        elif isinstance(effect, Failed):
            self.error = effect.error
        elif isinstance(effect, WriteMetadata):
            self._write(effect, chance)
        elif isinstance(effect, ReadMetadata):
            if self.world.version == 0:
                self.machine.metadata_missing()
            else:
                self.machine.metadata_read(self.world.metadata, self.world.version)
        else:
            assert isinstance(effect, AskHolding | SendCopyRead | SendCopy)
            self._ask(effect, chance)

    def _write(self, effect: WriteMetadata, chance: random.Random) -> None:
        self.world.before_write(effect.metadata)
        if effect.expected != self.world.version:
            self.machine.metadata_conflict()
            return
        if chance.random() < self.faults.lost_rate:
            self.machine.metadata_uncertain()
            return
        self.world.metadata, self.world.version = effect.metadata, self.world.version + 1
        if chance.random() < self.faults.answer_lost_rate:
            self.machine.metadata_uncertain()
        else:
            self.machine.metadata_written(self.world.version)

    def _ask(self, effect: AskHolding | SendCopyRead | SendCopy, chance: random.Random) -> None:
        machine, bookie = self.machine, self.world.bookies.get(effect.bookie_id)
        is_lost = bookie is None or effect.bookie_id in self.world.away or chance.random() < self.faults.lost_rate
        if isinstance(effect, AskHolding):
            if is_lost:
                machine.holding_unknown(effect.bookie_id, "silent")
                return
            holding = self.world.holding(effect.bookie_id, effect.first_entry_id, effect.last_entry_id, effect.stamp)
            machine.holding_told(effect.bookie_id, holding.ranges)
        elif isinstance(effect, SendCopyRead):
            if bookie is None or is_lost:
                machine.copies_unreadable(effect.bookie_id, effect.entry_id)
                return
            request = CopyReadRequest(
                1, LEDGER, b"", effect.entry_id, effect.stamp, 1 << 20, self.world.metadata.stored_key
            )
            answer = bookie.read(request)
            if answer.status is Status.OK:
                machine.copies_found(effect.bookie_id, effect.entry_id, answer.batches[: self.batches_per_read])
            else:
                machine.copies_unreadable(effect.bookie_id, effect.entry_id)
        elif bookie is None or is_lost:
            machine.copy_refused(effect.bookie_id, effect.batch, "silent")
        else:
            self._copy(effect, bookie, chance)

    def _copy(self, effect: SendCopy, bookie: Bookie, chance: random.Random) -> None:
        machine = self.machine
        stored_key = self.world.metadata.stored_key
        request = CopyRequest(1, LEDGER, b"", effect.term, effect.batch, recovery=True, stored_key=stored_key)
        answer = bookie.handle(request)
        if chance.random() < self.faults.answer_lost_rate:
            machine.copy_refused(effect.bookie_id, effect.batch, "silent")
        elif answer.status is Status.OK:
            machine.copy_stored(effect.bookie_id, effect.batch)
        elif answer.status is Status.FENCED:
            machine.copy_fenced(effect.bookie_id, effect.batch)
        else:
            machine.copy_refused(effect.bookie_id, effect.batch, answer.status.name)
