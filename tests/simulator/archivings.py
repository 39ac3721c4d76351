"""Random schedules of archivings, recalls, releases and collections (F1, F5, F6, B6, B6a).

Archivers are killed at each await of the code that performs an effect (`repair/archiver.py`), so before and behind each call of
the store and of the metastore; such a call may still arrive hours later. The machines of archiving, filling and releasing, and
the code of archivers and collections are those of the library, over a record, bookies and a store in memory. Some objects are
garbled by the store. A run follows from its seed. After each step the oracle checks:

- Each entry is where the record says it is, byte for byte: in an object of the archive that it names, or on its whole write
  set (F1, F5, T3).

In the end all faults cease, bookies release, two days pass and a collection ends. Then there is no object that the record does
not name, and no bookie has entries that it does not give to bookies; nothing that was killed stays half-done.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Generator, Iterator
from types import SimpleNamespace, coroutine
from typing import Any, cast

import attrs
import pytest
import trio

from replog.client.archives import OpenedArchive
from replog.errors import EntryUnreadableError, LedgerNotFoundError, ReplogError, VersionConflictError
from replog.protocol import archiving
from replog.protocol.archived import ObjectIndex, ObjectName, decode_index, index_bytes
from replog.protocol.archiving import LedgerArchiving, archivable
from replog.protocol.batch import Batch
from replog.protocol.digest import DigestType
from replog.protocol.effects import AskHolding, Effect, ReadMetadata, SendCopy, SendCopyRead, WriteMetadata
from replog.protocol.fragment_copies import all_fixed_fragments
from replog.protocol.quorum import Quorum
from replog.records.archives import COOKIE_NAME, ArchiveRecord
from replog.records.editing import edit
from replog.repair import archive_objects
from replog.repair.archive_objects import GRACE_S, _Collection
from replog.repair.archiver import Archiver
from tests.archiving import MemoryArchive
from tests.protocol.driving_filling import LEDGER, Faults, Filler, Releaser, World

QUORUMS = (Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(2, 2, 1))
STEPS = 900
LAST = 29
OBJECT_BYTES = 400  # so that a fragment has several
_HOUR_S = 3600.0
_LATE_MAX_S = 9 * _HOUR_S  # of a call whose caller waits
_LATE_AT_ALL_S = 100 * _HOUR_S  # of one whose caller was killed
_ARCHIVE = "archive"


class Violation(AssertionError):
    """Something happened that must not."""


@coroutine
def _turn() -> Generator[None, None, None]:
    """Others may do something."""
    yield


@attrs.define(eq=False)
class _Task:
    """Work that is done from one await to the next. `pending` is a call that it is about to make."""

    steps: Coroutine[Any, Any, None]
    pending: Callable[[], object] | None = None
    writing_since_s: float | None = None

    def step(self) -> bool:
        """False once it has ended."""
        try:
            self.steps.send(None)
        except StopIteration:
            return False
        return True


class _Archive(OpenedArchive):
    """An opened archive whose calls take a turn before, and one behind them."""

    def __init__(self, store: MemoryArchive, runs: Archivings) -> None:
        record = ArchiveRecord(_ARCHIVE, "test:bucket", "nonce")
        store.put(COOKIE_NAME, [record.cookie()])
        super().__init__(record, store, trio.CapacityLimiter(1))
        self._runs = runs

    async def call(self, function: Callable[..., Any], *arguments: object) -> Any:
        return await self._runs.made(lambda: function(*arguments))


class _Scan:
    """Reads the entries of one fragment, as a reader of the ledger gets them."""

    def __init__(self, runs: Archivings, first_entry_id: int) -> None:
        self._runs = runs
        self._next = first_entry_id

    async def take(self) -> Any:
        await _turn()
        first = self._next - self._next % 3
        batches = [each for each in self._runs.world.batches if first <= each.first_entry_id < first + 3]
        for entry_id in range(first, first + 3):
            if self._runs.problem_of(entry_id):
                raise EntryUnreadableError(LEDGER, entry_id, "it is nowhere")
        self._next = first + 3
        return SimpleNamespace(first_entry_id=first, last_entry_id=first + 2, stored_batches=batches)


class _Recaller(Filler):
    """Fills from an archive."""

    def __init__(self, world: World, machine: Any, faults: Faults, runs: Archivings) -> None:
        super().__init__(world, machine, faults)
        self._runs = runs

    def _ask(self, effect: AskHolding | SendCopyRead | SendCopy, chance: random.Random) -> None:
        if effect.bookie_id != self.machine.archive:
            super()._ask(effect, chance)
            return
        copy = self.machine.archive.partition("/")[2]
        found = [(index, data) for _, index, data in self._runs.objects(copy)]
        if isinstance(effect, AskHolding):
            rows = [row for index, _ in found for row in zip(index.firsts, index.lasts, index.strides, strict=True)]
            self.machine.holding_told(effect.bookie_id, rows)
            return
        assert isinstance(effect, SendCopyRead)
        batch = self._runs.archived(copy, effect.entry_id)
        if batch is None:
            self.machine.copies_unreadable(effect.bookie_id, effect.entry_id)
        else:
            self.machine.copies_found(effect.bookie_id, effect.entry_id, [batch])


class Archivings:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        quorum = chance.choice(QUORUMS)
        names = [*"abcdefgh"]
        chance.shuffle(names)
        firsts = (0,) if chance.random() < 0.5 else (0, 12)
        fragments = [(first, names[place : place + quorum.ensemble]) for place, first in enumerate(firsts)]
        self.world = World(quorum, fragments, last_entry_id=LAST, digest_type=chance.choice(list(DigestType)))
        self.world.write()
        self.store = MemoryArchive()
        self.archive = _Archive(self.store, self)
        self.store.ended = self._garble
        self.is_deleted = False
        self.counts: dict[str, int] = {}
        self._garbles = chance.random() < 0.5
        self._sleeps = chance.choice((0.0, 0.5, 0.9))
        self._copies = 0
        self._running: _Task | None = None
        self._archivers: list[_Task] = []
        self._collections: list[_Task] = []
        self._recallers: list[_Recaller] = []
        self._releases: dict[str, Iterator[None]] = {}
        self._late: list[tuple[float, Callable[[], object]]] = []
        records = SimpleNamespace(
            perform=self._perform, get=self._get, put=self._put, edit=lambda _what, *functions: edit(*functions)
        )
        self._ledgers = cast(
            Any,
            SimpleNamespace(
                records=records, entropy=SimpleNamespace(token=self._token), context=SimpleNamespace(membership=None)
            ),
        )
        self._events = [
            *[self._archive] * 4,
            *[self._step_archiver] * 100,
            self._kill_archiver,
            *[self._pass_time] * 2,
            self._arrive,
            self._oversleep,
            *[self._collect] * 2,
            *[self._step_collection] * 25,
            *[self._release] * 3,
            *[self._step_release] * 15,
            self._recall,
            *[self._step_recaller] * 40,
            self._kill_recaller,
        ]

    def close(self) -> None:
        """Kills all that is under way."""
        for tasks in (self._archivers, self._collections):
            for each in tasks:
                each.steps.close()
            tasks.clear()

    def count(self, what: str) -> None:
        """Something happened."""
        self.counts[what] = self.counts.get(what, 0) + 1

    def run(self) -> None:
        """Raises `Violation`."""
        deleted_at = self.chance.randrange(STEPS) if self.chance.random() < 0.1 else None
        for step in range(STEPS):
            if step == deleted_at:
                self._delete()
            self.chance.choice(self._events)()
            self._check()
        self._calm()

    # -- what the code of the library calls ---------------------------------------------------------------------------

    async def made(self, call: Callable[[], Any]) -> Any:
        """Makes a call: its caller may be killed before and behind it."""
        task = self._running
        if task is not None:
            task.pending = call
        await _turn()
        if task is not None:
            task.pending = None
        found = call()
        await _turn()
        return found

    async def _get(self, _ledger_id: int) -> Any:
        await _turn()
        if self.is_deleted:
            raise LedgerNotFoundError(LEDGER, "it was deleted")
        found = self.world.metadata, self.world.version
        await _turn()
        return found

    async def _put(self, metadata: Any, expected: int) -> int:
        """Only a collection calls this: it changes nothing but the version."""
        await _turn()
        if self.is_deleted:
            raise LedgerNotFoundError(LEDGER, "it was deleted")
        if expected != self.world.version:
            raise VersionConflictError(str(LEDGER), expected, self.world.version)
        assert metadata == self.world.metadata, "what is written is what was read"
        self.world.version += 1
        await _turn()
        return self.world.version

    async def _perform(self, effect: WriteMetadata | ReadMetadata, machine: LedgerArchiving) -> None:
        if isinstance(effect, ReadMetadata):
            try:
                machine.metadata_read(*await self._get(LEDGER))
            except LedgerNotFoundError:
                machine.metadata_missing()
            return
        is_lost = self.chance.random() < 0.1
        is_done = await self.made(
            (lambda: None) if is_lost and self.chance.random() < 0.5 else (lambda: self._write(effect))
        )
        if is_lost:
            machine.metadata_uncertain()
        elif is_done is None:
            machine.metadata_missing()
        elif is_done:
            machine.metadata_written(self.world.version)
        else:
            machine.metadata_conflict()

    def _write(self, effect: WriteMetadata) -> bool | None:
        if self.is_deleted:
            return None
        if effect.expected != self.world.version:
            return False
        self.world.metadata, self.world.version = effect.metadata, self.world.version + 1
        self.count("named")
        return True

    def _token(self, _size_bytes: int = 16) -> str:
        self._copies += 1
        return f"{self._copies:08x}"

    def _garble(self, _call: str) -> None:
        if self._garbles and self.chance.random() < 0.05:
            name = next(reversed(self.store.contents))
            place = self.chance.randrange(len(self.store.contents[name]))
            data = bytearray(self.store.contents[name])
            data[place] ^= 1
            self.store.contents[name] = bytes(data)
            self.count("garbled")

    # -- archiving ----------------------------------------------------------------------------------------------------

    def _archive(self) -> None:
        fragments = archivable(self.world.metadata)
        if self.is_deleted or not fragments or len(self._archivers) >= 3:
            return
        fragment, copy = self.chance.choice(fragments), self._token()
        machine = LedgerArchiving(self.world.metadata, self.world.version, self._token(), fragment, _ARCHIVE, copy)
        task = _Task(self._archiving(machine, copy))
        self._archivers.append(task)
        self.count("archiving")

    async def _archiving(self, machine: LedgerArchiving, copy: str) -> None:
        archiver = Archiver(self._ledgers, cast(Any, None), cast(Any, None))
        scan = cast(Any, _Scan(self, machine.fragment.first_entry_id))
        machine.start()
        waiting: list[Effect] = machine.take_effects()
        while waiting and not machine.is_done:
            effect = waiting.pop(self.chance.randrange(len(waiting)))
            while self.chance.random() < self._sleeps:  # its machine is suspended, for one
                await _turn()
            task = self._running
            assert task is not None, "a step of an archiver"
            task.writing_since_s = self.store.clock_s if isinstance(effect, WriteMetadata) else None
            try:
                await archiver._perform(effect, machine, scan, self.archive, copy)
            except ReplogError as error:
                self.count(type(error).__name__)
                machine.abandon(error)
            waiting += machine.take_effects()

    def _step_archiver(self) -> None:
        if self._archivers:
            self._step(self._archivers, self._archivers)

    def _kill_archiver(self) -> None:
        """What it was about to call may have been sent."""
        if self._archivers:
            task = self._archivers.pop(self.chance.randrange(len(self._archivers)))
            if task.pending is not None and self.chance.random() < 0.5:
                self._late.append((self.store.clock_s, task.pending))
            task.steps.close()
            self.count("archiver killed before a call" if task.pending else "archiver killed")

    def _arrive(self) -> None:
        if self._late:
            _, call = self._late.pop(self.chance.randrange(len(self._late)))
            call()
            self.count("a call arrived late")

    def _pass_time(self) -> None:
        now_s = self.store.clock_s + self.chance.choice((1, 3, 9, 30)) * _HOUR_S
        since_s = [each.writing_since_s for each in self._archivers if each.writing_since_s is not None]
        if any(now_s - each > _LATE_MAX_S for each in since_s):
            return  # the metastore answers sooner, or not at all
        while any(now_s - each > _LATE_AT_ALL_S for each, _ in self._late):
            self._arrive()
        self.store.clock_s = now_s

    def _oversleep(self) -> None:
        """The machines of all archivers are suspended for two days, and one that is awake collects."""
        if not any(each.writing_since_s is not None for each in self._archivers):
            self.store.clock_s += 48 * _HOUR_S
            self.count("overslept")
            awake = _Task(self._collecting(leaves_last=False))
            self._collections.append(awake)
            while awake in self._collections:
                self._step([awake], self._collections)

    def _step(self, tasks: list[_Task], all_of_them: list[_Task]) -> None:
        self._running = self.chance.choice(tasks)
        if not self._running.step():
            all_of_them.remove(self._running)
        self._running = None

    # -- collecting, releasing, recalling, deleting -------------------------------------------------------------------

    def _collect(self) -> None:
        if len(self._collections) < 2:
            self._collections.append(_Task(self._collecting(leaves_last=self.chance.random() < 0.3)))

    async def _collecting(self, *, leaves_last: bool) -> None:
        found = await _Collection(self.archive, self._ledgers, leaves_last=leaves_last).collect(GRACE_S)
        for what in ("objects", "young"):
            if getattr(found, what):
                self.count(f"collection: {what}")

    def _step_collection(self) -> None:
        if self._collections:
            self._step(self._collections, self._collections)

    def _release(self) -> None:
        bookie_id = self.chance.choice([*self.world.bookies])
        if not self.is_deleted and bookie_id not in self._releases:
            self._releases[bookie_id] = Releaser(self.world, bookie_id).steps()

    def _step_release(self) -> None:
        if self._releases:
            bookie_id = self.chance.choice([*self._releases])
            if next(self._releases[bookie_id], self) is self:
                del self._releases[bookie_id]

    def _recall(self) -> None:
        archived = [each for each in all_fixed_fragments(self.world.metadata) if each.archive]
        if archived and not self.is_deleted and len(self._recallers) < 2:
            plain = self.world.filler(self.chance.choice(archived).place)
            faults = Faults(lost_rate=self.chance.choice((0.0, 0.1)), answer_lost_rate=self.chance.choice((0.0, 0.1)))
            recaller = _Recaller(self.world, plain.machine, faults, self)
            recaller.start()
            self._recallers.append(recaller)
            self.count("recall")

    def _step_recaller(self) -> None:
        if self._recallers:
            recaller = self.chance.choice(self._recallers)
            archived = sum(bool(each.archive) for each in self.world.metadata.fragments)
            recaller.step(self.chance)
            if sum(bool(each.archive) for each in self.world.metadata.fragments) < archived:
                self.count("recalled")
            if recaller.is_over:
                self._recallers.remove(recaller)

    def _kill_recaller(self) -> None:
        if self._recallers:
            self._recallers.pop()
            self.count("recaller killed")

    def _delete(self) -> None:
        """The objects stay: the store is away."""
        self.is_deleted = True
        self.world.version = 0
        self._recallers.clear()
        while self._releases:
            self._step_release()
        self.world.version = 0
        self.count("deleted")

    # -- the oracle ---------------------------------------------------------------------------------------------------

    def objects(self, copy: str) -> list[tuple[ObjectName, ObjectIndex, bytes]]:
        """The intact objects of a copy."""
        found = []
        for text, data in self.store.contents.items():
            name = ObjectName.parse(text)
            if name is not None and name.copy == copy:
                try:
                    found.append((name, decode_index(data[-index_bytes(data) :], len(data)), data))
                except ReplogError:
                    continue
        return found

    def archived(self, copy: str, entry_id: int) -> Batch | None:
        """The batch of an entry, as a reader finds it."""
        for name, index, data in self.objects(copy):
            if name.first_entry_id <= entry_id <= name.last_entry_id:
                place = index.place_of(entry_id)
                if place is None:
                    return None
                try:
                    return index.batches(place, place + 1, data[index.offsets[place] : index.offsets[place + 1]])[0]
                except ReplogError:
                    return None
        return None

    def problem_of(self, entry_id: int) -> str:
        """Why an entry is not where the record says; "" if it is."""
        metadata = self.world.metadata
        fragment = metadata.fragment_of(entry_id)
        written = next(each for each in self.world.batches if each.holds(entry_id))
        if fragment.archive:
            found = self.archived(fragment.archive.partition("/")[2], entry_id)
            if found is None or found.data != written.data:
                return f"entry {entry_id} is not in {fragment.archive}"
            return ""
        for index in metadata.quorum.write_set(entry_id):
            held = self.world.bookies[fragment.ensemble[index]].disk.batches.get(LEDGER, ())
            if not any(each.data == written.data for each in held):
                return f"entry {entry_id} is not on {fragment.ensemble[index]}"
        return ""

    def _check(self) -> None:
        if self.is_deleted:
            return
        # Both of a fragment's ends, and one between: an object that lacks, or a bookie that dropped, lacks more.
        for entry_id in {0, 11, 12, LAST, self.chance.randint(0, LAST)}:
            if problem := self.problem_of(entry_id):
                raise Violation(problem)

    def _calm(self) -> None:
        self.close()
        self._recallers.clear()
        while self._late:
            self._arrive()
        while self._releases:
            self._step_release()
        if not self.is_deleted:
            for bookie_id in self.world.bookies:
                Releaser(self.world, bookie_id).run()
        self.store.clock_s += 48 * _HOUR_S
        self._collections.append(_Task(self._collecting(leaves_last=False)))
        while self._collections:
            self._step_collection()
        self._check_calm()

    def _check_calm(self) -> None:
        fragments = () if self.is_deleted else self.world.metadata.fragments
        named = {each.archive.partition("/")[2] for each in fragments if each.archive}
        for text in self.store.objects_here:
            name = ObjectName.parse(text)
            if name is None or name.copy not in named:
                raise Violation(f"object {text} is named by nobody, and stays (F6)")
        if self.is_deleted:
            return
        for entry_id in range(LAST + 1):
            if problem := self.problem_of(entry_id):
                raise Violation(problem)
            if self.world.metadata.fragment_of(entry_id).archive:
                for bookie_id, bookie in self.world.bookies.items():
                    if any(each.holds(entry_id) for each in bookie.disk.batches.get(LEDGER, ())):
                        raise Violation(f"{bookie_id} keeps entry {entry_id}, which is archived (F5)")


async def _trusts(*_: object) -> None:
    """The metastore did not go back."""


def run(seed: int) -> dict[str, int]:
    """One run; returns how often what happened. Raises `Violation`."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(archiving, "OBJECT_BYTES_MAX", OBJECT_BYTES)
        patched.setattr(archive_objects, "check_metastore", _trusts)
        archivings = Archivings(seed)
        try:
            archivings.run()
        except AssertionError as error:
            raise Violation(f"seed {seed}: {error}") from error
        finally:
            archivings.close()
    return archivings.counts
