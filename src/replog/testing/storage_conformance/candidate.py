"""Shared by the checks: the storage under test, and assertions that name the broken sentence of the contract."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import trio

from replog.abc import Storage
from replog.protocol.batch import Batch
from replog.protocol.mutations import Mutation

OpenStorage = Callable[[Path], Storage]

PLENTY_BYTES = 1 << 30

_short = reprlib.Repr()
_short.maxlist = _short.maxtuple = _short.maxdict = 12
_short.maxstring = _short.maxother = 600


class Candidate:
    """The storage under test, at one path."""

    def __init__(self, open_storage: OpenStorage, path: Path) -> None:
        self._open_storage = open_storage
        self.path = path

    def open(self) -> Storage:
        """Open the storage; the caller closes it."""
        return self._open_storage(self.path)

    @contextmanager
    def opened(self) -> Iterator[Storage]:
        """Open the storage, as a context manager that closes it."""
        storage = self.open()
        try:
            yield storage
        finally:
            storage.close()

    def twice(self, mutations: Sequence[Mutation]) -> Iterator[Storage]:
        """Yield the storage after these mutations, then once more after it was closed and opened again."""
        with self.opened() as storage:
            storage.commit(mutations)
            yield storage
        with self.opened() as storage:
            yield storage

    def sibling(self, name: str = "2") -> Candidate:
        """Another storage of the same kind, at another path."""
        return Candidate(self._open_storage, self.path.with_name(f"{self.path.name}_{name}"))


def expect(holds: bool, sentence: str, found: object) -> None:
    """Raise `AssertionError` with the sentence of the contract if it does not hold."""
    if not holds:
        raise AssertionError(
            f"broken contract of Storage: {sentence}\n  found: {found if isinstance(found, str) else _short.repr(found)}"
        )


def expect_read(
    storage: Storage, entry: tuple[int, int, int], bytes_max: int, wanted: Sequence[Batch], why: str
) -> None:
    """Read (ledger id, entry id, stamp) by `read`, and check that `read_nowait` agrees."""
    ledger_id, entry_id, stamp = entry
    found = storage.read(ledger_id, entry_id, stamp, bytes_max)
    if found != list(wanted):
        asked = f"read({ledger_id}, {entry_id}, {stamp}, {bytes_max})"
        expect(False, f"{why} [{asked}, wanted {len(wanted)}: {_short.repr(list(wanted))}]", found)
    try:
        at_once = storage.read_nowait(ledger_id, entry_id, stamp, bytes_max)
    except trio.WouldBlock:
        return
    is_part = at_once == found[: len(at_once)] and bool(at_once) == bool(found)
    expect(is_part, "read_nowait: as `read`, but raises `trio.WouldBlock` rather than wait for a disk", at_once)
