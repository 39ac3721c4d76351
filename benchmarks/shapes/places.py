"""Where shapes are measured: any number of bookies in this process, on real files, with any quorum."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Protocol

import attrs
import trio

import replog
from benchmarks.figures import Meter
from benchmarks.loads import recycled, warm_up
from benchmarks.setting import Setting
from benchmarks.storage.stores import fresh
from replog.config import BookieOptions, ClientOptions
from replog.protocol.quorum import Quorum

_SPARE_FILES_MAX = 4  # of each of up to nine bookies


class AnyPlace(Protocol):
    """Where clients come from, and what they cost."""

    def meter(self) -> Meter:
        """Time and CPU time from now on, of all processes."""

    def client(self, options: ClientOptions | None = None) -> AbstractAsyncContextManager[replog.Client]:
        """A client, of a place that is as it was found when the client is left."""


@attrs.frozen
class Embedded:
    """Bookies that a client embeds, one in each of these directories."""

    directories: Sequence[Path]
    spare_files: int

    def meter(self) -> Meter:
        """Time and CPU time from now on."""
        return Meter()

    def first(self, count: int) -> Embedded:
        """So many of these bookies."""
        return attrs.evolve(self, directories=self.directories[:count])

    @asynccontextmanager
    async def client(self, options: ClientOptions | None = None) -> AsyncIterator[replog.Client]:
        """A client; its default quorum has all bookies. Nothing but spare files is left in the end of what was written."""
        storage = f"files?spare_files={self.spare_files}"
        bookie_options = BookieOptions(storage=storage)
        quorum = majority(len(self.directories))
        async with replog.embed(
            self.directories, options=options, bookie_options=bookie_options, quorum=quorum
        ) as client:
            yield client
            for name in await client.logs():
                await client.delete_log(name)
            for ledger_id in await client.ledgers():
                await client.delete_ledger(ledger_id)
            if self.spare_files:
                await recycled(client)


def majority(bookies: int) -> Quorum:
    """All of so many bookies get each entry, and most of them must have it."""
    return Quorum(bookies, bookies, bookies // 2 + 1)


@contextmanager
def embedded(setting: Setting, bookies: int) -> Iterator[Embedded]:
    """So many bookies in directories that are removed at the end. Their journal files were used before."""
    with fresh(setting.directory, "shapes") as directory:
        directories = [directory / f"{number}" for number in range(bookies)]
        place = Embedded(directories, min(setting.three.spare_files, _SPARE_FILES_MAX))
        trio.run(warm_up, place, place.spare_files)
        yield place
