"""What a case of the guard is, and where it runs: no clock goes on, and tasks have the same order each time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio
import trio.testing

import replog
from benchmarks.speed.counting import counting, holding
from replog.backends.memory import forget
from replog.config.bookie import BookieTuning
from replog.runtime.threads import Threads, use_threads
from replog.runtime.trio_private import seeded_order

_WARM_UP = 3  # times that the work is done before it is counted: what is made once is made by then

Figures = dict[str, float]


@attrs.frozen
class Work:
    """What is counted: `run` with what `prepare` made. It passes so many entries. Where these are large enough to tell how
    often they are copied, `payload_bytes` says how large all of them are; else 0."""

    prepare: Callable[[], Any]
    run: Callable[[Any], Awaitable[None]]
    entries: int
    payload_bytes: int = 0


@attrs.frozen
class Case:
    """A hot path. `open` gets an empty directory; it may be opened once in a trio run."""

    name: str
    what: str
    open: Callable[[Path], AbstractAsyncContextManager[Work]]


def measure(case: Case, directory: Path) -> Figures:
    """What an entry costs: `calls`, `instructions` and `steps` (see `Counts`), the same each time. Of large entries also
    `held`, the same within a hundredth: how much memory was taken at most, in bytes for each byte of payload; an entry that
    is kept counts once, and each copy of it once more while it lives."""
    with seeded_order(0):
        return trio.run(_measure, case, directory, clock=trio.testing.MockClock())


async def _measure(case: Case, directory: Path) -> Figures:
    use_threads(_StillThreads())
    async with case.open(directory) as work:
        for _ in range(_WARM_UP):
            await work.run(work.prepare())
        prepared = work.prepare()
        with counting() as counts:
            await work.run(prepared)
        found = {name: count / work.entries for name, count in attrs.asdict(counts).items()}
        if work.payload_bytes:
            prepared = work.prepare()
            with holding() as held:
                await work.run(prepared)
            found["held"] = held.peak_bytes / work.payload_bytes
    return found


class _StillThreads(Threads):
    """Their clock stands still: a bookie commits in the event loop while its disk is fast, and that it is here."""

    def clock_s(self) -> float:
        return 0.0


@asynccontextmanager
async def embedded(directory: Path, bookies: int) -> AsyncIterator[replog.Client]:
    """A client with bookies that keep everything in memory, and forget it at the end."""
    options = BookieTuning(storage="memory", commit_inline_when_idle=True)
    try:
        async with replog.embed(directory, bookies=bookies, metastore="memory:", bookie_options=options) as client:
            yield client
    finally:
        for number in range(bookies):
            forget(str(directory / f"bookie-{number}"))
