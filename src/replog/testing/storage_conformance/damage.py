"""The suite for storages in files: damage is reported, never taken for absence, never returned as data (B3, R4)."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from replog.testing.storage_conformance.candidate import Candidate, OpenStorage, expect
from replog.testing.storage_conformance.checker import Checker
from replog.testing.storage_conformance.damaging import DamageFile, Way, ways_to_damage, ways_to_flip
from replog.testing.storage_conformance.model import Model
from replog.testing.storage_conformance.workload import Workload

_COMMITS = 40
_LIVES = 4


def check_storage_damage(
    open_storage: OpenStorage,
    directory: Path,
    *,
    sample: int = 16,
    seed: int = 0,
    damage: DamageFile | None = None,
) -> None:
    """Check how a storage in files handles damaged files. Raise `AssertionError` with the sentence that does not hold.

    A storage is filled and closed. Then each regular file below its path is damaged, in copies, in one place at a time:
    `sample` bits are flipped, a quarter as many while the storage is open, and as many files are truncated, all drawn from
    `seed`. Each copy is opened twice. Opening may raise a `StorageError`, but not that the storage is in use or full, and
    `StorageDamagedError` must name a file. Otherwise each read returns what was stored, or raises `StorageUncertainError`:
    never wrong data or marks, never absence of something committed, never another exception.

    A storage whose `doubt()` reports a loss in a ledger may lack the lost entries; the second opening must report the
    same, as `bound_doubt` has bounded it (B8). Entries that `damage()` lists cannot be read; entries that cannot be
    read after `scrub()` are listed; entries that are stored again are readable, and listed no more.

    `damage(path, chance)` is one more way to damage a file: it damages the file of this path and returns what it did, in
    words, or None if it left the file alone. It is called `sample` times for each file.

    `open_storage` and `directory` are as for `check_storage`. Use options that make its files small: they are copied for
    each damage, and the copies are removed unless the suite fails. The suite is not for storages without checksums, which
    cannot pass it.
    """
    original = Candidate(open_storage, directory / "storage")
    model, bookie_id = _fill(original, seed)
    is_there = original.path.is_dir()
    expect(
        is_there,
        "this conformance suite is for storages in files below the path that they are given",
        "no directory there",
    )
    pristine = directory / "pristine"
    shutil.copytree(original.path, pristine, symlinks=True)
    names = sorted(
        path.relative_to(pristine) for path in pristine.rglob("*") if path.is_file() and not path.is_symlink()
    )
    expect(bool(names), "this conformance suite is for storages in files below the path that they are given", "no file")
    checker = Checker(model, bookie_id, {name.name for name in names})
    for name in names:
        content = (pristine / name).read_bytes()
        chance = random.Random(f"{seed} {name}")
        victim = _Victim(original, original.path / name, checker, f"{name}, {len(content)} bytes; seed={seed}")
        for way in ways_to_damage(content, sample, chance, damage):
            _renew(original.path, pristine)
            victim.damage_closed(way)
        for way in ways_to_flip(content, sample // 4, chance):
            _renew(original.path, pristine)
            victim.damage_open(way)
    shutil.rmtree(pristine)
    shutil.rmtree(original.path)


def _fill(candidate: Candidate, seed: int) -> tuple[Model, str]:
    """Open, fill and close a storage several times, so that its files have what is written when one opens and closes."""
    workload, model, bookie_id = Workload(seed), Model(), ""
    for life in range(_LIVES):
        with candidate.opened() as storage:
            bookie_id = storage.bookie_id
            for _ in range(_COMMITS // _LIVES):
                mutations = workload.next_commit()
                storage.commit(mutations)
                model.commit(mutations)
            if life == _LIVES // 2:
                storage.compact(is_major=True)
    with candidate.opened() as storage:
        if wrong := model.difference(storage):
            expect(False, "read, marks: what was committed is there, before anything is damaged", wrong)
    return model, bookie_id


def _renew(path: Path, pristine: Path) -> None:
    shutil.rmtree(path)
    shutil.copytree(pristine, path, symlinks=True)


class _Victim:
    """One file of a storage, which is damaged in one place at a time."""

    def __init__(self, candidate: Candidate, path: Path, checker: Checker, words: str) -> None:
        self._candidate = candidate
        self._path = path
        self._checker = checker
        self._words = words
        self._is_opened = False  # since it was damaged

    def damage_closed(self, way: Way) -> None:
        """Damage the file, and open the storage twice: the first opening may have repaired or removed the evidence."""
        how = way(self._path)
        if how is None:
            return
        self._is_opened = False
        with self._told(how):
            self._open(is_first=True)
            self._open(is_first=False)

    def damage_open(self, way: Way) -> None:
        """Damage the file while a storage has it open, and check the storage then, and after it was opened again."""
        with closing(self._candidate.open()) as storage:
            how = way(self._path) if self._path.is_file() else None
            if how is None:
                # It was enough to open it: the file is gone, or shorter.
                return
            how = f"while it was open, {how}"
            with self._told(how):
                self._checker.check(storage)
                self._checker.check_scrub(storage)
        self._is_opened = False
        with self._told(how):
            self._open(is_first=False)

    def _open(self, *, is_first: bool) -> None:
        storage = self._checker.open(self._candidate)
        if storage is None:
            return
        with closing(storage):
            doubtful = self._checker.check(storage)
            self._checker.check_bounding(storage, is_first=is_first or not self._is_opened)
            self._is_opened = True
            if is_first:
                return
            doubtful += self._checker.check_scrub(storage)
            self._checker.check_mending(storage, list(dict.fromkeys(doubtful)))
            left = self._checker.check_settling(storage)
        if left is not None:
            self._checker.check_settled(self._candidate, left)

    @contextmanager
    def _told(self, how: str) -> Iterator[None]:
        try:
            yield
        except AssertionError as error:
            raise AssertionError(f"{error}\n  after damage: {how} [{self._words}]") from error
        except Exception as error:
            error.add_note(f"after damage: {how} [{self._words}]")
            raise
