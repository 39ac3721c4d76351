"""Bookies that lose what they had acknowledged: one of each run. It forgets its last commits, or burns and is declared lost.

Steered schedules, since chance alone rarely finds them: `shorten` recovers a ledger while only the bookie that forgot and one
that never had the last entries can be reached; `refence` lets a writer go on whose fence the bookie forgot; `bury` does so with a
ledger that was deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio

from replog.client.ledger_writer import LedgerWriter
from replog.errors import AdministrationError, KeyNotFoundError, MetastoreError
from replog.protocol.model import LedgerState
from replog.protocol.quorum import Quorum
from replog.records.ledgers import decode_ledger, list_ledger_ids
from replog.records.paths import NEXT_LEDGER_ID_KEY, decode_next_ledger_id, ledger_key_path
from replog.testing.simulating.lost_commits import CommitHistory
from replog.testing.simulating.metastore import MetastoreServer
from replog.testing.simulating.network import METASTORE, Network
from replog.testing.simulating.processes import BookieHost, Clients
from tests.simulator.shells.oracle import NAMED, LedgerOracle, leaves
from tests.simulator.shells.workload import Workload
from tests.simulator.shells.world import PASSWORD

_QUORUM = Quorum(3, 3, 2)
_HEALED_WITHIN_S = 6.0  # more than any interval that runs heal in
_TRIES = 4  # until the victim is one of a ledger's bookies


class Losses:
    """The losses of the one bookie."""

    def __init__(
        self,
        network: Network,
        metastore: MetastoreServer,
        bookies: list[BookieHost],
        clients: Clients,
        workload: Workload,
        in_trouble: dict[str, None],
    ) -> None:
        self.world = workload.world
        self.random = self.world.stream("losses")
        self.victim = self.random.choice(bookies)
        self.victim.disk.history = CommitHistory()
        self._network = network
        self._metastore = metastore
        self._bookies = bookies
        self._clients = clients
        self._workload = workload
        self._in_trouble = in_trouble
        self._is_declared = False

    # -- forgetting ----------------------------------------

    async def forget(self) -> None:
        """The process of the bookie ends, its disk loses the last commits, and it comes back."""
        with self._taking(self.victim) as is_taken:
            if is_taken:
                await self._forget(self.random.choice((1, 2, 3, 10, 50)), self._trace())

    async def forget_in_calm(self) -> None:
        """The bookie forgets and notices nothing. Only a cluster survives that whose other bookies can all be reached, and
        whose writers have ended."""
        if self.victim.served is not None and self.random.random() < 0.5:
            await self._forget(self.random.choice((1, 3, 50)), "nothing")

    async def shorten(self) -> None:
        """A writer dies whose last entries one bookie lacks; the victim forgets them; the third bookie has them and is away
        while somebody recovers the ledger."""
        with self._taking(self.victim) as is_taken:
            if is_taken:
                with trio.CancelScope() as scope:
                    await self._write_and_die(scope)

    async def _write_and_die(self, scope: trio.CancelScope) -> None:
        async with self._writing("dying") as (writer, oracle, process), self._others(writer) as others:
            if others is None:
                return
            lags, holds = others
            self._clients.scopes[process] = scope
            await self._append(writer, oracle, 1, is_closed=False)
            with self._cut((process, lags.process)):
                await self._append(writer, oracle, self.random.randint(1, 4), is_closed=False)
                self._clients.kill(process)
                holds.crash()
                with trio.CancelScope(shield=True):
                    try:
                        await self._forget(self.random.choice((1, 3, 10, 50)), self._trace())
                        await self._recover(oracle)
                    finally:
                        await holds.start()

    async def refence(self) -> None:
        """A ledger is recovered while its writer does not run; the victim forgets the fence; then the writer goes on, and the
        other bookie that was fenced can't tell it so."""
        with self._taking(self.victim) as is_taken:
            for _ in range(_TRIES if is_taken else 0):
                async with self._writing("late") as (writer, oracle, process), self._others(writer) as others:
                    if others is not None:
                        await self._go_on_deposed(writer, oracle, process, *others)
                        return

    async def _go_on_deposed(
        self,
        writer: LedgerWriter,
        oracle: LedgerOracle,
        process: str,
        silent: BookieHost,
        unfenced: BookieHost,
    ) -> None:
        await self._append(writer, oracle, 1, is_closed=False)
        await trio.sleep(0.1)
        self.world.pause(process)
        try:
            is_closed = await self._recover(oracle, unfenced)
            await self._forget(self.random.choice((3, 10, 50)), self._trace())
        finally:
            self._network.resume(process)
        if is_closed:
            self.world.count("writer went on whose fence a bookie may have forgotten")
            with self._cut((process, silent.process)):
                await self._append(writer, oracle, 1, is_closed=True)

    async def bury(self) -> None:
        """A ledger is recovered and deleted while its writer does not run; the victim, which is down then, forgets all that it
        knew of the ledger, and heals; then the writer goes on. One of the others was neither fenced nor hears of the deletion."""
        with self._taking(self.victim) as is_taken:
            for _ in range(_TRIES if is_taken else 0):
                async with self._writing("buried") as (writer, oracle, process), self._others(writer) as others:
                    if others is not None:
                        await self._go_on_buried(writer, oracle, process, *others)
                        return

    async def _go_on_buried(
        self, writer: LedgerWriter, oracle: LedgerOracle, process: str, silent: BookieHost, unfenced: BookieHost
    ) -> None:
        await self._append(writer, oracle, 1, is_closed=False)
        self.world.pause(process)
        with self._cut((unfenced.process, METASTORE), (METASTORE, unfenced.process)):
            try:
                is_closed = await self._recover(oracle, unfenced)
                self.victim.crash()
                self.victim.disk.forget(50, self._trace(), await self._next_ledger_id())
                if is_closed:
                    self._workload.ledgers.remove(oracle)  # nobody reads it, however its deletion ends
                is_deleted = is_closed and await self._delete(oracle)
                await self.victim.start()
                await trio.sleep(2.0)
            finally:
                self._network.resume(process)
            if is_deleted:
                self.world.count("writer went on whose ledger was deleted")
                with self._cut((process, silent.process)):
                    await self._append(writer, oracle, 1, is_closed=True)

    async def _delete(self, oracle: LedgerOracle) -> bool:
        try:
            async with self._clients.client("heir") as (client, _):
                await client.delete_ledger(oracle.ledger_id)
                return True
        except* NAMED as group:
            for error in leaves(group):
                self.world.tell("heir", f"fails with {type(error).__name__}: {error}")
        return False

    def _trace(self) -> str:
        return self.random.choice(("loss", "doubt"))

    async def _forget(self, commits: int, trace: str) -> None:
        self.victim.crash()
        self.victim.disk.forget(commits, trace, await self._next_ledger_id())
        await trio.sleep(self.random.random() * 0.3)
        await self.victim.start()

    async def _next_ledger_id(self) -> int:
        try:
            return decode_next_ledger_id((await self._metastore.inner.get(NEXT_LEDGER_ID_KEY)).value)
        except KeyNotFoundError:
            return 0

    @contextmanager
    def _taking(self, *bookies: BookieHost) -> Iterator[bool]:
        """Whether all of these are well; until the end nothing else troubles them."""
        is_taken = all(each.served is not None and each.name not in self._in_trouble for each in bookies)
        if not is_taken:
            yield False
            return
        self._in_trouble.update(dict.fromkeys(each.name for each in bookies))
        try:
            yield True
        finally:
            for each in bookies:
                del self._in_trouble[each.name]

    @asynccontextmanager
    async def _writing(self, role: str) -> AsyncIterator[tuple[LedgerWriter, LedgerOracle, str]]:
        try:
            async with (
                self._clients.client(role) as (client, process),
                client.create_ledger(quorum=_QUORUM, password=PASSWORD, custom={"process": process}) as writer,
            ):
                oracle = LedgerOracle(self.world, writer.ledger_id)
                self._workload.ledgers.append(oracle)
                yield writer, oracle, process
        except* NAMED as group:
            for error in leaves(group):
                self.world.tell(role, f"fails with {type(error).__name__}: {error}")
                self.world.count(f"{role}: {type(error).__name__}")

    @asynccontextmanager
    async def _others(self, writer: LedgerWriter) -> AsyncIterator[tuple[BookieHost, BookieHost] | None]:
        """The other two bookies of a ledger in an order that is drawn, or None if the victim has none of it, or they are not
        well."""
        ensemble = writer.metadata.last_fragment.ensemble
        others = [each for each in self._bookies if each.disk.content.bookie_id in ensemble and each is not self.victim]
        self.random.shuffle(others)
        with self._taking(*others) as is_taken:
            if is_taken and len(others) == 2:
                yield others[0], others[1]
            else:
                yield None

    async def _append(self, writer: LedgerWriter, oracle: LedgerOracle, count: int, *, is_closed: bool) -> None:
        for _ in range(count):
            entry_id = writer.last_add_pushed + 1
            data = oracle.pushed[entry_id] = b"%d/%d" % (writer.ledger_id, entry_id)
            confirmed = await writer.append(data)
            self._workload.copies.check(writer.ledger_id, confirmed)
            oracle.confirm(confirmed, called_when_closed=is_closed)

    async def _recover(self, oracle: LedgerOracle, *unreached: BookieHost) -> bool:
        """Whether somebody who can't reach these could close the ledger."""
        try:
            async with self._clients.client("heir") as (client, process):
                ways = [way for each in unreached for way in ((process, each.process), (each.process, process))]
                with self._cut(*ways):
                    metadata = await client.recover_ledger(oracle.ledger_id, password=PASSWORD)
                assert metadata.last_entry_id is not None
                oracle.closed(metadata.last_entry_id)
                return True
        except* NAMED as group:
            for error in leaves(group):
                self.world.tell("heir", f"fails with {type(error).__name__}: {error}")
                self.world.count(f"heir: {type(error).__name__}")
        return False

    @contextmanager
    def _cut(self, *ways: tuple[str, str]) -> Iterator[None]:
        for source, target in ways:
            self._network.cut(source, target)
        try:
            yield
        finally:
            for source, target in ways:
                self._network.mend(source, target)

    async def check_healed(self) -> None:
        """In the calm: who lost something vouches again for every ledger above those that have no end yet."""
        if self.victim.is_gone:
            return
        await trio.sleep(_HEALED_WITHIN_S)
        undecided = [
            ledger_id
            for ledger_id in await list_ledger_ids(self._metastore.inner)
            if decode_ledger(key := ledger_key_path(ledger_id), (await self._metastore.inner.get(key)).value).state
            is not LedgerState.CLOSED
        ]
        if self.victim.disk.doubt.doubted_below > max(undecided, default=-1) + 1:
            what = f"{self.victim.name} is in doubt below {self.victim.disk.doubt.doubted_below}"
            self.world.violated("B8", f"{what} in the calm, though only {undecided} are not closed")
        elif self.victim.disk.noticed.fences_lost_below:
            self.world.count("bookie healed")

    # -- burning ----------------------------------------

    async def burn(self) -> None:
        """The bookie's machine burns, and an operator declares the bookie lost."""
        if self.victim.is_gone:
            return
        self.victim.burn()
        await trio.sleep(self.random.random())
        while not self._is_declared:
            try:
                async with self._clients.client("operator") as (client, _):
                    await client.admin.declare_lost([self.victim.disk.content.bookie_id])
                    self._is_declared = True
            except* (AdministrationError, MetastoreError):  # it is still announced, or the metastore is away
                await trio.sleep(0.2)
        self.world.count("bookie declared lost")

    async def check_refused(self) -> None:
        """In the calm: who was declared lost never serves again (B8a)."""
        if not self.victim.is_gone:
            return
        if await self.victim.is_refused():
            self.world.count("bookie that was declared lost does not start")
        else:
            self.world.violated("B8a", f"{self.victim.name} was declared lost, and serves again")
