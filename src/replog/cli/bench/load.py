"""The load: writes to ledgers for a number of entries, for a time, or until cancelled.

Each ledger has a few tasks. A task pushes its share of the entries that may be in flight, the last of them with `append`, and
starts again when that one is confirmed. So only one entry of each share is awaited, and its latency is measured from its append
to its confirmation. With `batch_entries`, each call is an `extend` instead.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import attrs
import trio

from replog.api import Client
from replog.cli.bench.samples import Samples
from replog.client.ledger_writer import LedgerWriter
from replog.errors import ReplogError
from replog.protocol.quorum import Quorum

CUSTOM = {"made_by": "replog bench"}  # in the metadata of its ledgers, should they ever be left behind
_TASKS_MAX = 8  # of one ledger, with single entries
_DELETE_TIMEOUT_S = 15.0


@attrs.frozen(kw_only=True)
class Settings:
    """The load to make. It ends with `entries` in all ledgers together, or after `seconds`, if they are given."""

    entries: int | None
    seconds: float | None
    size_bytes: int
    in_flight: int  # entries of each ledger
    batch_entries: int
    ledgers: int
    quorum: Quorum | None


class Load:
    """One run. Its counters can be read at any time."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.confirmed_entries = 0
        self.calls = Samples()  # append to confirmation, or a whole extend
        self.elapsed_s = 0.0
        self.cpu_s = 0.0  # of this process
        self._left = settings.entries
        self._end_s = float("inf")
        self._failure: ReplogError | None = None

    async def run(self, writers: list[LedgerWriter]) -> None:
        """Write. If cancelled, the counters stay. Raises the first error of a writer."""
        data = os.urandom(self.settings.size_bytes)
        for writer in writers:
            # Connections are made, and ledgers known to their bookies.
            await writer.append(data)
        began_s, cpu_began_s = time.perf_counter(), time.process_time()
        if self.settings.seconds is not None:
            self._end_s = began_s + self.settings.seconds
        try:
            async with trio.open_nursery() as nursery:
                for writer in writers:
                    for share in self._shares():
                        nursery.start_soon(self._guarded, writer, data, share, nursery.cancel_scope)
        finally:
            self.elapsed_s = time.perf_counter() - began_s
            self.cpu_s = time.process_time() - cpu_began_s
        if self._failure is not None:
            raise self._failure

    def _shares(self) -> list[int]:
        """How many entries each task of a ledger has in flight."""
        settings = self.settings
        if settings.batch_entries > 1:
            return [settings.batch_entries] * max(1, settings.in_flight // settings.batch_entries)
        tasks = min(_TASKS_MAX, settings.in_flight)
        return [settings.in_flight // tasks + (number < settings.in_flight % tasks) for number in range(tasks)]

    async def _guarded(self, writer: LedgerWriter, data: bytes, share: int, scope: trio.CancelScope) -> None:
        try:
            await (self._extend if self.settings.batch_entries > 1 else self._push)(writer, data, share)
        except ReplogError as error:
            # The first one is the cause; later ones most often follow from it.
            self._failure = self._failure or error
            scope.cancel()

    def _take(self, wanted: int) -> int:
        """How many entries to write next; 0 at the end."""
        if time.perf_counter() >= self._end_s:
            return 0
        if self._left is None:
            return wanted
        taken = min(wanted, self._left)
        self._left -= taken
        return taken

    async def _push(self, writer: LedgerWriter, data: bytes, share: int) -> None:
        clock = time.perf_counter
        while count := self._take(share):
            for _ in range(count - 1):
                try:
                    writer.push_nowait(data)
                except trio.WouldBlock:
                    await writer.push(data)
            began_s = clock()
            await writer.append(data)
            self.calls.add(clock() - began_s)
            self.confirmed_entries += count

    async def _extend(self, writer: LedgerWriter, data: bytes, share: int) -> None:
        clock = time.perf_counter
        while count := self._take(share):
            entries = [data] * count
            began_s = clock()
            await writer.extend(entries)
            self.calls.add(clock() - began_s)
            self.confirmed_entries += count


class Ledgers:
    """The ledgers of a run, and what happens to them at its end."""

    def __init__(self, client: Client, settings: Settings, *, keeps: bool) -> None:
        self.ids: list[int] = []
        self.left: list[int] = []  # that should have been deleted
        self.problem = ""  # why not
        self._client = client
        self._settings = settings
        self._keeps = keeps

    @asynccontextmanager
    async def open(self) -> AsyncIterator[list[LedgerWriter]]:
        """Create the ledgers and yield their writers. At the end, close them and delete them unless they are kept.

        `left` has the ledgers that could not be deleted."""
        try:
            async with AsyncExitStack() as stack:
                writers: list[LedgerWriter] = []
                for _ in range(self._settings.ledgers):
                    context = self._client.create_ledger(quorum=self._settings.quorum, custom=CUSTOM)
                    writers.append(await stack.enter_async_context(context))
                    self.ids.append(writers[-1].ledger_id)
                yield writers
        finally:
            if not self._keeps:
                # Shielded: Ctrl-C is how a bench usually ends, and must not leave its ledgers behind.
                with trio.CancelScope(shield=True, deadline=trio.current_time() + _DELETE_TIMEOUT_S):
                    await self._delete()

    async def _delete(self) -> None:
        self.left = list(self.ids)
        try:
            for ledger_id in self.ids:
                await self._client.delete_ledger(ledger_id)
                self.left.remove(ledger_id)
        except ReplogError as error:
            self.problem = str(error)
