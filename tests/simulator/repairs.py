"""Random schedules of repairs (F1-F6, B8, B8a, W7).

Bookies are lost for good, replaced, shortened, damaged and away, while a ledger is written, recovered and closed, and several
fillers work on it at once and die anywhere. The bookies and the fillers' machines are those of the library. Writer and recovery
are scripted: what they do to records and bookies is all that a filler meets of them. A run follows from its seed. After each step
the oracle checks:

- A bookie's fence is never above the record's term: no filler fences a writer (F2).
- A filler changes only indices of fragments whose range was fixed, and names a bookie only if it holds what others do (F1, F4).
- A bookie drops nothing of a fragment that names it, whoever fills that fragment meanwhile (F5).
- A batch that is stored anywhere is one that the writer built, byte for byte (F3, T3).

In the end all faults cease, and fillers run until nothing changes: then every entry of the closed ledger that any bookie has
is on its whole write set, as far as there are bookies.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import attrs

from replog.protocol.batch import Batch
from replog.protocol.digest import DigestType
from replog.protocol.fragment_copies import fixed_fragments
from replog.protocol.messages import FenceRequest, Status
from replog.protocol.model import Fragment, LedgerMetadata, LedgerState
from replog.protocol.quorum import Quorum
from tests.protocol.driving_filling import KEY, LEDGER, Faults, Filler, Releaser, World

QUORUMS = (Quorum(3, 3, 2), Quorum(3, 3, 2), Quorum(2, 2, 1), Quorum(5, 3, 2), Quorum(4, 2, 2), Quorum(1, 1, 1))
STEPS = 160
FILLERS_MAX = 3


class Violation(AssertionError):
    """Something happened that must not."""


class Repairs:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = chance = random.Random(seed)
        quorum = chance.choice(QUORUMS)
        names = [*"abcdefgh"]
        chance.shuffle(names)
        digest_type = chance.choice(list(DigestType))
        self.world = World(quorum, [(0, names[: quorum.ensemble])], LedgerState.OPEN, digest_type=digest_type)
        self.knows_password = chance.random() < 0.3
        self.fillers: list[Filler] = []
        self.confirmed = -1  # the last entry that the writer confirmed
        self.lost: set[str] = set()
        self.releases: dict[str, Iterator[None]] = {}  # by bookie: those under way (F5)
        self.harmed: set[str] = set()  # bookies that lost something while fillers were under way
        self.counts: dict[str, int] = {}
        self._events = [
            *[self._append] * 6,
            *[self._step] * 40,
            *[self._begin_filling] * 4,
            *[self._change_ensemble] * 2,
            self._lose,
            self._shorten,
            self._damage,
            self._leave,
            self._return,
            self._kill_filler,
            *[self._begin_release] * 3,
            *[self._step_release] * 12,
            self._recover,
            self._close,
        ]

    def count(self, what: str) -> None:
        """Something happened."""
        self.counts[what] = self.counts.get(what, 0) + 1

    def run(self) -> None:
        """Raises `Violation`."""
        for _ in range(STEPS):
            self.chance.choice(self._events)()
            self._check_bookies()
        self._calm()

    # -- the writer, and a recovery ---------------------------------------------------------------------------------

    @property
    def _last(self) -> Fragment:
        return self.world.metadata.last_fragment

    @property
    def _usable(self) -> list[str]:
        return [each for each in self.world.bookies if each not in self.world.away]

    def _append(self) -> None:
        """A gathering, which some bookies of its write sets miss; it is confirmed if enough have it, and else the writer changes
        its ensemble, or waits."""
        world, quorum = self.world, self.world.metadata.quorum
        if world.metadata.state is not LedgerState.OPEN:
            return
        first, count = self.confirmed + 1, self.chance.choice((1, 2, 5, 12))
        batches = []
        for rotation in range(min(quorum.stride, count)):
            ids = range(first + rotation, first + count, quorum.stride)
            batches.append(world.make(ids[0], [b"%d" % entry_id for entry_id in ids]))
        takers = {
            index
            for index, bookie_id in enumerate(self._last.ensemble)
            if bookie_id in self._usable and self.chance.random() < 0.9
        }
        mask = sum(1 << index for index in takers)
        if not all(quorum.is_acknowledged(batch.first_entry_id, mask) for batch in batches):
            return
        for batch in batches:
            for index in quorum.write_set(batch.first_entry_id):
                if index in takers:
                    self._add(self._last.ensemble[index], batch)
        world.batches += batches
        self.confirmed = first + count - 1
        self.count("appended")

    def _add(self, bookie_id: str, batch: Batch) -> None:
        answer = self.world.add(bookie_id, batch)
        # One that is in doubt takes no plain adds (B8); nobody may have fenced the writer but a recovery.
        if answer is Status.FENCED:
            raise Violation(f"{bookie_id} fenced the writer (F2)")

    def _change_ensemble(self) -> None:
        """The writer replaces bookies, behind its last add confirmed (C2)."""
        world = self.world
        if world.metadata.state is not LedgerState.OPEN or self.confirmed < 0:
            return
        ensemble = list(self._last.ensemble)
        spare = [each for each in self._usable if each not in ensemble]
        gone = [index for index, each in enumerate(ensemble) if each not in self._usable]
        for index in gone or [self.chance.randrange(len(ensemble))]:
            if spare:
                ensemble[index] = spare.pop(self.chance.randrange(len(spare)))
        fragment = Fragment(self.confirmed + 1, tuple(ensemble))
        self._put(world.metadata.with_fragment(fragment))
        self.count("ensemble changed")

    def _recover(self) -> None:
        """Fences whom it reaches, and closes the ledger; at times it dies in between."""
        world = self.world
        if world.metadata.state is LedgerState.CLOSED or self.chance.random() < 0.7:
            return
        if world.metadata.state is LedgerState.OPEN:
            self._put(attrs.evolve(world.metadata, state=LedgerState.IN_RECOVERY, term=2))
            self.count("in recovery")
        for bookie_id in self._last.ensemble:
            if bookie_id in self._usable and self.chance.random() < 0.8:
                world.bookies[bookie_id].handle(FenceRequest(1, LEDGER, KEY, 2))
        if self.chance.random() < 0.7:
            self._put(world.metadata.closed_at(self.confirmed))
            self.count("recovered")

    def _close(self) -> None:
        if self.world.metadata.state is LedgerState.OPEN and self.chance.random() < 0.3:
            self._put(self.world.metadata.closed_at(self.confirmed))
            self.count("closed")

    def _put(self, metadata: LedgerMetadata) -> None:
        world = self.world
        world.metadata, world.version = attrs.evolve(metadata, token=f"other {world.version}"), world.version + 1

    # -- faults ---------------------------------------------------------------------------------------------------------

    def _lose(self) -> None:
        """For good, and declared so; rarely so many that entries are gone."""
        if self.world.bookies and self.chance.random() < 0.25 and (len(self.lost) < 2 or self.chance.random() < 0.1):
            victim = self.chance.choice(list(self.world.bookies))
            self.world.lose(victim)
            self.lost.add(victim)
            self.count("lost")

    def _shorten(self) -> None:
        if self.world.bookies and self.chance.random() < 0.2:
            victim = self.chance.choice(list(self.world.bookies))
            self.world.shorten(victim, self.chance.randrange(self.confirmed + 2))
            self.releases.pop(victim, None)  # its process ended
            self.harmed.add(victim)
            self.count("shortened")

    def _damage(self) -> None:
        bookies = [name for name, each in self.world.bookies.items() if each.disk.batches.get(LEDGER)]
        if bookies and self.chance.random() < 0.4:
            victim = self.chance.choice(bookies)
            self.harmed.add(victim)
            disk = self.world.bookies[victim].disk
            batch = self.chance.choice(disk.batches[LEDGER])
            disk.damaged |= {(LEDGER, entry_id) for entry_id in batch.entry_ids}
            self.count("damaged")

    def _leave(self) -> None:
        if self._usable and len(self.world.away) < 2:
            self.world.away.add(self.chance.choice(self._usable))

    def _return(self) -> None:
        if self.world.away:
            self.world.away.discard(self.chance.choice(sorted(self.world.away)))

    def _kill_filler(self) -> None:
        if self.fillers:
            self.fillers.pop(self.chance.randrange(len(self.fillers)))
            self.count("filler killed")
            if not self.fillers:
                self.harmed.clear()

    # -- fillers --------------------------------------------------------------------------------------------------------

    def _begin_filling(self) -> None:
        fixed = fixed_fragments(self.world.metadata)
        if not fixed or len(self.fillers) >= FILLERS_MAX:
            return
        fragment = self.chance.choice(fixed)
        gone = [index for index, each in enumerate(fragment.ensemble) if each in self.lost]
        if self.chance.random() < 0.1:
            # One that is away is replaced, too, though it is not lost.
            gone += [index for index, each in enumerate(fragment.ensemble) if each in self.world.away]
        spare = [each for each in self._usable if each not in fragment.ensemble]
        self.chance.shuffle(spare)
        filler = self.world.filler(
            fragment.place, replacements=dict(zip(gone, spare, strict=False)), knows_password=self.knows_password
        )
        filler.faults = self.chance.choice((Faults(), Faults(lost_rate=0.1), Faults(answer_lost_rate=0.2)))
        filler.batches_per_read = self.chance.choice((1, 2, None))
        filler.start()
        self.fillers.append(filler)
        self.count("filling")

    def _step(self) -> None:
        if not self.fillers:
            return
        filler = self.chance.choice(self.fillers)
        before = self.world.metadata
        if not filler.is_over:
            filler.step(self.chance)
        if self.world.metadata is not before:
            self._check_change(before, self.world.metadata)
        if filler.is_over:
            self.fillers.remove(filler)
        if not self.fillers:
            self.harmed.clear()

    # -- bookies that drop what is others' (F5) -------------------------------------------------------------------------

    def _begin_release(self) -> None:
        idle = [each for each in self.world.bookies if each not in self.releases]
        if idle:
            bookie_id = self.chance.choice(idle)
            self.releases[bookie_id] = Releaser(self.world, bookie_id).steps()

    def _step_release(self) -> None:
        if not self.releases:
            return
        bookie_id = self.chance.choice(sorted(self.releases))
        before = self._dropped(bookie_id)
        # A bookie that is lost, or whose process died, goes on with nothing.
        if bookie_id not in self.world.bookies or next(self.releases[bookie_id], self) is self:
            del self.releases[bookie_id]
        if self._dropped(bookie_id) > before:
            self.count("dropped")
            self._check_dropped(bookie_id, before)

    def _dropped(self, bookie_id: str) -> int:
        return len(self.world.bookies[bookie_id].disk.dropped) if bookie_id in self.world.bookies else 0

    def _check_dropped(self, bookie_id: str, before: int) -> None:
        """By the record, the dropped entries are not the bookie's, fragment by fragment and rotation by rotation (W1)."""
        bookie = self.world.bookies[bookie_id]
        for fragment in fixed_fragments(self.world.metadata):
            for each in bookie.disk.dropped[before:]:
                if each.stamp != fragment.term or bookie_id not in fragment.ensemble:
                    continue
                index, last = fragment.ensemble.index(bookie_id), min(each.last_entry_id, fragment.last_entry_id)
                for entry_id in range(each.first_entry_id, last + 1, each.stride):
                    is_own = entry_id >= fragment.first_entry_id and self.world.metadata.quorum.stores(index, entry_id)
                    if is_own and not bookie.disk.holds(LEDGER, entry_id):
                        raise Violation(f"{bookie_id} dropped entry {entry_id} of {fragment}, which names it (F5)")

    # -- the oracle -------------------------------------------------------------------------------------------------------

    def _check_bookies(self) -> None:
        world = self.world
        known = {batch.data for batch in world.batches}
        for bookie_id, bookie in world.bookies.items():
            marks = bookie.disk.marks.get(LEDGER)
            if marks is not None and marks.fence_term > world.metadata.term:
                raise Violation(
                    f"{bookie_id} is fenced at {marks.fence_term}, above the record's {world.metadata.term}"
                )
            if any(batch.data not in known for batch in bookie.disk.batches.get(LEDGER, ())):
                raise Violation(f"{bookie_id} stores a batch that the writer never built (F3)")

    def _check_change(self, before: LedgerMetadata, after: LedgerMetadata) -> None:
        """A filler changed the record."""
        self.count("record changed")
        if (
            attrs.evolve(
                after, fragments=before.fragments, gaps=before.gaps, token=before.token, revision=before.revision
            )
            != before
        ):
            raise Violation(f"a filler changed more than fragments and gaps: {before} to {after}")
        fixed = {each.place: each for each in fixed_fragments(before)}
        for place, (one, other) in enumerate(zip(before.fragments, after.fragments, strict=True)):
            if one == other:
                continue
            if place not in fixed or one.first_entry_id != other.first_entry_id:
                raise Violation(f"a filler changed fragment {place}, which is not fixed (F2)")
            if len(set(other.ensemble)) < len(other.ensemble):
                raise Violation(f"a filler named a bookie twice: {other}")
            for index, bookie_id in enumerate(other.ensemble):
                if bookie_id != one.ensemble[index]:
                    self._check_newcomer(place, index, bookie_id, one)

    def _check_newcomer(self, place: int, index: int, bookie_id: str, former: Fragment) -> None:
        if bookie_id in self.harmed or bookie_id not in self.world.bookies or len(self.fillers) > 1:
            # It may have said that it holds everything, and lost it since; or another filler has stored what nobody had when this
            # one asked. The next filling finds that.
            return
        held = self._held(bookie_id)
        fragment = next(each for each in fixed_fragments(self.world.metadata) if each.place == place)
        for entry_id in range(fragment.first_entry_id, fragment.last_entry_id + 1):
            if self.world.metadata.quorum.stores(index, entry_id) and entry_id not in held:
                others = [each for each in former.ensemble if each in self.world.bookies]
                if any(entry_id in self._held(each) for each in others):
                    raise Violation(f"{bookie_id} replaces {former.ensemble[index]} without entry {entry_id} (F1)")

    def _held(self, bookie_id: str) -> set[int]:
        disk = self.world.bookies[bookie_id].disk
        stored = {each for batch in disk.batches.get(LEDGER, ()) for each in batch.entry_ids}
        return {each for each in stored if (LEDGER, each) not in disk.damaged}

    def _calm(self) -> None:
        world = self.world
        world.away.clear()
        while self.releases:
            self._step_release()
        for filler in self.fillers:
            filler.faults = Faults()
        while self.fillers:
            self._step()
        self.harmed.clear()
        if world.metadata.state is not LedgerState.CLOSED:
            self._put(world.metadata.closed_at(self.confirmed))
        for _ in range(3):
            for fragment in fixed_fragments(world.metadata):
                self._fill_calmly(fragment.place)
        self._check_calm()

    def _fill_calmly(self, place: int) -> None:
        ensemble = self.world.metadata.fragments[place].ensemble
        gone = [index for index, each in enumerate(ensemble) if each in self.lost]
        spare = [each for each in self.world.bookies if each not in ensemble]
        replacements = dict(zip(gone, spare, strict=False))
        before = self.world.metadata
        result = self.world.fill(place, replacements=replacements, knows_password=self.knows_password)
        if result.differing:
            raise Violation(f"copies differ that nobody falsified: {result.differing}")
        if self.world.metadata is not before:
            self._check_change(before, self.world.metadata)

    def _check_calm(self) -> None:
        metadata, quorum = self.world.metadata, self.world.metadata.quorum
        for fragment in fixed_fragments(metadata):
            members = [each for each in fragment.ensemble if each in self.world.bookies]
            held = {each: self._held(each) for each in members}
            for entry_id in range(fragment.first_entry_id, fragment.last_entry_id + 1):
                holders = {each for each in members if entry_id in held[each]}
                should = {fragment.ensemble[index] for index in quorum.write_set(entry_id)} & set(members)
                if holders and not should <= holders:
                    raise Violation(f"entry {entry_id} is only on {sorted(holders)}, not on {sorted(should)} (F1)")
            spare = [each for each in self.world.bookies if each not in fragment.ensemble]
            if spare and set(fragment.ensemble) & self.lost:
                raise Violation(f"{fragment} names a lost bookie, and {spare} are there (B8a)")


def run(seed: int) -> dict[str, int]:
    """One run; returns how often what happened. Raises `Violation`."""
    repairs = Repairs(seed)
    try:
        repairs.run()
    except AssertionError as error:
        raise Violation(f"seed {seed}: {error}") from error
    return repairs.counts
