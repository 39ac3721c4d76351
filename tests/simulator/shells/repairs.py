"""Repairs of whole clusters (F1-F6, B8a, zones): `replog repair` and the repair service beside everything else of a run.

Repairers are played like all other parts: they leave, are cancelled, killed or stopped. Besides, some of them are killed right
after a drawn number of requests: so each effect of a filler is somebody's last one. One bookie forgets what it had acknowledged,
or burns for good and is replaced by a new one with an empty disk; another one drains. Bookies are in zones.

In the calm one repair has to make up for everything: each entry of a closed ledger, and of each fixed fragment, is on its whole
write set, with the same bytes on each bookie, in zones that the policy accepts. Then a second bookie burns. It is declared
lost without accepting any loss, a second repair follows, and everything is read.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from functools import partial

import trio

from replog.api import Client
from replog.api.repairs import repair as serve_repairs
from replog.backends.memory import MemoryStorage
from replog.errors import AdministrationError, LossNotAcceptedError, UnauthorizedError
from replog.protocol.fragment_copies import fixed_fragments
from replog.protocol.messages import CopyReadRequest, CopyRequest, RangesRequest, Request
from replog.protocol.model import LedgerMetadata, LedgerState
from replog.records.ledgers import decode_ledger
from replog.records.paths import ledger_key_path
from replog.repair.audit_report import AuditReport
from replog.repair.service import RepairTimes
from replog.testing.simulating.disks import SimulatedDisk
from replog.testing.simulating.metastore import MetastoreServer
from replog.testing.simulating.processes import BookieHost, Clients
from tests.simulator.shells.last_copies import LastCopies
from tests.simulator.shells.world import PASSWORD, JudgedWorld

REPAIRS = "repairs"  # the strategy
PLACEMENT = "zones:?at_least=2"
_ZONES = "aaabbc"  # three bookies of one zone are a write set that the policy does not accept
_REPAIRS_MAX = 12  # in the calm, until nothing lacks: bookies may still take notice of what was changed
_FORGOTTEN_WITHIN_S = 10.0  # announcements of bookies that burned
_TIMES = RepairTimes(away_after_s=1.0, interval_s=0.5)


def zone(number: int) -> str:
    """The label of a bookie."""
    return f"zone={_ZONES[number % len(_ZONES)]}"


class Repairs:
    """Repairers of one run, and what must be true when they have ended."""

    def __init__(
        self, world: JudgedWorld, metastore: MetastoreServer, bookies: Sequence[BookieHost], clients: Clients
    ) -> None:
        self._world = world
        self._store = metastore.inner._store
        self._bookies = bookies
        self._clients = clients
        self._requests_left: dict[str, int] = {}  # by process of a repairer: until it is killed
        self.last_copies = LastCopies(world, {each.disk.name: each for each in bookies}, self._metadata)

    # -- the storm --------------------------------------------------------------------------------------------------

    async def repair(self, client: Client, process: str) -> None:
        """Repairs once, or as a service."""
        chance = self._world.stream(f"repairs of {process}")
        if chance.random() < 0.5:
            self._requests_left[process] = chance.choice((1, 2, 3, 5, 8, 13, 30, 80))
        if chance.random() < 0.3:
            with trio.move_on_after(chance.random() * 4):
                await serve_repairs(client._opened, _TIMES, self._reported)
        else:
            self._reported(await client.admin.repair(away=self._away() if chance.random() < 0.2 else ()))

    async def replace(self, is_stopping: Callable[[], bool]) -> None:
        """Starts a new bookie with an empty disk once another one has burned, unless the run stops before that."""
        while not any(each.is_gone for each in self._bookies) and not is_stopping():  # noqa: ASYNC110 - no event says so
            await trio.sleep(0.1)
        await trio.sleep(self._world.stream("newcomer").random())
        await self._bookies[-1].start()

    async def drain(self, client: Client, process: str) -> None:
        """Has a bookie drained for a while."""
        chance = self._world.stream(f"drains of {process}")
        bookie_id = self._drawn(chance).disk.content.bookie_id
        try:
            await client.admin.drain(bookie_id)
            self._world.count("bookie drained")
            await trio.sleep(chance.random() * 2)
            await client.admin.undrain(bookie_id)
        except AdministrationError:  # it never started, or is declared lost
            self._world.count("bookie that could not be drained")

    def _drawn(self, chance: random.Random) -> BookieHost:
        return chance.choice([each for each in self._bookies if not each.is_gone])

    def _away(self) -> list[str]:
        return [each.disk.content.bookie_id for each in self._bookies if each.served is None]

    def _reported(self, report: AuditReport) -> None:
        self._world.count("audit ended")
        if report.under_replicated:
            self._world.count("audit found that copies lack")
        if report.misplaced:
            self._world.count("audit found copies in a wrong zone")

    def sent(self, client: str, request: Request) -> None:
        """A client sends this to a bookie: some repairers are killed right then."""
        if not isinstance(request, CopyRequest | CopyReadRequest | RangesRequest):
            return
        self._world.count(f"repairer sent {type(request).__name__}")
        left = self._requests_left.get(client)
        if left is None:
            return
        self._requests_left[client] = left - 1
        if left == 1 and client in self._clients.scopes:
            self._world.count(f"repairer killed at {type(request).__name__}")
            self._world.at(self._world.now_s, lambda: self._clients.kill(client))

    def watch_copies(self) -> None:
        """Judges from now on whatever is dropped."""
        for bookie in self._bookies:
            bookie.disk.on_drop_entries = partial(self.last_copies.dropping, bookie)

    def answered(self, disk: SimulatedDisk, request: Request) -> None:
        """A bookie answers a repairer: its fence is not above the term of the record (F2)."""
        if isinstance(request, CopyRequest):
            metadata, marks = self._metadata(request.ledger_id), disk.marks(request.ledger_id)
            if metadata is not None and marks is not None and marks.fence_term > metadata.term:
                what = f"{disk.name} is fenced at {marks.fence_term}, the record of ledger {request.ledger_id} has"
                self._world.violated("F2", f"{what} {metadata.term}: a repairer fenced a writer")

    def _metadata(self, ledger_id: int) -> LedgerMetadata | None:
        key = ledger_key_path(ledger_id)
        return None if self._store.version(key) is None else decode_ledger(key, self._store.get(key).value)

    # -- the calm ---------------------------------------------------------------------------------------------------

    async def judge(self, client: Client) -> None:
        """Repairs until nothing lacks, loses one more bookie, and repairs again."""
        await self._close_all(client)
        for bookie in self._bookies:
            if not bookie.is_gone:
                await client.admin.undrain(bookie.disk.content.bookie_id)
        await self._make_whole(client)
        victim = self._drawn(self._world.stream("second loss"))
        victim.burn()
        await self._declare_lost(client, victim.disk.content.bookie_id)
        self._world.count("second bookie declared lost")
        await self._make_whole(client)

    async def _close_all(self, client: Client) -> None:
        """Recovers what somebody left open who is gone: no repair makes up for what may still be written (F2)."""
        for ledger_id in await client.ledgers():
            metadata = self._metadata(ledger_id)
            if metadata is not None and metadata.state is not LedgerState.CLOSED:
                try:
                    await client.recover_ledger(ledger_id)
                except UnauthorizedError:
                    await client.recover_ledger(ledger_id, password=PASSWORD)

    async def _declare_lost(self, client: Client, bookie_id: str) -> None:
        with trio.fail_after(_FORGOTTEN_WITHIN_S):
            while True:
                try:
                    await client.admin.declare_lost([bookie_id])
                    return
                except LossNotAcceptedError as error:
                    self._world.violated("F1", f"after a repair one more bookie is too many: {error}")
                    await client.admin.declare_lost([bookie_id], accept_loss=True)
                    return
                except AdministrationError:  # it is still announced
                    await trio.sleep(0.2)

    async def _make_whole(self, client: Client) -> None:
        report = await client.admin.repair()
        for _ in range(_REPAIRS_MAX):
            if not self._lacks(report):
                break
            await trio.sleep(0.5)
            report = await client.admin.repair()
        if self._lacks(report):
            self._world.violated("F1", f"repairs end, and there lacks: {report}")
        for ledger_id in await client.ledgers():
            metadata = self._metadata(ledger_id)
            if metadata is not None:
                self._judge_copies(metadata)

    def _lacks(self, report: AuditReport) -> bool:
        """True if the next repair has something to do. A fragment may stay where the policy does not want it if that takes more
        than one bookie from outside, or two of its own that change places."""
        misplaced = {(each.ledger_id, each.first_entry_id) for each in report.misplaced}
        can_move = any(
            (metadata.ledger_id, fragment.first_entry_id) in misplaced
            and self._could_be_in_two_zones(fragment.ensemble)
            for metadata in filter(None, (self._metadata(ledger_id) for ledger_id, _ in misplaced))
            for fragment in fixed_fragments(metadata)
        )
        return bool(report.lacking or report.draining or can_move)

    def _judge_copies(self, metadata: LedgerMetadata) -> None:
        """Every entry of the fixed fragments is on its whole write set, in the same bytes, in two zones."""
        ledger_id, quorum = metadata.ledger_id, metadata.quorum
        hosts = {each.disk.content.bookie_id: each for each in self._bookies}
        for fragment in fixed_fragments(metadata):
            for entry_id in range(fragment.first_entry_id, fragment.last_entry_id + 1):
                members = [hosts[fragment.ensemble[index]] for index in quorum.write_set(entry_id)]
                payloads = {_payload(each, ledger_id, entry_id, fragment.term) for each in members}
                what = f"entry {entry_id} of ledger {ledger_id}"
                if any(each.is_gone for each in members) or None in payloads:
                    self._world.violated("F1", f"{what} is not on its whole write set after a repair: {metadata}")
                elif len(payloads) > 1:
                    self._world.violated("F3", f"{what} has copies that differ: {payloads}")
                else:
                    self._world.count("entry on its whole write set")
                zones = {zone(self._bookies.index(each)) for each in members}
                if len(zones) < 2 and self._could_be_in_two_zones(fragment.ensemble):
                    self._world.violated("F1", f"{what} is only in {zones} after a repair")

    def _could_be_in_two_zones(self, ensemble: Sequence[str]) -> bool:
        """True if one bookie of the ensemble could give its place to another one, or two change places, and the policy accepted
        that."""
        zone_of = {each.disk.content.bookie_id: zone(number) for number, each in enumerate(self._bookies)}
        spare = [each.disk.content.bookie_id for each in self._bookies if not each.is_gone]
        outside = [{index: each} for index in range(len(ensemble)) for each in spare if each not in ensemble]
        pairs = itertools.combinations(range(len(ensemble)), 2)
        exchanged = [{one: ensemble[other], other: ensemble[one]} for one, other in pairs]
        for change in (*outside, *exchanged):
            moved = [zone_of[change.get(index, each)] for index, each in enumerate(ensemble)]
            if all(len({*(moved * 2)[start : start + 3]}) > 1 for start in range(len(moved))):
                return True
        return False


def _payload(host: BookieHost, ledger_id: int, entry_id: int, stamp: int) -> bytes | None:
    """The bytes of an entry on the disk of a bookie; None if it has none."""
    if not host.disk.stores(ledger_id, entry_id, stamp):
        return None
    (found,) = MemoryStorage(host.disk.content).read(ledger_id, entry_id, stamp, 1)[:1]
    return found.payloads()[found.entry_ids.index(entry_id)]
