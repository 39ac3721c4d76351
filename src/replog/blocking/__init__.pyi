import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
)
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Concatenate, Generic, TypeVar

from replog.abc import Damage, Metastore
from replog.api.bookies import BookieConfig
from replog.backup.saving import BackupReport, ReportBytes
from replog.client.administration import (
    COMPACT_TIMEOUT_S,
    GARBAGE_TIMEOUT_S,
    SCRUB_TIMEOUT_S,
    STATISTICS_TIMEOUT_S,
    BookieStatistics,
)
from replog.client.entries import Entry, EntryBatch
from replog.config import (
    BookieOptions,
    ClientOptions,
)
from replog.errors import (
    ReplogError,
    StorageError,
    StorageFailedError,
)
from replog.log.appending import AppendedLedgers
from replog.log.key_compaction import CompactedLog
from replog.log.log_options import LogOptions
from replog.log.log_summaries import CursorLag, LogSummary
from replog.log.record_batches import Positions, Record, RecordBatch
from replog.machine.commands import State
from replog.machine.options import MachineOptions
from replog.machine.running import Arguments, MachineStatus, Result
from replog.machine.sessions import CommandId
from replog.protocol.cursors import CursorRecord
from replog.protocol.digest import DigestType
from replog.protocol.model import LedgerMetadata, LogMetadata, Position, Segment, Transaction
from replog.protocol.producers import KnownProducer
from replog.protocol.quorum import Quorum
from replog.records.archives import ArchiveRecord
from replog.records.bookies import Endpoint
from replog.registry import Registry
from replog.repair.adopting import AdoptedCopies
from replog.repair.archive_objects import GRACE_S, ArchiveReport, CollectedObjects
from replog.repair.archiver import MovedEntries
from replog.repair.audit_report import AuditReport
from replog.repair.drains import DrainStatus
from replog.repair.losses import EntriesAtRisk
from replog.repair.progress import ReportProgress
from replog.repair.rebalancer import RebalanceReport
from replog.runtime.latencies import LatencyHistogram

# Made by `python -m tests.blocking.stub` from trio's classes: not to be edited.

Value = TypeVar("Value", covariant=True)

class Opening(AbstractContextManager[Value]):
    """A context to be entered once: by `with`, or by `open`."""

    def __enter__(self) -> Value: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def open(self) -> Value:
        """Enters it without a block. It is left by `close` of what this returns, or when the process ends; whichever thread
        opened it may end before."""

def connect(
    metastore: str | Metastore,
    *,
    options: ClientOptions | None = None,
    quorum: Quorum | None = None,
    placement: str = "random",
    registry: Registry | None = None,
) -> Opening[Client]:
    """A client of the bookies that announce themselves in a metastore: `connect("lmdb:/var/lib/app/metadata")`.

    - `metastore`: a URL, or an open `Metastore`, which stays open.
    - `options`, `quorum`: the options of this client, and the quorum of ledgers and logs that are created without one.
    - `placement`: the policy that chooses bookies: "random", "weighted" by free space, or "zones:?at_least=2".
    - `registry`: the plugins to use; without it, all installed ones.

    Raises `ConfigError` for invalid arguments, `PluginNotFoundError`; an unreachable server shows at the first call. Leaving
    the context, even by cancellation, cancels writers and readers that are still open: leave writers first.

    Bookies are reached by the transports that they announce: by TCP from other processes and machines, and without a network
    in the trio run that serves them. Bookies in other processes must `listen`; `replog bookie` does so by default."""

def embed(
    directory: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    bookies: int | None = None,
    storage: str | None = None,
    metastore: str | Metastore | None = None,
    peers: Sequence[str] = (),
    listen: str | None = None,
    advertise: str | None = None,
    options: ClientOptions | None = None,
    bookie_options: BookieOptions | None = None,
    quorum: Quorum | None = None,
    placement: str = "random",
    registry: Registry | None = None,
) -> Opening[Client]:
    """A client with bookies of its own in this process: a crash-proof log in a directory.

    - `directory`: where the bookies keep their files: one directory with all of them, or a list with one bookie in each.
    - `bookies`: how many are in one directory; by default as many as it has already, or one.
    - `storage`: the scheme of the bookies' storage, maybe with options: "files", "memory", "files?journal_file_bytes=16MiB".
      Without it, `bookie_options` choose; their default is "files".
    - `metastore`: a URL, or an open `Metastore`, which stays open; by default LMDB beside the first bookie.
    - `peers`: the addresses, HOST:PORT, of all processes that keep the metastore together, this one among them: so several
      copies of a program are a cluster, and need no other server. `metastore` is None then, or has options only, as
      "quorum:?lease_s=3". Enters once a majority of the peers has come; before that, it logs whom it waits for.
    - `listen`: where other processes reach the bookie, and its peers reach this one: HOST:PORT, or a transport's URL.
      `advertise`: where they must connect, if that is another address.
    - `options`, `bookie_options`: of the client and of the bookies. With `BookieOptions(listen=("unix:PATH",))` other processes
      of the machine can `connect`.
    - `quorum`: of ledgers and logs that are created without one; by default `Quorum()` with peers, or with three bookies or
      more, otherwise all bookies.
    - `placement`, `registry`: as for `connect`.

    Raises `StorageInUseError` if another process has the directory open; `StorageIdentityError`, `StorageDamagedError` or
    `StorageFailedError` for the state of a directory; `ConfigError`: then no ledger was changed. Leaving the context, even by
    cancellation, cancels writers and readers that are still open: leave writers first. Confirmed entries stay in any case.

    A directory whose storage is damaged or fails is left out if the other bookies are enough for the quorum (C7), as two of
    three are by default; no other error is tolerated. `client.left_out` maps these directories to their errors,
    `statistics()["client"]["bookies_left_out"]` counts them, observers get `BookieLeftOut`, and the logger `replog.bookie`
    writes an error."""

def serve_bookie(config: BookieConfig, *, registry: Registry | None = None) -> Opening[ServedBookie]:
    """Serves a bookie inside this app, as a context manager that yields a `ServedBookie`, for inspection and administration.

    Clients in the same trio run reach it without a network, others where its option `listen` says. It can be given to
    `serve_metrics`. Raises as `embed` does. Leaving the context, even by cancellation, still answers accepted requests for a
    short while; acknowledged entries stay."""

def serve_repairs(
    client: Client,
    *,
    away_after_s: float = 600.0,
    interval_s: float = 600.0,
    reported: Callable[[AuditReport], None] = lambda _report: None,
) -> None:
    """Audits and repairs until cancelled, as `replog repair --watch` does: `nursery.start_soon(replog.serve_repairs, client)`.

    A bookie that is away is replaced after `away_after_s`; one that is declared lost, within seconds. An audit begins every
    `interval_s`. `reported` is called with the `AuditReport` of each audit, of this service's share of the ledgers.

    Any number of services may run, in bookies with `repair = "auto"`, too: each works on its share of the ledgers, and takes
    over the shares of those that end. While the metastore fails, a service waits. If cancelled, copies that were made stay."""

class Client:
    """A way to ledgers and logs, for any number of threads. Made by `connect` and `embed`.

    Every method works like that of `replog.Client`, with the same arguments, results and errors. After it was left, it
    raises `ClosedError`; in a fork of its process, `ForkedError`."""

    default_quorum: Quorum
    bookies: tuple[ServedBookie, ...]
    left_out: Mapping[str, StorageError]
    @property
    def admin(self) -> Admin:
        """Bookies, repairs and back-ups."""
    @property
    def jobs(self) -> Jobs:
        """Ledgers that jobs add to logs, and what logs remember of jobs and producers."""
    @property
    def cursors(self) -> Cursors:
        """The cursors of logs: to list, move and delete them."""
    def create_ledger(
        self,
        *,
        quorum: Quorum | None = None,
        password: bytes = b"",
        digest_type: DigestType = DigestType.CRC32C,
        custom: Mapping[str, str] | None = None,
        unbounded: bool = False,
        durability: str | None = None,
        compression: str | None = None,
    ) -> Opening[LedgerWriter]:
        """A new ledger and its writer, as a context manager. `custom` becomes part of its metadata. Leaving it closes
        the ledger; an `unbounded` one stays open, so that `take_over_ledger` goes on with it, until `finish` closes it.
        With `durability="write-quorum"` closes, rolls and takeovers of it end only when bookies have all copies of the
        entries before them, or raise `WriteQuorumError` (W8). `compression="zstd"` stores batches compressed where that
        saves an eighth: readers need `replog[zstd]`, too. None takes what the client's options say.

        Raises `NotEnoughBookiesError` (retry: when there are more), `MetastoreError`: then no ledger was created, or one
        that no client knows."""
    def take_over_ledger(
        self, ledger_id: int, *, password: bytes = b"", accept_loss: bool = False, compression: str | None = None
    ) -> Opening[LedgerWriter]:
        """Fences the writer of an unbounded ledger, recovers its entries, and goes on in the same ledger: a writer of
        the next term, as a context manager. Entry ids continue.

        Of entries whose outcome was unknown, the takeover decides: each is kept or gone, for everybody. `accept_loss` as for
        `recover_ledger`, `compression` as for `create_ledger`. Raises `LedgerFinishedError`; `FencedError` if another client
        takes it over meanwhile; `RecoveryUndecidedError`, `NotEnoughBookiesError` or `WriteQuorumError` (retry: when bookies are
        back), `LedgerRolledBackError`, `LedgerNotFoundError`, `ConfigError` for a bounded ledger or a log's, `MetastoreError`.
        If it raises or is cancelled, the ledger's writer may be fenced, and nothing was cut: another takeover goes on from
        there."""
    def open_ledger(
        self, ledger_id: int, *, first: int | None = None, follow: bool = False, password: bytes = b""
    ) -> Opening[LedgerReader]:
        """A reader of a ledger, as a context manager; iterating begins at the entry `first`, or where the ledger begins. Never
        fences (D1). With `follow` it waits for more, across terms and fragments, until the ledger is closed.

        Raises `LedgerNotFoundError`, `UnauthorizedError`, `LedgerTrimmedError`, `ConfigError` if `first` is not an entry id."""
    def recover_ledger(
        self, ledger_id: int, *, password: bytes = b"", lost: Sequence[str] = (), accept_loss: bool = False
    ) -> LedgerMetadata:
        """Fences a ledger and closes it at its last entry (R2-R12); returns its metadata. A closed ledger stays as it is.

        `lost` names bookies that never come back: they are declared lost first, as by `admin.declare_lost`. `accept_loss`
        closes the ledger even if confirmed entries may be gone, because an ack quorum of bookies lost something (R10). Raises
        `RecoveryUndecidedError` or `NotEnoughBookiesError` (retry: when bookies are back), `LedgerNotFoundError`. If it
        raises or is cancelled, the ledger's writer may be fenced, and nothing was cut. `WriteQuorumError` (retry: yes) says that
        it is closed, and that guaranteed copies are missing (W8)."""
    def trim_ledger(self, ledger_id: int, *, before: int) -> int:
        """Drops the fragments of an unbounded ledger that lie wholly before this entry; returns the first entry that is left.
        The last fragment always stays: `roll` first, to be able to drop it. Readers below get `LedgerTrimmedError`.

        Raises `LedgerNotFoundError`, `ConfigError` for a bounded ledger, a log's, or a number below 0, `MetastoreError`. If it
        raises or is cancelled, trimming again is harmless."""
    def delete_ledger(self, ledger_id: int) -> None:
        """Deletes a ledger; bookies drop its entries soon (B6). Deleting a ledger that does not exist does nothing.

        Raises `MetastoreError`. If it raises or is cancelled, it may be deleted or not; deleting again is harmless."""
    def ledgers(self) -> list[int]:
        """The ids of all ledgers, ascending. Raises `MetastoreError`."""
    def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """A ledger's record as it is now; no bookie is asked, and no password needed. Raises `LedgerNotFoundError`."""
    def write_log(
        self, name: str, *, options: LogOptions | None = None, quorum: Quorum | None = None, password: bytes = b""
    ) -> Opening[LogWriter]:
        """Takes a log over *now*, and yields its writer, as a context manager. Creates the log if it does not exist.

        `options` say how the log is written; a `quorum` or a `password` given beside them stands for theirs.

        Raises `RecoveryUndecidedError`, `NotEnoughBookiesError` or `WriteQuorumError` (retry: when bookies are back),
        `TakeoverFailedError` (others keep taking over), `UnauthorizedError`, `ConfigError`, `MetastoreError`. If it raises or is
        cancelled, the last writer may be fenced; confirmed entries stay.

        A takeover fences the last writer, recovers its ledger, and makes a new one, or goes on in an unbounded one (L1, L9)."""
    def lead_log(
        self, name: str, *, options: LogOptions | None = None, quorum: Quorum | None = None, password: bytes = b""
    ) -> Opening[LogWriter]:
        """Waits until no other client leads the log, then takes it over like `write_log`. It waits without a deadline.

        Takes the arguments of `write_log`, and raises its errors. If cancelled while it waits, nothing has changed. Leading is
        advice, to avoid duels (M3); the log is safe in any case, since a takeover fences. If another client takes over meanwhile,
        this one waits for its turn again."""
    def read_log(
        self,
        name: str,
        *,
        after: Position | str | None = None,
        since: datetime | timedelta | None = None,
        follow: bool = False,
        password: bytes = b"",
        timeout_s: float | None = None,
    ) -> Opening[LogReader]:
        """A reader of a log, as a context: from the beginning or `after` a position; with `follow` it waits for more, for
        `timeout_s` at a time.

        `since` a time, or since so long ago, all entries come that were sent then or later, by their writers' clocks, and maybe
        some earlier ones. Raises `LogNotFoundError` (with `follow` it waits for the log instead), `TrimmedError`,
        `PositionError`; `ConfigError` for a time without a zone, or `after` and `since` together; with `since`, also
        `EntryUnreadableError` (retry: yes)."""
    def cursor(
        self,
        log_name: str,
        name: str,
        *,
        start: Position | str | None = None,
        after: Position | str | None = None,
        follow: bool = False,
        wait: bool = True,
        password: bytes = b"",
    ) -> Opening[Cursor]:
        """A reader that goes on where the last worker with this cursor has committed, as a context manager. One that does not
        exist is created, at the position `start`, or at the beginning. With `follow` it waits for more records.

        Of several workers one reads: the others wait for their turn, which is advice (M3). Without `wait`, this one
        takes over at once. Either way the worker before can't commit any more. `after` begins after this position
        instead of the committed one: for applications that keep positions in transactions of their own store.

        Raises `LogNotFoundError` (with `follow` it waits for the log instead), `TrimmedError`, `PositionError`,
        `MetastoreError`. Leaving it without error writes what `commit_nowait` noted."""
    def run_machine(
        self,
        name: str,
        machine: type[State],
        *,
        listen: str | Sequence[str] | None = None,
        options: MachineOptions | None = None,
        quorum: Quorum | None = None,
        password: bytes = b"",
        digest_type: DigestType = DigestType.CRC32C,
    ) -> Opening[RunningMachine[State]]:
        """Runs a member of a replicated state machine, as a context: it applies the log of this name, and competes to lead it.

        Members reach each other where `listen` says, like "tcp:0.0.0.0:3200"; by default at a socket for this user's processes
        on this machine. Raises `ConfigError`; `UnknownCommandError` and `StateDivergedError` end the context."""
    def trim_log(self, name: str, *, before: Position | str, ignore_cursors: bool = False) -> Position:
        """Drops the ledgers of a log that lie wholly before the position (L3); returns where the log begins now.

        The last ledger always stays: `roll` first, to be able to drop it. Segments that a cursor has not committed
        stay, too, and `TrimBlockedError` names the cursor, after the segments before were trimmed; `ignore_cursors`
        drops them all the same. Raises `LogNotFoundError`, `PositionError`. If it raises or is cancelled, trimming
        again is harmless."""
    def retain_log(
        self, name: str, *, age: timedelta | None = None, size_bytes: int | None = None, committed: bool = False
    ) -> Position:
        """Drops the oldest ledgers of a log (L3): those whose entries were all sent longer ago than `age`, those behind
        which there are `size_bytes` of payload, and with `committed` those that every cursor has committed, if there
        are cursors. Returns where the log begins now.

        A ledger stays, with all that follow it, while the log's record does not say its size or when its last entry was sent;
        the last one always stays. A time is by the clock of its writer, and now by this client's, if bookies confirm it (L3a).

        Raises, after trimming what may go, `TrimBlockedError` with the cursor that needs more, or `ClockMismatchError` with the
        clocks or the segment in doubt; `LogNotFoundError`, `ConfigError`, `MetastoreError`. Calling again is always harmless."""
    def compact_log(
        self,
        name: str,
        *,
        into: str,
        quorum: Quorum | None = None,
        password: bytes = b"",
        digest_type: DigestType = DigestType.CRC32C,
    ) -> CompactedLog:
        """Writes the last value of each key of a log into a new log, in order, with its headers and time.

        Entries without a key are kept, tombstones are not. It reads the known confirmed entries twice, keeps the keys in memory,
        and disturbs no writer: entries appended meanwhile are left out. The new log exists at the end, whole, or not at all; no
        other client may create it meanwhile. Both logs have this password.

        Raises `ConfigError` if there is a log `into`, `LogNotFoundError`, `TrimmedError` if the log is trimmed meanwhile;
        otherwise as `read_log` and `jobs.append_ledgers`. If it raises or is cancelled, nothing is left but ledgers that
        `jobs.sweep` deletes, unless it raises `MetastoreUncertainError`: then the new log may exist, whole."""
    def delete_log(self, name: str, *, password: bytes = b"") -> None:
        """Fences a log's writer, and deletes the log, its ledgers and its cursors.

        Raises `LogNotFoundError`; `RecoveryUndecidedError` or `NotEnoughBookiesError` if its writer can't be fenced (retry: when
        bookies are back). If it raises or is cancelled, deleting again is harmless.

        A small record keeps the segment numbers: a log that is written under this name afterwards is another one, and
        goes on with them, so that no position ever means two records (L4)."""
    def logs(self, *, prefix: str = "", after: str = "", limit: int | None = None) -> list[str]:
        """The names of all logs; or of those that begin with `prefix`, behind the name `after`, `limit` at most. They are sorted;
        `/` and whatever else is percent-encoded in a key comes before letters, digits, `-`, `.` and `_`.

        The next page begins after the last name of this one. A page costs what its own logs do, and with ZooKeeper, objects and a
        metastore of your own without `values_page` a listing of all besides. Raises
        `ConfigError` for a limit below 1, `MetastoreError`."""
    def log_metadata(self, name: str) -> LogMetadata:
        """A log's record as it is now: its numbers, and its last segments, with all that may be open. Raises `LogNotFoundError`.

        One read, however long the log is; `log_segments` has all segments."""
    def log_summary(self, name: str, *, bounded: bool = False, password: bytes = b"") -> LogSummary:
        """The content of a log, its writer, and the lag of its cursors. Unknown values are None.

        Reads its record and pages, its cursors, and an entry or two. With `bounded` it reads no more than 16 pages and
        4 ledgers' records, and values that are only in others are None. Raises `LogNotFoundError`, `MetastoreError`;
        failures of bookies are in `problem`."""
    def log_segments(self, name: str, *, first: int = 1, end: int | None = None) -> list[Segment]:
        """The segments of a log, in order: which ledgers it is made of; those numbered from `first` to before `end`, if given.
        Numbers that were trimmed away, or are not there yet, are left out.

        One read, and one more for each hundred or so that are asked for and aren't among the last. Raises
        `LogNotFoundError`, `MetastoreError`."""
    def statistics(self) -> dict[str, dict[str, float]]:
        """Counters and gauges: of the client, and of each bookie that it embeds, by its id."""
    def close(self) -> None:
        """Leaves the context that gave this, as the end of its block does. Idempotent."""

class Admin:
    """Administers a cluster: its bookies, their copies, and back-ups."""
    def bookies(self) -> list[RemoteBookie]:
        """All announced bookies, wherever they run, sorted by their ids: for inspection and administration. They include the
        bookies that this client embeds. Raises `MetastoreError`."""
    def known_bookies(self) -> list[str]:
        """The ids of all bookies that the metastore knows, running or not, lost ones included. Raises `MetastoreError`."""
    def audit(
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
    def repair(
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
    def pause_repairs(self) -> None:
        """Pauses all repairs of this cluster, of others too, until `resume_repairs`. Each stops within seconds, after the
        fragments that it is copying. Audits go on. Raises `MetastoreError`."""
    def resume_repairs(self) -> None:
        """Lets repairs go on: services within seconds, others when they are started again. Raises `MetastoreError`."""
    def declare_lost(self, bookie_ids: Sequence[str], *, accept_loss: bool = False) -> Sequence[EntriesAtRisk]:
        """Declares bookies permanently lost, for all clients: no recovery waits for them any more, and they never serve
        again under their identities (B8a). Returns the entries that may be gone with them. Reads every ledger's record.

        Raises `LossNotAcceptedError` if confirmed entries may be gone and that is not accepted, `AdministrationError` if one is
        unknown or announced: then nothing was declared. After `MetastoreError` some may be: declaring again is harmless."""
    def drain(self, bookie_id: str) -> DrainStatus:
        """Drains a bookie, so that it can be stopped permanently: it gets no new ledgers while there are enough others,
        and live writers replace it within seconds. Durable, until `undrain`. Returns what still names it, as
        `drain_status` does.

        Raises `AdministrationError` if the bookie is unknown, `MetastoreError`. Draining again is harmless."""
    def undrain(self, bookie_id: str) -> None:
        """Lets a bookie get new ledgers again. Raises `AdministrationError` if it is unknown, `MetastoreError`."""
    def drain_status(self, bookie_id: str) -> DrainStatus:
        """The ledgers that have copies on a bookie, those that are still open on it, and whether it is safe to stop.

        Reads every ledger's record. Raises `AdministrationError` if the bookie is unknown, `MetastoreError`."""
    def rebalance(self, bookie_id: str, *, progress: ReportProgress | None = None) -> RebalanceReport:
        """Moves copies onto this bookie, a new one or one that has few, until it has its share. Reads every ledger's record.

        Raises `AdministrationError` if it is not announced or drains, `MetastoreError`. If it raises or is cancelled,
        moved copies stay; rebalancing again continues. Appends go on, and a copy that the placement policy does not want
        there is not moved."""
    def backup(
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
    def restore(
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
    def add_archive(self, url: str) -> ArchiveRecord:
        """Makes an archive of a store: `file:/mnt/archive`, or a bucket of the plugin `replog-objects`, `s3://BUCKET/PREFIX`.
        Puts a cookie there, by which every client knows it. The URL stands in the metastore: credentials are no part of it.

        Raises `ArchiveError` if the store refuses, has the cookie of another archive, or replaces objects that exist;
        `ConfigError`, `PluginNotFoundError`, `MetastoreError`. Adding again is harmless."""
    def archives(self) -> Sequence[ArchiveRecord]:
        """The archives of this cluster, each with `archive_id` and `url`, sorted by URL. Raises `MetastoreError`."""
    def archive_log(
        self, name: str, *, before: Position | str | None = None, archive: str | None = None, password: bytes = b""
    ) -> MovedEntries:
        """Moves the closed segments of a log into an archive, or those that end before a position; readers and writers go on.
        Bookies drop their copies by themselves, at their next garbage collection. `archive` is the URL of one that was added; it
        may be left out if there is only one. Segments that are archived already stay where they are.

        Raises `ArchiveError`, `EntryUnreadableError`, `LogNotFoundError`, `UnauthorizedError`, `MetastoreError`, `ConfigError`:
        then, and if cancelled, what was archived stays so, and archiving again goes on. Objects that were written for nothing
        are found by `collect_archives`."""
    def recall_log(self, name: str, *, password: bytes = b"") -> MovedEntries:
        """Stores the archived segments of a log on bookies again: on those that had them, or on others in place of those that are
        gone. The objects stay until `collect_archives` finds them.

        Raises `ArchiveError` if not all copies could be stored, `LogNotFoundError`, `UnauthorizedError`, `MetastoreError`: then,
        and if cancelled, what was not recalled stays archived, and recalling again goes on."""
    def audit_archives(self) -> ArchiveReport:
        """Reads all that is archived, and compares it with the digests in the names of the objects. The report's `problems` name
        entries whose object is missing or damaged. Needs no password. Raises `MetastoreError`."""
    def adopt_archives(self, *, password: bytes = b"") -> AdoptedCopies:
        """Has records of closed segments name the copies in archives again that they named before the metastore was restored.
        Each copy is read, and checked with this password; what is left is named in `problems`. Don't collect meanwhile.

        Raises `ArchiveError`, `MetastoreError`: then, and if cancelled, what was adopted stays so; again goes on."""
    def collect_archives(self, *, grace_s: float = GRACE_S) -> CollectedObjects:
        """Deletes objects that no ledger's record names, and that are older than a day by the store's clock: of archivings that
        were killed, segments that were recalled, and ledgers that were deleted while the store was away. A shorter `grace_s` is
        safe only while nobody archives anything.

        Raises `ArchiveError`, `MetastoreDoubtedError`, `MetastoreError`: what was deleted by then is gone; collecting again is
        harmless."""
    def raise_ledger_ids(self) -> int:
        """Raises the next ledger id in the metastore above every id that an announced bookie has ever seen, and above
        the id of every existing ledger; returns it. For metadata that was restored from an old back-up: its next ids
        were given out before, to ledgers of which bookies have entries (M5). A client does the same before it creates a
        ledger.

        Raises `MetastoreError`: then it may be raised; raising it again is harmless."""
    def raise_ledger_term(self, ledger_id: int, *, password: bytes = b"") -> int:
        """Raises the term in the metadata of an unbounded ledger to the highest that an announced bookie knows; returns
        it. Only for metadata that was restored from an old back-up, once nothing newer is left: entries that only the
        lost metadata named are gone. The ledger can be taken over after that. Its present writer is deposed by that
        takeover.

        Raises `RecoveryUndecidedError` if a bookie doesn't answer (retry: yes), `LedgerNotFoundError`, `UnauthorizedError`,
        `ConfigError` for a bounded ledger, `MetastoreError`."""

class Jobs:
    """Adds ledgers that jobs wrote to logs, and retires what logs remember of transactions and producers."""
    def append_ledgers(
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

        - `ledger_ids`: each must have been created with `custom={"log": name, "job": ...}`, of this job if `job` is given.
        - `transaction`: an id and a number. If that id was committed with this number or a higher one, nothing changes: a caller
          that gives one may call again after any failure. A log has room for 1000 ids of jobs and 1000 of streams (`query:...`),
          and never forgets one by itself.
        - `job`: the name of one run, which hands in its ledgers once.
        - `custom`: becomes part of the log's metadata, and must not contradict it.
        - `patience_s`: a writer of the log adds them itself when it is asked, and goes on in a ledger behind them (L10).
          One that has not answered in this time is fenced, as by `write_log`; 0 asks no leader. Without ledgers no leader
          is asked or fenced. Its later appends are behind them, unless no bookie can be reached for `takeover_timeout_s`.

        Raises `LedgerNotFoundError`, `LedgerRefusedError`, `JobAbandonedError`, `UnauthorizedError`,
        `CustomMismatchError`, `TooManyLedgersError`, `TransactionTableFullError`: then the log is as it was;
        `RecoveryUndecidedError`, `NotEnoughBookiesError`, `TakeoverFailedError` (retry: yes): then nothing was added;
        otherwise as `write_log`. If it raises `MetastoreUncertainError` or is cancelled, they may be added or not: call
        again with the same transaction."""
    def sweep(self, name: str, *, grace_s: float = 86400.0, job: str | None = None) -> list[int]:
        """Deletes ledgers that jobs wrote for a log and that it does not name; returns their ids.

        These are the ledgers with "log" and "job" in their `custom`: the leftovers of committed jobs, and the ledgers of
        jobs whose youngest ledger is older than `grace_s`. Such a job is given up: `append_ledgers` refuses its ledgers
        from then on. With `job`, it deletes only ledgers of that job, of any age. Ledgers without "job" belong to leaders
        and are never deleted. Records of cursors whose deletion was cut short go, too.

        Raises `MetastoreError`, `ConfigError`; `ClockMismatchError` if no job was given up by age, as bookies do not confirm this
        clock. If it raises or is cancelled, some are deleted, and some jobs given up; sweeping again is harmless.

        It asks bookies for nothing but their time, needs no password, and deposes no writer."""
    def transactions(self, name: str) -> list[Transaction]:
        """The transactions that a log remembers: each with its `transaction_id`, the highest `number` that was committed, and
        `committed_at_ms`; the last one last. Raises `LogNotFoundError`, `MetastoreError`."""
    def retire_transactions(
        self, name: str, transaction_ids: Sequence[str] = (), *, older_than_s: float | None = None
    ) -> list[str]:
        """Makes a log forget these transactions, and those that were committed longer ago than `older_than_s`; returns their ids.

        A log never forgets one by itself, and has room for 1000 of jobs and 1000 of streams. A job or stream that repeats a
        transaction after it was retired writes its rows again. Raises `LogNotFoundError`, `ConfigError`, `MetastoreError`;
        `ClockMismatchError`: none is retired. Else if it raises or is cancelled, they may be; retiring again is harmless."""
    def producers(self, name: str) -> list[KnownProducer]:
        """The producers that a log remembers from its closed segments, by name. `last_ms` is when its last entry was sent.

        Raises `LogNotFoundError`, `MetastoreError`."""
    def retire_producers(
        self, name: str, producers: Sequence[str] = (), *, older_than_s: float | None = None
    ) -> list[str]:
        """Makes a log forget these producers, and those whose last entry was sent longer ago than `older_than_s`; returns their
        names.

        A log has room for 1000, and never forgets one by itself. An append that repeats an id of a producer that was retired
        appends the entry again. They are those of `producers`; one that appends meanwhile may stay. Raises
        `LogNotFoundError`, `ConfigError`, `MetastoreError`; `ClockMismatchError` if bookies do not confirm this client's clock:
        then none is retired. After another error, or if cancelled, they may be retired or not; retiring again is harmless."""

class Cursors:
    """Lists, moves and deletes the cursors of logs."""
    def list(self, log_name: str) -> Sequence[CursorRecord]:
        """The cursors of a log, by name: the beginning, the term and the owner of each, and when it was committed.

        Raises `LogNotFoundError`, `MetastoreError`."""
    def move(self, log_name: str, name: str, *, to: Position | str) -> CursorRecord:
        """Has a cursor begin at this position, before or behind where it was. A worker that has it loses it.

        Raises `CursorNotFoundError`, `LogNotFoundError`, `TrimmedError`, `PositionError`. If it raises or is cancelled, it may be
        moved or not; moving again is harmless."""
    def delete(self, log_name: str, name: str) -> None:
        """Deletes a cursor: trims don't wait for it any more. A worker that has it loses it.

        Raises `CursorNotFoundError`, `LogNotFoundError`. If it raises or is cancelled, it may be deleted or not; deleting again
        is harmless."""

class LedgerWriter:
    """The one writer of a ledger, for every thread. Made by `Client.create_ledger`; places are entry ids."""
    @property
    def ledger_id(self) -> int:
        """The ledger that is written."""
    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's record, as this writer knows it."""
    @property
    def last_add_pushed(self) -> int:
        """The last entry that was pushed; -1 if there is none."""
    @property
    def last_add_confirmed(self) -> int:
        """The last entry that is confirmed, with all before it; -1 if there is none."""
    @property
    def unconfirmed(self) -> range:
        """The ids that were pushed and are not confirmed."""
    @property
    def unconfirmed_bytes(self) -> int:
        """Payload bytes that were pushed and are not confirmed."""
    @property
    def length_bytes(self) -> int:
        """Payload bytes pushed since the ledger was created."""
    @property
    def error(self) -> ReplogError | None:
        """Why the writer failed, or None."""
    def statistics(self) -> dict[str, float]:
        """Counters and gauges."""
    def push_nowait(self, data: bytes) -> int:
        """Puts an entry in flight and returns its id; `flush` or `last_add_confirmed` tells when it is confirmed.

        Raises `trio.WouldBlock` if the byte budget `in_flight_bytes_max` is used up (W6), `PayloadTooLargeError` or
        TypeError if this can't be an entry: then nothing was pushed. Costs no system call while others are in flight.
        """
    def push(self, data: bytes) -> int:
        """Pushes an entry, and returns its id; waits for the byte budget, which `push_nowait` does not.

        Raises as `push_nowait` does, without `trio.WouldBlock`. If cancelled, nothing was pushed."""
    def append(self, data: bytes) -> int:
        """Appends an entry, and returns its id once it is confirmed (W2). Entries of many tasks share batches.

        Raises why the writer failed (outcome unknown, W4), `PayloadTooLargeError` or TypeError (not written). If cancelled, the
        outcome is unknown."""
    def extend(self, data: Iterable[bytes]) -> range:
        """Appends many entries, in as few batches as can be; returns their ids once all are confirmed.

        Raises as `append` does, and an invalid entry raises before any is sent (nothing written). If it raises otherwise or is
        cancelled, each of them has an unknown outcome."""
    def flush(self) -> None:
        """Waits until everything pushed so far is confirmed.

        Raises why the writer failed: the outcome of `unconfirmed` entries is unknown (W4). If cancelled, they stay in flight."""
    def roll(self) -> None:
        """Begins a new fragment, maybe on other bookies, once everything that was sent is confirmed. Entries that are pushed
        meanwhile are sent after that. Nothing happens if the last fragment is empty.

        With a guaranteed write quorum all entries before it have all their copies then (W8). Raises what `flush` raises,
        `MetastoreUncertainError` if it takes too long: then it may happen later; `WriteQuorumError`: then it has happened."""
    def finish(self) -> None:
        """Confirms pushed entries, and closes the ledger, even an unbounded one: no client can take it over any more.
        Raises as `aclose`; and again why the writer failed, or `trio.ClosedResourceError` once it was left: then the
        ledger stays open."""
    def close(self) -> None:
        """Leaves the context that gave this, as the end of its block does. Idempotent."""

class LogWriter:
    """The one writer of a log, until another client takes over, for every thread. Made by `Client.write_log`."""

    name: str
    @property
    def segment(self) -> int:
        """The number of the segment that is appended to."""
    @property
    def ledger_id(self) -> int:
        """The ledger that is appended to."""
    @property
    def last_add_pushed(self) -> Position | None:
        """The position of the last entry that was pushed by this writer; None before the first."""
    @property
    def last_add_confirmed(self) -> Position | None:
        """The last entry of this writer that is confirmed, with all before it; None before the first."""
    @property
    def unconfirmed_bytes(self) -> int:
        """Payload bytes that were pushed and are not confirmed."""
    def statistics(self) -> dict[str, float]:
        """Counters and gauges: those of the current ledger's writer, and of rolling."""
    def append(
        self,
        data: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        id: tuple[str, int] | None = None,
    ) -> Position:
        """Appends an entry, and returns its position once it is confirmed: it survives from then on.

        `key` is bytes, and `headers` maps texts to bytes. With a key, `data` may be None: a tombstone, which says that
        the key has no value any more. An `id` is a producer and a sequence, which rises with that producer's entries. An
        entry with this id is in the log at most once: repeat it after any failure, on any writer of the log, and the
        first one's position is returned, even if the data differ (L11).

        Raises `FencedError` if another client took over (outcome unknown), `AddTimeoutError` or `NotEnoughBookiesError` if it was
        not confirmed in time (outcome unknown), `PayloadTooLargeError` or TypeError (not written). With an `id`, also
        `DuplicateError` if the log has forgotten its position, and `ProducersFullError` (not written); the first one of a writer
        reads the log, and raises what reading raises, or `MetastoreError` (not written).

        If cancelled, the outcome is unknown; `last_add_pushed` and `last_add_confirmed` tell its position."""
    def extend(
        self,
        data: Iterable[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Mapping[str, bytes] | None] | None = None,
    ) -> Positions:
        """Appends many entries, in order, in as few batches as can be; returns their positions once all are confirmed.

        `keys` and `headers` have one for each entry, or None. Raises as `append` does, and an invalid entry raises before any is
        sent (nothing written). If it raises otherwise or is cancelled, each of them has an unknown outcome."""
    def push_nowait(
        self, data: bytes | None, *, key: bytes | None = None, headers: Mapping[str, bytes] | None = None
    ) -> Position:
        """Puts an entry in flight, and returns its position. `flush` tells when it is confirmed.

        Raises `trio.WouldBlock` if the byte budget is used up: nothing was pushed. Otherwise as `append`."""
    def push(
        self,
        data: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        id: tuple[str, int] | None = None,
    ) -> Position:
        """Pushes an entry, and returns its position; waits for the byte budget, which `push_nowait` does not.

        With an `id`, like `append`: for a repetition it returns the first one's position, which `flush` confirms. Raises
        as `append` does. If cancelled, nothing was pushed."""
    def flush(self) -> None:
        """Waits until everything pushed so far is confirmed.

        Raises as `append` does: the outcome of entries that are not confirmed is unknown. If cancelled, they stay in flight."""
    def roll(self) -> Position:
        """Goes on to a new ledger (L2), so that all before it can be trimmed; returns its first position.

        Appends go on meanwhile. Raises `FencedError` if another client took over, `NotEnoughBookiesError` or `MetastoreError`
        if there can be no new ledger now: then the current one goes on, and the roll is tried again later. `WriteQuorumError`
        says that it has rolled, but that guaranteed copies of what is before are missing still (W8): until they are there, it
        rolls no further, and `roll` raises this again. If cancelled, it may roll or not."""
    def wait_ended(self) -> None:
        """Returns once this writer was closed; raises why, once it can append no more for another reason. A leader that appends
        nothing hears within seconds that it was deposed, unless it does not reach the metastore.

        Raises `FencedError` if another client took over or deleted the log, `LedgerRecordLostError`, or what an append failed
        with: the outcome is unknown for the `positions` of a `FencedError`, and for `unconfirmed`. Leaving does not raise it
        again. Retry: take over again, if you are still elected. If cancelled, nothing has changed."""
    def close(self) -> None:
        """Leaves the context that gave this, as the end of its block does. Idempotent."""

class LedgerReader:
    """Reads one ledger, and never fences it (D1). Made by `Client.open_ledger`.

    Iterate it for entries, or `batches()`, from the first entry to the last one that is known to be confirmed now."""

    ledger_id: int
    def __iter__(self) -> Iterator[Entry]: ...
    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's record, as this reader knows it."""
    @property
    def is_closed(self) -> bool:
        """True if the ledger is closed: then `last_add_confirmed` is its last entry permanently."""
    @property
    def last_add_confirmed(self) -> int:
        """The last entry that is known to be confirmed; `refresh` asks again. -1 if there is none."""
    def refresh(self, wait_s: float = 0.0) -> int:
        """Asks how far the ledger is confirmed now, and returns `last_add_confirmed`; with `wait_s`, waits up to that long
        for it to advance. Raises `MetastoreError`, `LedgerNotFoundError`."""
    def read(self, first: int, last: int) -> list[bytes]:
        """The entries from `first` to `last`, both included. Raises `EntryNotFoundError` if `last` is past
        `last_add_confirmed`, and what reading can raise."""
    def batches_between(self, first: int, last: int) -> Iterator[EntryBatch]:
        """The entries from `first` to `last`, both included, in batches as they were stored; nothing after them is
        requested. Independent of this reader's iteration.

        The caller must know that `last` is confirmed, perhaps from another reader: bookies are not asked again (D1).
        Iterating raises `EntryNotFoundError` if the ledger is closed and ends before it, and as `receive_batch` does."""
    def receive_batch(self) -> EntryBatch | None:
        """The next batch of entries; None after the last one that is known to be confirmed.

        One that follows waits for more instead, until the ledger is closed. Raises `EntryUnreadableError` (retry: yes),
        `EntryNotFoundError`, `LedgerTrimmedError`, `MetastoreError`. If cancelled, nothing is lost."""
    def receive_batch_nowait(self) -> EntryBatch:
        """The non-blocking form of `receive_batch`: raises `trio.WouldBlock` if no batch has arrived yet, or at the end."""
    def batches(self) -> Iterator[EntryBatch]:
        """The entries in batches, as they were stored: by far the cheapest way to read many. Use one at a time."""
    def close(self) -> None:
        """Leaves the context that gave this, as the end of its block does. Idempotent."""

class LogReader:
    """Reads a log after a position. Made by `Client.read_log`.

    Without `follow` it ends at the last entry that is known to be confirmed; with it, it waits for more: without a limit, or for
    `timeout_s` at a time, and then raises TimeoutError. After that, and after `KeyboardInterrupt`, it can be read on:
    nothing was lost. Never fences (D1). Records that were fetched already can still be read in a forked child."""

    name: str
    timeout_s: float | None
    def __iter__(self) -> Iterator[Record]: ...
    @property
    def position(self) -> Position | None:
        """The position of the last record that was returned: read on after it. Before the first, the `after` it was opened
        with; of one that was opened with `since`, the place that was found."""
    def receive(self) -> Record:
        """The next record. Raises `trio.EndOfChannel` at the end, unless it follows; otherwise as iterating does."""
    def batches(self) -> Iterator[RecordBatch]:
        """The records in batches, as they were stored: by far the cheapest way to read many. Iterate this or the reader, not
        both: the next batch omits the rest of the batch that an iteration is in."""
    def receive_batch(self) -> RecordBatch | None:
        """The next batch of records; None at the end, if it doesn't follow. Raises TimeoutError (see above),
        `EntryUnreadableError` (retry: yes), `EntryNotFoundError`, `TrimmedError`, `MetastoreError`."""
    def receive_batch_nowait(self) -> RecordBatch:
        """The non-blocking form of `receive_batch`: raises `trio.WouldBlock` if no batch has arrived yet, or at the end. A call
        that waits has batches fetched: of this one alone none comes."""
    def close(self) -> None:
        """Leaves the context that gave this, as the end of its block does. Idempotent."""

class Cursor:
    """Reads a log on from where its cursor is, and commits. Made by `Client.cursor`; iterate it, or its `batches()`.

    One that follows waits without a limit, or for `timeout_s` at a time once that is set, as `LogReader` does."""

    timeout_s: float | None
    def __iter__(self) -> Iterator[Record]: ...
    @property
    def log_name(self) -> str:
        """The log that it reads."""
    @property
    def name(self) -> str:
        """Its name, which is unique in the log."""
    @property
    def term(self) -> int:
        """The number of this acquisition, higher than all before: for a store of the user's own, to refuse older workers."""
    @property
    def position(self) -> Position | None:
        """The position of the last record that was returned; None before the first."""
    @property
    def begins_at(self) -> Position:
        """The first position that is not committed, durably: where the next worker begins."""
    def lag(self) -> CursorLag:
        """How much of the log is behind the last commit. Closed segments cost no read of a bookie.

        Fields that bookies cannot answer now are None. Raises `LogNotFoundError`, `MetastoreError`."""
    def receive(self) -> Record:
        """The next record. Raises `trio.EndOfChannel` at the end, unless it follows; otherwise as iterating does."""
    def batches(self) -> Iterator[RecordBatch]:
        """The records in batches, as they were stored. Iterate this or the cursor, not both."""
    def receive_batch(self) -> RecordBatch | None:
        """The next batch of records; None at the end, if it doesn't follow. Raises TimeoutError (see above),
        `EntryUnreadableError` (retry: yes), `EntryNotFoundError`, `TrimmedError`, `MetastoreError`."""
    def receive_batch_nowait(self) -> RecordBatch:
        """The non-blocking form of `receive_batch`: raises `trio.WouldBlock` if no batch has arrived yet, or at the end."""
    def commit(self, position: Position | str | None = None) -> None:
        """Makes durable that all records up to the last one that was returned, or up to `position`, are done with.

        Returns once it is written; commits of many tasks share one write. Raises `CursorLostError` (see there);
        `PositionError` if the log is not known to have that position, and `NotEnoughBookiesError` if no bookie can say whether it
        has: then nothing was committed; `MetastoreError`: then it is written or not, and committing again is harmless, as it is
        after a cancellation."""
    def commit_nowait(self, position: Position | str | None = None) -> None:
        """Commits without blocking: the commit is written soon, together with all within a tenth of a second, and at
        the latest when the cursor's block is left without error. Thousands a second cost the metastore a few writes.

        Raises `CursorLostError` once that is known; then commits noted since the last write are not written.
        `PositionError` for a position behind the last record that was returned: only `commit` can find out whether the
        log has it."""
    def flush(self) -> None:
        """Writes noted commits that are not written yet. Raises as `commit` does, but a loss that was raised before
        only once."""
    def close(self) -> None:
        """Leaves the context that gave this, as the end of its block does. Idempotent."""

class RunningMachine(Generic[State]):
    """A state machine in this process, for every thread. Made by `Client.run_machine`; each command is a method."""
    def __getattr__(self, name: str) -> Callable[..., Any]: ...
    @property
    def machine_name(self) -> str:
        """The name of the machine, and of its log."""
    @property
    def local(self) -> State:
        """The state as it was last applied here, maybe behind: without waiting. Do not change it."""
    @property
    def status(self) -> MachineStatus:
        """Where this member is."""
    def read(self, function: Callable[[State], Result]) -> Result:
        """Returns the function's result for the state with every command applied that was answered before this call.

        The function must not change the state, nor return a part of it that changes. Raises the function's errors, and
        `CommandTimeoutError`. Reads that are under way together share one append."""
    def call(
        self,
        command: Callable[Concatenate[State, Arguments], Result],
        /,
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Has a command applied, exactly once, and returns its result.

        Raises `CommandFailedError` (applied), `CommandRefusedError` (not written), `CommandTimeoutError` and
        `SessionExpiredError` (outcome unknown), TypeError for arguments that are not of the command's types. If cancelled,
        the outcome is unknown."""
    def next_id(self) -> CommandId:
        """An id for one command, to be kept before `call_as` sends it: then the command may be repeated, by any process, until it
        is answered. Raises as `call`."""
    def call_as(
        self,
        command_id: CommandId | str,
        command: Callable[Concatenate[State, Arguments], Result],
        /,
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Runs a command that has an id: a repeat with the same id gets the first answer, and is not applied again.

        Raises `SessionExpiredError` if the id's session has ended: then it is unknown whether the command was applied before."""
    def close(self) -> None:
        """Leaves the context that gave this, as the end of its block does. Idempotent."""

class ServedBookie:
    """A bookie that is served inside this app."""
    @property
    def bookie_id(self) -> str:
        """The identity that its storage proves."""
    @property
    def failure(self) -> StorageFailedError | None:
        """Why its storage has stopped for good; None while it works."""
    def ask_for_collection(self) -> None:
        """Asks for a collection of garbage soon, rather than at the next interval; returns at once."""
    def collect_garbage(self) -> list[int]:
        """Looks for deleted ledgers now, and returns those that were dropped (B6).

        Raises `MetastoreError` or `StorageError` (retry: yes; nothing that exists was dropped), `trio.ClosedResourceError` if
        the bookie is left meanwhile. If cancelled, the pass goes on; the next one waits for it."""
    def confirm_metastore(self) -> None:
        """Confirms that the metastore is right as it is, although the bookie has seen a newer one: it was restored from
        a back-up, and nothing newer is left (B6a). Entries that only the lost metadata named are garbage from then on.

        Raises `MetastoreError` or `StorageError`: then the outcome is unknown, and confirming again is harmless."""
    def compact(self, *, is_major: bool = False) -> None:
        """Gives back space that nothing needs, now; takes as long as it takes, and reads and writes go on. Minor: where most of
        it is gained.

        Raises `StorageFullError` if there is no room to work (nothing is lost), `StorageFailedError`,
        `trio.ClosedResourceError` if the bookie is left meanwhile. If cancelled, the run goes on; the next one waits for it."""
    def scrub(self) -> Sequence[Damage]:
        """Reads all that is stored and checks it against damage, now; returns all damage that is known of, old and new.

        Observers get an event for each new one (`DamageFound`). Raises `StorageFailedError`, `trio.ClosedResourceError` if the
        bookie is left meanwhile. If cancelled, the run goes on; the next one waits for it."""
    def statistics(self) -> dict[str, float]:
        """Counters and gauges. Names of its transports' counters begin with the transport's scheme: `tcp_connections`.

        - State: `read_only`, `storage_failed`, `free_bytes` (if the storage knows), `used_bytes`, `damaged_batches`, `uptime_s`.
        - Requests: the counters `added_batches`, `added_entries`, `added_bytes`, `reads`, `read_bytes`, `fence_requests`,
          `recovery_reads` and `commits`; the gauges `queued_requests` and `queued_bytes` (accepted and not answered) and
          `active_ledgers` (added to in the last 10 to 20 s).
        - Garbage: `garbage_collections`, `garbage_collection_failures`, `ledgers_collected`, `released_ranges` (of entries that
          moved to other bookies), `deletion_hints` (of clients that deleted a ledger), `last_garbage_collection_s` (how long the
          last pass took), `since_garbage_collection_s` (how long ago it ended).
        - Runs that were asked for: `forced_garbage_collections`, `forced_compactions`, `forced_scrubs`; and
          `compaction_failures`, `attempts_to_make_space`."""
    def latencies(self) -> dict[str, LatencyHistogram]:
        """Durations since the start, in copies: `commit`, a call to the storage; `answer`, from accepting the first
        request of a commit to answering it."""
    def close(self) -> None:
        """Leaves the context that gave this, as the end of its block does. Idempotent."""

class RemoteBookie:
    """A bookie as it was announced when this was made."""

    bookie_id: str
    endpoints: Sequence[Endpoint]
    read_only: bool
    draining: bool
    labels: Mapping[str, str]
    def statistics(self, *, timeout_s: float = STATISTICS_TIMEOUT_S) -> BookieStatistics:
        """Returns its statistics as they are now. Any client may ask."""
    def collect_garbage(self, *, timeout_s: float = GARBAGE_TIMEOUT_S) -> list[int]:
        """Makes it drop deleted ledgers now, and returns their ids, at most the first 20 000 (B6). A ledger that exists is never
        dropped."""
    def confirm_metastore(self, *, timeout_s: float = GARBAGE_TIMEOUT_S) -> None:
        """Confirms that its metastore is right as it is: it was restored from a back-up, and nothing newer is left
        (B6a). Entries that only the lost metadata named are garbage from then on."""
    def compact(self, *, is_major: bool = False, timeout_s: float = COMPACT_TIMEOUT_S) -> None:
        """Makes it free unused space now; unless `is_major`, only where most of it is gained. Reads and appends go on."""
    def scrub(self, *, timeout_s: float = SCRUB_TIMEOUT_S) -> list[Damage]:
        """Makes it read and check all its data, and returns the damaged batches, at most the first 500."""
