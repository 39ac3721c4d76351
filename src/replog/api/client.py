"""`Client`: a way to ledgers, logs, state machines and back-ups."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import trio

from replog.api.cursors import CursorVerbs
from replog.api.ledgers import LedgerVerbs
from replog.api.producers import ProducerVerbs
from replog.backup.restoring import Restorer
from replog.backup.saving import BackupReport, save
from replog.bookie.serving import ServedBookie
from replog.client.administration import RemoteBookie, remote_bookies
from replog.client.audit_notes import restore_notes, save_notes
from replog.client.audit_report import AuditReport
from replog.client.draining import DrainStatus, undrain
from replog.client.ledgers import Ledgers, check_password
from replog.client.losses import EntriesAtRisk, declare_lost
from replog.client.rebalancing import Rebalancer, RebalanceReport
from replog.client.repair import Repairer
from replog.client.repair_progress import ReportProgress
from replog.config import check_names, check_number, check_types
from replog.errors import ConfigError, StorageError
from replog.log import appending, catalog, sweeping
from replog.log.appending import AppendedLedgers
from replog.log.compacting import CompactedLog, LogCompaction
from replog.log.cursor_catalog import CursorCatalog
from replog.log.log_driver import LogDriver
from replog.log.log_reader import LogReader
from replog.log.log_records import LogRecords
from replog.log.log_summaries import LogSummaries, LogSummary
from replog.log.log_writer import LogWriter
from replog.log.retention import Retention, enforced, retain
from replog.log.since import reader_since, time_ns_of
from replog.log.takeover import NewLedgers, lead, take_over
from replog.machine import LogOptions, MachineOptions, RunningMachine, State, run_machine, surroundings_of
from replog.protocol.digest import DigestType
from replog.protocol.model import LedgerMetadata, LogMetadata, Position, Segment
from replog.protocol.quorum import Quorum
from replog.records.paths import log_key_path
from replog.registry import Registry
from replog.runtime.threads import run_in_thread


class Client(LedgerVerbs, CursorVerbs, ProducerVerbs):
    """A way to ledgers and logs. Made by `connect` and `embed`; belongs to the trio run that made it.

    `quorum` arguments that are left out take the client's default: three bookies of which two acknowledge, or all the
    embedded ones if they are fewer. Passwords are bytes. Without a ledger's password a client can neither read, write nor
    fence it.
    """

    def __init__(
        self,
        ledgers: Ledgers,
        default: Quorum,
        nursery: trio.Nursery,
        bookies: Sequence[ServedBookie],
        plugins: Registry,
    ) -> None:
        self.default_quorum = default
        self.bookies = tuple(bookies)
        self.left_out: Mapping[str, StorageError] = {}  # directories that are embedded without a bookie, and why
        self._open_ledgers: Ledgers | None = ledgers
        self._logs = LogRecords(ledgers)
        self._log_driver = LogDriver(ledgers, self._logs)
        self._cursors = CursorCatalog(ledgers, self._logs)
        self._own_repairer = Repairer(ledgers.context, ledgers.options, ledgers.observe)
        self._nursery, self._plugins = nursery, plugins

    @property
    def _ledgers(self) -> Ledgers:
        if self._open_ledgers is None:
            raise trio.ClosedResourceError("this client was left: make another one")
        return self._open_ledgers

    @property
    def _repairer(self) -> Repairer:
        _ = self._ledgers  # raises if this client was left
        return self._own_repairer

    def _leave(self) -> None:
        self._open_ledgers = None

    # -- ledgers ----------------------------------------------------------------------------------------------------

    async def recover_ledger(
        self, ledger_id: int, *, password: bytes = b"", lost: Sequence[str] = (), accept_loss: bool = False
    ) -> LedgerMetadata:
        """Fences a ledger and closes it at its last entry (R2-R12); returns its metadata. A closed ledger stays as it is.

        `lost` names bookies that never come back: they are declared lost first, as by `declare_bookies_lost`. `accept_loss`
        closes the ledger even if confirmed entries may be gone, because an ack quorum of bookies lost something (R10). Raises
        `RecoveryUndecidedError` or `NotEnoughBookiesError` (retry: when bookies are back), `LedgerNotFoundError`. If it
        raises or is cancelled, the ledger's writer may be fenced, and nothing was cut. `WriteQuorumError` (retry: yes) says that
        it is closed, and that guaranteed copies are missing (W8)."""
        if lost:
            await self.declare_bookies_lost(lost, accept_loss=accept_loss)
        return await self._ledgers.recover(ledger_id, password, accept_loss=accept_loss)

    async def declare_bookies_lost(
        self, bookie_ids: Sequence[str], *, accept_loss: bool = False
    ) -> Sequence[EntriesAtRisk]:
        """Declares bookies lost for good, for everybody: no recovery waits for them any more, and they never serve again under
        their identities (B8a). Returns the entries that may be gone with them. Reads every ledger's record.

        Raises `LossNotAcceptedError` if confirmed entries may be gone and that is not accepted, `AdministrationError` if one is
        unknown or announced: then nothing was declared. After `MetastoreError` some may be: declaring again is harmless."""
        check_names(bookie_ids=bookie_ids)
        membership = self._ledgers.context.membership
        return await declare_lost(bookie_ids, self._ledgers.records, membership, accept_loss=accept_loss)

    async def audit(
        self, *, notes: str | os.PathLike[str] | None = None, progress: ReportProgress | None = None
    ) -> AuditReport:
        """Compares what bookies hold with the records of all ledgers: which entries lack copies, and where. Changes nothing.

        Another audit by this client asks only about ledgers that may have changed; in another process, one with the same file for
        `notes`. `progress` is called a few times a second, and must return at once. Ledgers with a password need the role of a
        repairer. Raises `MetastoreError`; `ConfigError` if the file has something else, or cannot be written."""
        if notes is not None:
            await run_in_thread(restore_notes, notes, self._repairer.notes)
        report = await self._repairer.audit(report=progress)
        if notes is not None:
            await run_in_thread(save_notes, notes, self._repairer.notes)
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

        The bookies in `lost` are declared lost first, as by `declare_bookies_lost`. Bookies in `away` are replaced where
        others have all their entries. Bookies that drain are replaced, too, and their entries are copied from them.

        Raises `MetastoreError`. If it raises or is cancelled, what was copied stays: repairing again goes on."""
        check_names(lost=lost, away=away)
        await self.declare_bookies_lost(await self._repairer.undeclared(lost), accept_loss=accept_loss)
        return await self._repairer.repair(away, report=progress)

    async def pause_repairs(self) -> None:
        """Pauses all repairs of this cluster, of others too, until `resume_repairs`. Each stops within seconds, after the
        fragments that it is copying. Audits go on. Raises `MetastoreError`."""
        await self._repairer.pause.begin()

    async def resume_repairs(self) -> None:
        """Lets repairs go on: services within seconds, others when they are started again. Raises `MetastoreError`."""
        await self._repairer.pause.end()

    async def rebalance(self, bookie_id: str, *, progress: ReportProgress | None = None) -> RebalanceReport:
        """Moves copies onto this bookie, a new one or one that has few, until it has its share. Reads every ledger's record.

        Raises `AdministrationError` if it is not announced or drains, `MetastoreError`. If it raises or is cancelled, what was
        moved stays; rebalancing again goes on."""
        return await Rebalancer(self._ledgers.context, self._repairer).rebalance(bookie_id, progress)

    async def drain_bookie(self, bookie_id: str) -> DrainStatus:
        """Has a bookie left, so that it can be stopped for good: it gets no new ledgers while there are enough others, and live
        writers replace it within seconds. Durable, until `undrain_bookie`. Returns what still names it, as `drain_status` does.

        Raises `AdministrationError` if the bookie is unknown, `MetastoreError`. Draining again is harmless."""
        return await self._repairer.drain(bookie_id)

    async def undrain_bookie(self, bookie_id: str) -> None:
        """Lets a bookie get new ledgers again. Raises `AdministrationError` if it is unknown, `MetastoreError`."""
        await undrain(bookie_id, self._ledgers.records, self._ledgers.context.membership)

    async def known_bookies(self) -> list[str]:
        """The ids of all bookies that the metastore knows, running or not, lost ones included. Raises `MetastoreError`."""
        return await self._ledgers.context.membership.known_ids()

    async def drain_status(self, bookie_id: str) -> DrainStatus:
        """Which ledgers have copies on a bookie, and which are still open on it. Reads every ledger's record.

        Raises `AdministrationError` if the bookie is unknown, `MetastoreError`."""
        return await self._repairer.drain_status(bookie_id)

    async def delete_ledger(self, ledger_id: int) -> None:
        """Deletes a ledger; bookies drop its entries soon (B6). Deleting a ledger that does not exist does nothing."""
        await self._ledgers.read_and_delete(ledger_id)

    async def ledgers(self) -> list[int]:
        """The ids of all ledgers, ascending."""
        return await self._ledgers.list()

    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """A ledger's record as it is now; no bookie is asked, and no password needed. Raises `LedgerNotFoundError`."""
        return (await self._ledgers.records.get(ledger_id))[0]

    # -- logs -------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def write_log(
        self,
        name: str,
        *,
        quorum: Quorum | None = None,
        password: bytes = b"",
        digest_type: DigestType = DigestType.CRC32C,
        custom: Mapping[str, str] | None = None,
        durability: str | None = None,
        ledgers: str | None = None,
        retention: Retention | None = None,
        compression: str | None = None,
    ) -> AsyncIterator[LogWriter]:
        """Takes a log over *now*, and creates it if it does not exist: fences the last writer, and recovers its ledgers.

        `ledgers="unbounded"`: takeovers go on with the log's last ledger, if that is unbounded, as those are that the log gets
        from now on (L9); "bounded": each leader has ledgers of its own. None: as it is, and the option `log_ledgers` for a new
        log. `quorum` and what follows it are for ledgers that this writer creates. With `durability="write-quorum"`, or if the
        client's options say so, these have all their copies before a close, roll or takeover behind them ends (W8).
        With `retention` the writer drops what that does not keep, as `retain_log` does, every `retention_interval_s` until it is
        left or deposed; what prevents it is logged (`replog.log`), and hinders no append. `compression="zstd"` stores batches
        compressed where that saves an eighth; None takes what the client's options say, and "none" never compresses. It is this
        writer's: the next one chooses for itself, and readers need not know. Needs `replog[zstd]`, for readers, too.

        A context manager that yields the log's writer. Raises `RecoveryUndecidedError`, `NotEnoughBookiesError` or
        `WriteQuorumError` (retry: when bookies are back), `TakeoverFailedError` (others keep taking over), `ConfigError`,
        `MetastoreError`."""
        check_types("write_log", retention=(retention, Retention))
        wanted = self.default_quorum if quorum is None else quorum
        new = NewLedgers(wanted, password, digest_type, custom, durability, ledgers, compression)
        keeping = self._ledgers, self._log_driver, self._cursors
        async with (
            await take_over(name, new, self._ledgers, self._log_driver, self._nursery) as writer,
            enforced(writer, retention, *keeping),
        ):
            yield writer

    @asynccontextmanager
    async def lead_log(
        self,
        name: str,
        *,
        quorum: Quorum | None = None,
        password: bytes = b"",
        digest_type: DigestType = DigestType.CRC32C,
        custom: Mapping[str, str] | None = None,
        durability: str | None = None,
        ledgers: str | None = None,
        retention: Retention | None = None,
        compression: str | None = None,
    ) -> AsyncIterator[LogWriter]:
        """Waits until nobody else leads the log, then takes it over as `write_log` does. Leading is advice, to avoid duels
        (M3); the log is safe in any case, since a takeover fences. If another client takes over meanwhile, this one waits for
        its turn again."""
        check_types("lead_log", retention=(retention, Retention))
        wanted = self.default_quorum if quorum is None else quorum
        new = NewLedgers(wanted, password, digest_type, custom, durability, ledgers, compression)
        keeping = self._ledgers, self._log_driver, self._cursors
        async with (
            lead(name, new, self._ledgers, self._log_driver, self._nursery) as writer,
            enforced(writer, retention, *keeping),
        ):
            yield writer

    @asynccontextmanager
    async def read_log(
        self,
        name: str,
        *,
        after: Position | str | None = None,
        since: datetime | timedelta | None = None,
        follow: bool = False,
        password: bytes = b"",
    ) -> AsyncIterator[LogReader]:
        """A reader of a log, as a context manager: from the beginning or `after` a position; with `follow` it waits for more.

        `since` a time, or since so long ago, all entries come that were sent then or later, by their writers' clocks, and maybe
        some earlier ones. Finding the place reads one entry for each halving of a ledger. Raises `LogNotFoundError` (with
        `follow` it waits for the log instead), `TrimmedError`, `PositionError`; `ConfigError` for a time without a zone, or
        `after` and `since` together; with `since`, also `EntryUnreadableError` (retry: yes)."""
        position = None if after is None else Position.parse(after)
        if since is not None and position is not None:
            raise ConfigError(
                f"after={after!r} and since={since!r} exclude each other: leave one out; nothing was read"
            )
        # Refused here: with `follow` a log that does not exist is waited for, so
        # an impossible name would wait without end.
        log_key_path(name)
        check_password(password)
        known = self._ledgers, self._logs, password
        if since is None:
            reader = LogReader(name, *known, position, follow)
            await reader.start()
        else:
            time_ns = time_ns_of(since, self._ledgers.chance.time_ns())
            reader = await reader_since(name, time_ns, *known, follow=follow)
        async with reader:
            yield reader

    async def append_ledgers(
        self,
        name: str,
        ledger_ids: Sequence[int],
        *,
        transaction: tuple[str, int] | None = None,
        job: str = "",
        custom: Mapping[str, str] | None = None,
        password: bytes = b"",
        patience_s: float = 5.0,
    ) -> AppendedLedgers:
        """Adds closed ledgers to the end of a log, in this order, all at once or none; creates the log if it does not exist.

        A writer of the log adds them itself when it is asked, and goes on in a ledger behind them (L10). One that has not
        answered within `patience_s` is fenced, as by `write_log`; 0 asks nobody. Without ledgers nobody is asked or fenced.
        What it appends after this has returned is behind them, unless nobody can be reached for `takeover_timeout_s`.

        The ledgers must have been created with `custom={"log": name, "job": ...}`, of this job if `job` is given. A job's
        name belongs to one run, which hands in its ledgers once. A `transaction` (id, number) that was committed before, or
        whose number is not above that id's highest, changes nothing: a caller that gives one may call again after any
        failure. `custom` becomes part of the log's metadata, and must not contradict it.

        Raises `LedgerNotFoundError`, `LedgerRefusedError`, `JobAbandonedError`, `UnauthorizedError`, `CustomMismatchError`,
        `TooManyLedgersError`, `TransactionTableFullError`: then the log is as it was. Otherwise as `write_log`; if it raises
        `MetastoreUncertainError` or is cancelled, they may be added or not."""
        wanted = appending.addition(name, ledger_ids, transaction, job, custom)
        return await appending.append(name, wanted, patience_s, self._ledgers, self._log_driver, password)

    async def retire_transactions(
        self, name: str, transaction_ids: Sequence[str] = (), *, older_than_s: float | None = None
    ) -> list[str]:
        """Makes a log forget these transactions, and those that were committed longer ago than `older_than_s`; returns their ids.

        A log never forgets one by itself, and has room for 1000 of jobs and 1000 of streams. A job or stream that repeats a
        transaction after it was retired writes its rows again. Raises `LogNotFoundError`, `ConfigError`, `MetastoreError`;
        `ClockMismatchError`: none is retired. Else if it raises or is cancelled, they may be; retiring again is harmless."""
        return await appending.retire(name, transaction_ids, older_than_s, self._ledgers, self._log_driver)

    async def sweep_log(self, name: str, *, grace_s: float = 86400.0, job: str | None = None) -> list[int]:
        """Deletes ledgers that jobs wrote for a log and that it does not name; returns their ids.

        These are the leftovers of committed jobs, and the ledgers of jobs whose youngest ledger is older than `grace_s`: such
        a job can never commit afterwards. With `job`, it deletes only ledgers of that job, whatever their age. Ledgers of
        leaders are never deleted. Records of cursors whose deletion was cut short go, too.

        Raises `MetastoreError`, `ConfigError`; `ClockMismatchError` if no job was given up by age, as bookies do not confirm this
        clock. If it raises or is cancelled, some are deleted, and some jobs given up; sweeping again is harmless."""
        deleted = await sweeping.sweep(name, grace_s, job, self._ledgers, self._log_driver)
        await self._cursors.sweep(name)
        return deleted

    async def trim_log(self, name: str, *, before: Position | str, ignore_cursors: bool = False) -> Position:
        """Drops the ledgers of a log that lie wholly before the position (L3); returns where the log begins now.

        The last ledger always stays: `roll` first, to be able to drop it. What a cursor has not committed stays, too, unless
        `ignore_cursors`: then it raises `TrimBlockedError`, which names the cursor, after it has trimmed what is before that.
        Raises `LogNotFoundError`, `PositionError`. If it raises or is cancelled, trimming again is harmless."""
        known = self._ledgers, self._log_driver, self._cursors
        return await catalog.trim(name, Position.parse(before), *known, ignores_cursors=ignore_cursors)

    async def retain_log(
        self, name: str, *, age: timedelta | None = None, size_bytes: int | None = None, committed: bool = False
    ) -> Position:
        """Drops the oldest ledgers of a log (L3): those of which all was sent longer ago than `age`, those behind which there are
        `size_bytes` of payload, and with `committed` those that every cursor has committed, if there are cursors. Returns where
        the log begins now.

        A ledger stays, with all that follow it, while the log's record does not say its size or when its last entry was sent;
        the last one always stays. A time is by the clock of its writer, and now by this client's, if bookies confirm it (L3a).

        Raises, after trimming what may go, `TrimBlockedError` with the cursor that needs more, or `ClockMismatchError` with the
        clocks or the segment in doubt; `LogNotFoundError`, `ConfigError`, `MetastoreError`. Calling again is always harmless."""
        kept = Retention(age=age, size_bytes=size_bytes, committed=committed)
        return await retain(name, kept, self._ledgers, self._log_driver, self._cursors)

    async def compact_log(
        self,
        name: str,
        *,
        into: str,
        quorum: Quorum | None = None,
        password: bytes = b"",
        digest_type: DigestType = DigestType.CRC32C,
    ) -> CompactedLog:
        """Writes the last value of each key of a log into a new log, in order; returns what was kept of what.

        Entries without a key are kept, tombstones are not. It reads twice what is known to be confirmed when it begins, keeps the
        keys in memory, and disturbs no writer: what is appended meanwhile is left out. The new log exists at the end, whole, or
        not at all; nobody else may create it meanwhile. Both logs have this password.

        Raises `ConfigError` if there is a log `into`, `LogNotFoundError`, `TrimmedError` if the log is trimmed meanwhile;
        otherwise as `read_log` and `append_ledgers`. If it raises or is cancelled, nothing is left but ledgers that
        `sweep_log` deletes, unless it raises `MetastoreUncertainError`: then the new log may exist, whole."""
        known = self._ledgers, self._log_driver, self._logs
        return await LogCompaction(name, into, *known, quorum or self.default_quorum, password, digest_type).run()

    async def delete_log(self, name: str, *, password: bytes = b"") -> None:
        """Fences a log's writer, and deletes the log, its ledgers and its cursors. Deleting again is harmless.

        A log that is written under this name afterwards is another one; it goes on with the segment numbers of this one, so
        that no position ever means two records. Raises `LogNotFoundError`; `RecoveryUndecidedError` or
        `NotEnoughBookiesError` if its writer can't be fenced (retry: when bookies are back)."""
        await catalog.delete(name, self._ledgers, self._log_driver, self._cursors, password)

    async def logs(self) -> list[str]:
        """The names of all logs, sorted."""
        return await catalog.names(self._ledgers)

    async def log_metadata(self, name: str) -> LogMetadata:
        """A log's record as it is now: its numbers, and its last segments, with all that may be open. Raises `LogNotFoundError`.

        One read, however long the log is; `log_segments` has all segments."""
        return (await self._logs.get(name))[0]

    async def log_summary(self, name: str, *, bounded: bool = False, password: bytes = b"") -> LogSummary:
        """What a log holds, who writes it, and how far its cursors are behind. What nobody says is None.

        Reads its record and pages, its cursors, and an entry or two. With `bounded` it reads no more than 16 pages and 4 ledgers'
        records, and what is only in others is None. Raises `LogNotFoundError`, `MetastoreError`; what bookies fail with is in
        `problem`."""
        check_password(password)
        return await LogSummaries(self._ledgers, self._logs, self._cursors, password).of(name, is_bounded=bounded)

    async def log_segments(self, name: str, *, first: int = 1, end: int | None = None) -> list[Segment]:
        """The segments of a log, in order: which ledgers it is made of; those numbered from `first` to before `end`, if given.
        Numbers that were trimmed away, or are not there yet, are left out.

        One read, and one more for each hundred or so that are asked for and aren't among the last. Raises
        `LogNotFoundError`, `MetastoreError`."""
        check_number("first", first)
        if end is not None:
            check_number("end", end)
        return await self._logs.segments(name, first, end)

    @asynccontextmanager
    async def run_machine(
        self,
        name: str,
        machine: type[State],
        *,
        listen: str | Sequence[str] | None = None,
        options: MachineOptions | None = None,
        quorum: Quorum | None = None,
        password: bytes = b"",
        digest_type: DigestType = DigestType.CRC32C,
    ) -> AsyncIterator[RunningMachine[State]]:
        """Runs a member of a replicated state machine, as a context: it applies the log of this name, and competes to lead it.

        Members reach each other where `listen` says, like "tcp:0.0.0.0:3200"; by default at a socket for this user's processes
        on this machine. Raises `ConfigError`; `UnknownCommandError` and `StateDivergedError` end the context."""
        check_types("run_machine", options=(options, MachineOptions), quorum=(quorum, Quorum))
        surroundings = surroundings_of(self._ledgers, self._plugins)
        written = LogOptions(quorum or self.default_quorum, password, digest_type)
        async with run_machine(name, machine, self, surroundings, listen, options, written) as running:
            yield running

    # -- back-ups ---------------------------------------------------------------------------------------------------

    async def backup(
        self, directory: str | os.PathLike[str], logs: Sequence[str] | None = None, *, password: bytes = b""
    ) -> BackupReport:
        """Saves the closed segments of these logs, or of all, in a directory; writers go on. Segments that
        are in it already are not read again; those of other logs stay. To have the newest entries in it, `roll` before.

        Raises `BackupError`, `UnauthorizedError`, `EntryUnreadableError`, `MetastoreError`. If it raises or is cancelled, the
        directory has the back-up that it had, and the next one goes on from there."""
        check_names(logs=logs)
        names = await self.logs() if logs is None else list(logs)
        return await save(directory, names, self._ledgers, self._logs, password)

    async def restore(
        self,
        directory: str | os.PathLike[str],
        logs: Sequence[str] | None = None,
        *,
        quorum: Quorum | None = None,
        password: bytes = b"",
    ) -> BackupReport:
        """Writes these logs of a back-up, or all, into a cluster that does not have them: the same entries at the same positions,
        with the same times, in new ledgers of this quorum, with this password. A log appears when all of it was written.

        Raises `BackupError` if one exists, or cannot have its positions here: then nothing was written; `BackupDamagedError`,
        `NotEnoughBookiesError`, `MetastoreError`: then no part of that log can be seen, and restoring again sweeps the rest."""
        check_names(logs=logs)
        known = self._ledgers, self._logs, self._log_driver
        return await Restorer(directory, *known, quorum or self.default_quorum, password).restore(logs)

    # -- looking ----------------------------------------------------------------------------------------------------

    async def remote_bookies(self) -> list[RemoteBookie]:
        """All announced bookies, wherever they run, sorted by their ids: for inspection and administration. They include the
        bookies that this client embeds. Raises `MetastoreError`."""
        return await remote_bookies(self._ledgers.context.membership, self._ledgers.context.connections)

    def statistics(self) -> dict[str, dict[str, float]]:
        """Counters and gauges: of the client, and of each bookie that it embeds, by its id."""
        outstanding_bytes = float(self._ledgers.context.connections.outstanding_bytes())
        own = {"outstanding_bytes": outstanding_bytes, "bookies_left_out": float(len(self.left_out))}
        return {"client": own, **{bookie.server.bookie_id: bookie.statistics() for bookie in self.bookies}}
