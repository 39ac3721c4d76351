"""`client.admin`: bookies, repairs, back-ups and archives."""

from __future__ import annotations

import os
from collections.abc import Sequence

from replog.api import archives
from replog.api.opened import OpenClient
from replog.backup.content import open_backup
from replog.backup.restoring import Restorer
from replog.backup.saving import BackupReport, ReportBytes, save
from replog.client import unbounded
from replog.client.administration import RemoteBookie, remote_bookies
from replog.config import check_names
from replog.protocol.model import Position
from replog.protocol.quorum import Quorum
from replog.records.archives import ArchiveRecord
from replog.records.ids import raise_next_ledger_id
from replog.records.ledgers import list_ledger_ids
from replog.repair.adopting import AdoptedCopies, adopt_copies
from replog.repair.archive_objects import GRACE_S, ArchiveReport, CollectedObjects, audit_archives, collect_objects
from replog.repair.archiver import MovedEntries
from replog.repair.audit_notes import restore_notes, save_notes
from replog.repair.audit_report import AuditReport
from replog.repair.drains import DrainStatus, undrain
from replog.repair.losses import EntriesAtRisk, declare_lost
from replog.repair.progress import ReportProgress
from replog.repair.rebalancer import Rebalancer, RebalanceReport
from replog.runtime.threads import run_in_thread


class Admin:
    """Administers a cluster: its bookies, their copies, back-ups and archives. `client.admin` is one."""

    def __init__(self, opened: OpenClient) -> None:
        self._opened = opened

    async def bookies(self) -> list[RemoteBookie]:
        """All announced bookies, wherever they run, sorted by their ids: for inspection and administration. They include the
        bookies that this client embeds. Raises `MetastoreError`."""
        return await remote_bookies(self._opened.ledgers.context.membership, self._opened.ledgers.context.connections)

    async def known_bookies(self) -> list[str]:
        """The ids of all bookies that the metastore knows, running or not, lost ones included. Raises `MetastoreError`."""
        return await self._opened.ledgers.context.membership.known_ids()

    async def audit(
        self, *, notes: str | os.PathLike[str] | None = None, progress: ReportProgress | None = None
    ) -> AuditReport:
        """Compares what bookies hold with the records of all ledgers: which entries lack copies, and where.

        Changes nothing, and reads no entry. `progress` is called a few times a second with a `RepairProgress`, and must
        return at once. Another audit by this client asks only about ledgers that may have changed: those whose record
        did, or of which a bookie was started again, found damage or is in doubt. So does one in another process with the
        same file for `notes`, where what was found is kept: delete the file after a metastore was put back from a
        back-up.

        Raises `MetastoreError`; `ConfigError` if the file has something else, or cannot be written. Ledgers with a password need
        the role of a repairer."""
        if notes is not None:
            await run_in_thread(restore_notes, notes, self._opened.repairer.notes)
        report = await self._opened.repairer.audit(report=progress)
        if notes is not None:
            await run_in_thread(save_notes, notes, self._opened.repairer.notes)
        return report

    async def repair(
        self,
        lost: Sequence[str] = (),
        *,
        away: Sequence[str] = (),
        accept_loss: bool = False,
        progress: ReportProgress | None = None,
    ) -> AuditReport:
        """Copies what bookies should have and lack, and to others in place of lost ones; returns the audit after it.

        The bookies in `lost` are declared lost first, as by `declare_lost`, with its errors. A bookie that is merely away is
        replaced only if it is in `away`, and only where others have all its entries. `progress` as for `audit`.

        Raises `MetastoreError`. If it raises or is cancelled, the copies made so far stay: repairing again continues.

        Fragments with the fewest copies come first. Then bookies that drain are replaced, and their entries copied from
        them, and fragments are moved that are not where this client's placement policy wants them. Any number of repairs
        may run at once."""
        check_names(lost=lost, away=away)
        await self.declare_lost(await self._opened.repairer.undeclared(lost), accept_loss=accept_loss)
        return await self._opened.repairer.repair(away, report=progress)

    async def pause_repairs(self) -> None:
        """Pauses all repairs of this cluster, of others too, until `resume_repairs`. Each stops within seconds, after the
        fragments that it is copying. Audits go on. Raises `MetastoreError`."""
        await self._opened.repairer.pause.begin()

    async def resume_repairs(self) -> None:
        """Lets repairs go on: services within seconds, others when they are started again. Raises `MetastoreError`."""
        await self._opened.repairer.pause.end()

    async def declare_lost(self, bookie_ids: Sequence[str], *, accept_loss: bool = False) -> Sequence[EntriesAtRisk]:
        """Declares bookies permanently lost, for all clients: no recovery waits for them any more, and they never serve
        again under their identities (B8a). Returns the entries that may be gone with them. Reads every ledger's record.

        Raises `LossNotAcceptedError` if confirmed entries may be gone and that is not accepted, `AdministrationError` if one is
        unknown or announced: then nothing was declared. After `MetastoreError` some may be: declaring again is harmless."""
        check_names(bookie_ids=bookie_ids)
        membership = self._opened.ledgers.context.membership
        return await declare_lost(bookie_ids, self._opened.ledgers.records, membership, accept_loss=accept_loss)

    async def drain(self, bookie_id: str) -> DrainStatus:
        """Drains a bookie, so that it can be stopped permanently: it gets no new ledgers while there are enough others,
        and live writers replace it within seconds. Durable, until `undrain`. Returns what still names it, as
        `drain_status` does.

        Raises `AdministrationError` if the bookie is unknown, `MetastoreError`. Draining again is harmless."""
        return await self._opened.repairer.drain(bookie_id)

    async def undrain(self, bookie_id: str) -> None:
        """Lets a bookie get new ledgers again. Raises `AdministrationError` if it is unknown, `MetastoreError`."""
        await undrain(bookie_id, self._opened.ledgers.records, self._opened.ledgers.context.membership)

    async def drain_status(self, bookie_id: str) -> DrainStatus:
        """The ledgers that have copies on a bookie, those that are still open on it, and whether it is safe to stop.

        Reads every ledger's record. Raises `AdministrationError` if the bookie is unknown, `MetastoreError`."""
        return await self._opened.repairer.drain_status(bookie_id)

    async def rebalance(self, bookie_id: str, *, progress: ReportProgress | None = None) -> RebalanceReport:
        """Moves copies onto this bookie, a new one or one that has few, until it has its share. Reads every ledger's record.

        Raises `AdministrationError` if it is not announced or drains, `MetastoreError`. If it raises or is cancelled,
        moved copies stay; rebalancing again continues. Appends go on, and a copy that the placement policy does not want
        there is not moved."""
        return await Rebalancer(self._opened.ledgers.context, self._opened.repairer).rebalance(bookie_id, progress)

    async def backup(
        self,
        directory: str | os.PathLike[str],
        logs: Sequence[str] | None = None,
        *,
        password: bytes = b"",
        progress: ReportBytes | None = None,
    ) -> BackupReport:
        """Saves the closed segments of these logs, or of all, in a directory, or at a URL of a plugin such as
        `s3://bucket/prefix`; writers go on. A state machine's log and snapshots go together. Files that exist are not read
        again; other logs stay. To include the newest entries, `roll` before. `progress` is called with the payload bytes
        that were saved since its last call, and must not raise. The report's `problems` name logs that could not be saved.
        Raises `BackupError`, `UnauthorizedError`, `LogNotFoundError`, `EntryUnreadableError`, `MetastoreError`: then, and
        if cancelled, the earlier back-up stays."""
        check_names(logs=logs)
        place = open_backup(directory, self._opened.plugins)
        return await save(place, logs, self._opened.ledgers, self._opened.logs, password, progress)

    async def restore(
        self,
        directory: str | os.PathLike[str],
        logs: Sequence[str] | None = None,
        *,
        quorum: Quorum | None = None,
        password: bytes = b"",
        cursors: bool = True,
        progress: ReportBytes | None = None,
    ) -> BackupReport:
        """Writes these logs of a back-up, or all, into a cluster that does not have them: the same entries at the same positions,
        with the same times, in new ledgers of this quorum, with this password. A log appears with its `cursors`, unless these are
        left out, when all of it was written. `progress` as for `backup`. The report's `problems` name machines whose log and
        snapshots don't fit. Raises `BackupError` if one exists, or cannot have its positions here: then nothing was written;
        `BackupDamagedError`, which names the logs that were restored before and those that are left; `NotEnoughBookiesError`,
        `MetastoreError`: then no part of that log can be seen, and restoring again sweeps the rest."""
        check_names(logs=logs)
        known = self._opened.ledgers, self._opened.logs, self._opened.log_driver
        place = open_backup(directory, self._opened.plugins)
        restorer = Restorer(
            place, *known, quorum or self._opened.default_quorum, password, with_cursors=cursors, progress=progress
        )
        return await restorer.restore(logs)

    async def add_archive(self, url: str) -> ArchiveRecord:
        """Makes an archive of a store: `file:/mnt/archive`, or a bucket of the plugin `replog-objects`, `s3://BUCKET/PREFIX`.
        Puts a cookie there, by which every client knows it. The URL stands in the metastore: credentials are no part of it.

        Raises `ArchiveError` if the store refuses, has lost its cookie or has another archive's, or replaces objects that exist;
        `ConfigError`, `PluginNotFoundError`, `MetastoreError`. Adding again is harmless."""
        return await archives.known(self._opened).add(url)

    async def archives(self) -> Sequence[ArchiveRecord]:
        """The archives of this cluster, each with `archive_id` and `url`, sorted by URL. Raises `MetastoreError`."""
        return await archives.known(self._opened).list()

    async def archive_log(
        self,
        name: str,
        *,
        before: Position | str | None = None,
        archive: str | None = None,
        password: bytes = b"",
    ) -> MovedEntries:
        """Moves the closed segments of a log into an archive, or those that end before a position; readers and writers go on.
        Bookies drop their copies by themselves, at their next garbage collection. `archive` is the URL of one that was added; it
        may be left out if there is only one. Segments that are archived already stay where they are.

        Raises `ArchiveError`, `EntryUnreadableError`, `LogNotFoundError`, `UnauthorizedError`, `MetastoreError`, `ConfigError`:
        then, and if cancelled, what was archived stays so, and archiving again goes on. Objects that were written for nothing
        are found by `collect_archives`."""
        return await archives.archive_log(self._opened, name, before, archive, password)

    async def recall_log(self, name: str, *, password: bytes = b"") -> MovedEntries:
        """Stores the archived segments of a log on bookies again: on those that had them, or on others in place of those that are
        gone. The objects stay until `collect_archives` finds them.

        Raises `ArchiveError` if not all copies could be stored, `LogNotFoundError`, `UnauthorizedError`, `MetastoreError`: then,
        and if cancelled, what was not recalled stays archived, and recalling again goes on."""
        return await archives.recall_log(self._opened, name, password)

    async def audit_archives(self) -> ArchiveReport:
        """Reads all that is archived, and compares it with the digests in the names of the objects. The report's `problems` name
        entries whose object is missing or damaged. Needs no password. Raises `MetastoreError`."""
        return await audit_archives(self._opened.ledgers, archives.known(self._opened))

    async def adopt_archives(self, *, password: bytes = b"") -> AdoptedCopies:
        """Has records of closed segments name the copies in archives again that they named before the metastore was restored.
        Each copy is read, and checked with this password; what is left is named in `problems`. Don't collect meanwhile.

        Raises `ArchiveError`, `MetastoreError`: then, and if cancelled, what was adopted stays so; again goes on."""
        return await adopt_copies(self._opened.ledgers, archives.known(self._opened), password)

    async def collect_archives(self, *, grace_s: float = GRACE_S) -> CollectedObjects:
        """Deletes objects that no ledger's record names, and that are older than a day by the store's clock: of archivings that
        were killed, segments that were recalled, and ledgers that were deleted while the store was away. A shorter `grace_s` is
        safe only while nobody archives anything.

        Raises `ArchiveError`, `MetastoreDoubtedError`, `MetastoreError`: what was deleted by then is gone; collecting again is
        harmless."""
        return await collect_objects(self._opened.ledgers, archives.known(self._opened), grace_s)

    async def raise_ledger_ids(self) -> int:
        """Raises the next ledger id in the metastore above every id that an announced bookie has ever seen, and above
        the id of every existing ledger; returns it. For metadata that was restored from an old back-up: its next ids
        were given out before, to ledgers of which bookies have entries (M5). A client does the same before it creates a
        ledger.

        Raises `MetastoreError`: then it may be raised; raising it again is harmless."""
        ledgers = self._opened.ledgers
        existing = await list_ledger_ids(ledgers.records.metastore)
        await ledgers.context.membership.announced()
        above = max(ledgers.context.membership.ledgers_below, *(each + 1 for each in existing[-1:]), 0)
        return await raise_next_ledger_id(ledgers.records.metastore, above)

    async def raise_ledger_term(self, ledger_id: int, *, password: bytes = b"") -> int:
        """Raises the term in the metadata of an unbounded ledger to the highest that an announced bookie knows; returns
        it. Only for metadata that was restored from an old back-up, once nothing newer is left: entries that only the
        lost metadata named are gone. The ledger can be taken over after that. Its present writer is deposed by that
        takeover.

        Raises `RecoveryUndecidedError` if a bookie doesn't answer (retry: yes), `LedgerNotFoundError`, `UnauthorizedError`,
        `ConfigError` for a bounded ledger, `MetastoreError`."""
        ledgers = self._opened.ledgers
        metadata, _ = await ledgers.records.get_head(ledger_id)
        ledgers.authorize(metadata, password)
        return await unbounded.raise_term(
            metadata, metadata.key(password), ledgers.context, ledgers.options.read_timeout_s
        )
