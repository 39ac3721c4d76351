"""`Client`: a way to ledgers, logs, state machines and back-ups.

Few clients use its groups of verbs and state machines. They are named by their packages, which import them at their first use.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import datetime, timedelta

from replog import api
from replog import machine as machines
from replog.api.opened import OpenClient
from replog.client import unbounded
from replog.client.ledger_reader import LedgerReader
from replog.client.ledger_writer import LedgerWriter
from replog.client.ledgers import check_password
from replog.config import check_number, check_types
from replog.errors import ConfigError, StorageError
from replog.log import trimming
from replog.log.cursor import Cursor
from replog.log.cursor_opening import CursorOptions, opened
from replog.log.deleting import delete
from replog.log.key_compaction import CompactedLog, LogCompaction
from replog.log.log_options import LogOptions, Retention, with_given
from replog.log.log_reader import LogReader, started
from replog.log.log_summaries import LogSummaries, LogSummary
from replog.log.log_writer import LogWriter
from replog.log.retention import enforced, retain, while_leading
from replog.log.since import reader_since, time_ns_of
from replog.log.takeover import lead, take_over
from replog.protocol.digest import DigestType
from replog.protocol.model import LedgerMetadata, LogMetadata, Position, Segment
from replog.protocol.quorum import Quorum
from replog.records.logs import list_log_names
from replog.records.paths import log_key_path


class Client:
    """A way to ledgers and logs. Made by `connect` and `embed`; belongs to the trio run that made it.

    `quorum` arguments that are left out take the client's default: three bookies of which two acknowledge, or all the
    embedded ones if they are fewer. Passwords are bytes. Without a ledger's password a client can neither read, write nor
    fence it.
    """

    def __init__(self, opened: OpenClient) -> None:
        #: The quorum of ledgers and logs that are created without one.
        self.default_quorum = opened.default_quorum
        #: The bookies that this client embeds: see `replog.results.ServedBookie`.
        self.bookies = opened.bookies
        #: Directories that are embedded without a bookie, with the error of each.
        self.left_out: Mapping[str, StorageError] = {}
        self._opened = opened

    @property
    def admin(self) -> api.Admin:
        """Bookies, repairs and back-ups."""
        return api.Admin(self._opened)

    @property
    def jobs(self) -> api.Jobs:
        """Ledgers that jobs add to logs, and what logs remember of jobs and producers."""
        return api.Jobs(self._opened)

    @property
    def cursors(self) -> api.Cursors:
        """The cursors of logs: to list, move and delete them."""
        return api.Cursors(self._opened)

    # -- ledgers ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def create_ledger(
        self,
        *,
        quorum: Quorum | None = None,
        password: bytes = b"",
        digest_type: DigestType = DigestType.CRC32C,
        custom: Mapping[str, str] | None = None,
        unbounded: bool = False,
        durability: str | None = None,
        compression: str | None = None,
    ) -> AsyncIterator[LedgerWriter]:
        """A new ledger and its writer, as a context manager. `custom` becomes part of its metadata. Leaving it closes
        the ledger; an `unbounded` one stays open, so that `take_over_ledger` goes on with it, until `finish` closes it.
        With `durability="write-quorum"` closes, rolls and takeovers of it end only when bookies have all copies of the
        entries before them, or raise `WriteQuorumError` (W8). `compression="zstd"` stores batches compressed where that
        saves an eighth: readers need `replog[zstd]`, too. None takes what the client's options say.

        Raises `NotEnoughBookiesError` (retry: when there are more), `MetastoreError`: then no ledger was created, or one
        that no client knows."""
        wanted = self.default_quorum if quorum is None else quorum
        async with await self._opened.ledgers.create(
            wanted,
            password,
            digest_type,
            custom,
            unbounded=unbounded,
            durability=durability,
            compression=compression,
        ) as writer:
            yield LedgerWriter(writer)

    @asynccontextmanager
    async def take_over_ledger(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        accept_loss: bool = False,
        compression: str | None = None,
    ) -> AsyncIterator[LedgerWriter]:
        """Fences the writer of an unbounded ledger, recovers its entries, and goes on in the same ledger: a writer of
        the next term, as a context manager. Entry ids continue.

        Of entries whose outcome was unknown, the takeover decides: each is kept or gone, for everybody. `accept_loss` as for
        `recover_ledger`, `compression` as for `create_ledger`. Raises `LedgerFinishedError`; `FencedError` if another client
        takes it over meanwhile; `RecoveryUndecidedError`, `NotEnoughBookiesError` or `WriteQuorumError` (retry: when bookies are
        back), `LedgerRolledBackError`, `LedgerNotFoundError`, `ConfigError` for a bounded ledger or a log's, `MetastoreError`.
        If it raises or is cancelled, the ledger's writer may be fenced, and nothing was cut: another takeover goes on from
        there."""
        metadata, _ = await self._opened.ledgers.records.get_head(ledger_id)
        unbounded.check_alone(metadata, "taken over")
        async with await self._opened.ledgers.take_over(
            ledger_id, password, accept_loss=accept_loss, compression=compression
        ) as writer:
            yield LedgerWriter(writer)

    @asynccontextmanager
    async def open_ledger(
        self, ledger_id: int, *, first: int | None = None, follow: bool = False, password: bytes = b""
    ) -> AsyncIterator[LedgerReader]:
        """A reader of a ledger, as a context manager; iterating begins at the entry `first`, or where the ledger begins. Never
        fences (D1). With `follow` it waits for more, across terms and fragments, until the ledger is closed.

        Raises `LedgerNotFoundError`, `UnauthorizedError`, `LedgerTrimmedError`, `ConfigError` if `first` is not an entry id."""
        async with await self._opened.ledgers.open(ledger_id, password, first, follow=follow) as reader:
            yield reader

    async def recover_ledger(
        self, ledger_id: int, *, password: bytes = b"", lost: Sequence[str] = (), accept_loss: bool = False
    ) -> LedgerMetadata:
        """Fences a ledger and closes it at its last entry (R2-R12); returns its metadata. A closed ledger stays as it is.

        `lost` names bookies that never come back: they are declared lost first, as by `admin.declare_lost`. `accept_loss`
        closes the ledger even if confirmed entries may be gone, because an ack quorum of bookies lost something (R10). Raises
        `RecoveryUndecidedError` or `NotEnoughBookiesError` (retry: when bookies are back), `LedgerNotFoundError`. If it
        raises or is cancelled, the ledger's writer may be fenced, and nothing was cut. `WriteQuorumError` (retry: yes) says that
        it is closed, and that guaranteed copies are missing (W8)."""
        if lost:
            await self.admin.declare_lost(lost, accept_loss=accept_loss)
        return await self._opened.ledgers.recover(ledger_id, password, accept_loss=accept_loss)

    async def trim_ledger(self, ledger_id: int, *, before: int) -> int:
        """Drops the fragments of an unbounded ledger that lie wholly before this entry; returns the first entry that is left.
        The last fragment always stays: `roll` first, to be able to drop it. Readers below get `LedgerTrimmedError`.

        Raises `LedgerNotFoundError`, `ConfigError` for a bounded ledger, a log's, or a number below 0, `MetastoreError`. If it
        raises or is cancelled, trimming again is harmless."""
        return await unbounded.trim(ledger_id, before, self._opened.ledgers.context)

    async def delete_ledger(self, ledger_id: int) -> None:
        """Deletes a ledger; bookies drop its entries soon (B6). Deleting a ledger that does not exist does nothing.

        Raises `MetastoreError`. If it raises or is cancelled, it may be deleted or not; deleting again is harmless."""
        await self._opened.ledgers.read_and_delete(ledger_id)

    async def ledgers(self) -> list[int]:
        """The ids of all ledgers, ascending. Raises `MetastoreError`."""
        return await self._opened.ledgers.list()

    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """A ledger's record as it is now; no bookie is asked, and no password needed. Raises `LedgerNotFoundError`."""
        return (await self._opened.ledgers.records.get(ledger_id))[0]

    # -- logs -------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def write_log(
        self,
        name: str,
        *,
        options: LogOptions | None = None,
        quorum: Quorum | None = None,
        password: bytes = b"",
    ) -> AsyncIterator[LogWriter]:
        """Takes a log over *now*, and yields its writer, as a context manager. Creates the log if it does not exist.

        `options` say how the log is written; a `quorum` or a `password` given beside them stands for theirs.

        Raises `RecoveryUndecidedError`, `NotEnoughBookiesError` or `WriteQuorumError` (retry: when bookies are back),
        `TakeoverFailedError` (others keep taking over), `UnauthorizedError`, `ConfigError`, `MetastoreError`. If it raises or is
        cancelled, the last writer may be fenced; confirmed entries stay.

        A takeover fences the last writer, recovers its ledger, and makes a new one, or goes on in an unbounded one (L1, L9)."""
        wanted = self._log_options("write_log", options, quorum, password)
        opened = self._opened
        async with (
            await take_over(name, wanted, opened.ledgers, opened.log_driver, opened.nursery) as writer,
            enforced(writer, wanted.retention, opened.ledgers, opened.log_driver, opened.cursors),
            self._archiving(writer, wanted),
        ):
            yield writer

    @asynccontextmanager
    async def lead_log(
        self,
        name: str,
        *,
        options: LogOptions | None = None,
        quorum: Quorum | None = None,
        password: bytes = b"",
    ) -> AsyncIterator[LogWriter]:
        """Waits until no other client leads the log, then takes it over like `write_log`. It waits without a deadline.

        Takes the arguments of `write_log`, and raises its errors. If cancelled while it waits, nothing has changed. Leading is
        advice, to avoid duels (M3); the log is safe in any case, since a takeover fences. If another client takes over meanwhile,
        this one waits for its turn again."""
        wanted = self._log_options("lead_log", options, quorum, password)
        opened = self._opened
        async with (
            lead(name, wanted, opened.ledgers, opened.log_driver, opened.nursery) as writer,
            enforced(writer, wanted.retention, opened.ledgers, opened.log_driver, opened.cursors),
            self._archiving(writer, wanted),
        ):
            yield writer

    def _archiving(self, writer: LogWriter, options: LogOptions) -> AbstractAsyncContextManager[None]:
        """Archives what these options say beside a leader."""
        if (policy := options.archive) is None:
            return nullcontext()
        # Imported here: few clients archive.
        from replog.api.archiving import archive_always

        opened = self._opened
        return while_leading(writer, lambda: archive_always(writer.name, policy, options.password, opened))

    def _log_options(self, verb: str, options: LogOptions | None, quorum: Quorum | None, password: bytes) -> LogOptions:
        check_types(verb, options=(options, LogOptions))
        return with_given(options or LogOptions(), quorum, password, self.default_quorum)

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
        """A reader of a log, as a context manager: from the beginning, or `after` a position; with `follow` it waits for more.

        `after` is a `Position` or its text. `since` a `datetime` with a time zone, or since a `timedelta` ago, all entries come
        that were sent then or later, by their writers' clocks, and maybe some earlier ones; it excludes `after`. Finding the
        place reads one entry for each halving of a ledger.

        Raises `LogNotFoundError` (with `follow` it waits for the log instead), `TrimmedError`, `PositionError`; `ConfigError` for
        a time without a zone, or `after` and `since` together; with `since`, also `EntryUnreadableError` (retry: yes). If its log
        is deleted, a reader raises `LogNotFoundError`, or `TrimmedError` if the log was created again."""
        position = None if after is None else Position.parse(after)
        if since is not None and position is not None:
            raise ConfigError(
                f"after={after!r} and since={since!r} exclude each other: leave one out; nothing was read"
            )
        # Refused here: with `follow` a log that does not exist is waited for, so
        # an impossible name would wait without end.
        log_key_path(name)
        check_password(password)
        known = self._opened.ledgers, self._opened.logs, password
        if since is None:
            reader = LogReader(name, *known, position, follow)
            await started(reader)
        else:
            time_ns = time_ns_of(since, self._opened.ledgers.entropy.time_ns())
            reader = await reader_since(name, time_ns, *known, follow=follow)
        async with reader:
            yield reader

    @asynccontextmanager
    async def cursor(
        self,
        log_name: str,
        name: str,
        *,
        start: Position | str | None = None,
        after: Position | str | None = None,
        follow: bool = False,
        wait: bool = True,
        password: bytes = b"",
    ) -> AsyncIterator[Cursor]:
        """A reader that goes on where the last worker with this cursor has committed, as a context manager. One that does not
        exist is created, at the position `start`, or at the beginning. With `follow` it waits for more records.

        Of several workers one reads: the others wait for their turn, which is advice (M3). Without `wait`, this one
        takes over at once. Either way the worker before can't commit any more. `after` begins after this position
        instead of the committed one: for applications that keep positions in transactions of their own store.

        Raises `LogNotFoundError` (with `follow` it waits for the log instead), `TrimmedError`, `PositionError`,
        `MetastoreError`. Leaving it without error writes what `commit_nowait` noted."""
        options = CursorOptions(
            None if start is None else Position.parse(start),
            None if after is None else Position.parse(after),
            follow,
            wait,
            password,
        )
        async with opened(
            log_name, name, options, self._opened.cursors, self._opened.ledgers, self._opened.logs
        ) as cursor:
            yield cursor

    @asynccontextmanager
    async def run_machine(
        self,
        name: str,
        machine: type[machines.State],
        *,
        listen: str | Sequence[str] | None = None,
        options: machines.MachineOptions | None = None,
        quorum: Quorum | None = None,
        password: bytes = b"",
        digest_type: DigestType = DigestType.CRC32C,
    ) -> AsyncIterator[machines.RunningMachine[machines.State]]:
        """Runs a member of a replicated state machine, as a context: it applies the log of this name, and competes to lead it.

        Members reach each other where `listen` says, like "tcp:0.0.0.0:3200"; by default at a socket for this user's processes
        on this machine. Raises `ConfigError`. `UnknownCommandError`, `StateDivergedError`, `CommandUnappliedError` and
        `UnsavableStateError` end the context."""
        check_types("run_machine", options=(options, machines.MachineOptions), quorum=(quorum, Quorum))
        context = machines.context_of(self._opened.ledgers, self._opened.plugins)
        written = LogOptions(quorum=quorum or self.default_quorum, password=password, digest=digest_type)
        async with machines.run_machine(name, machine, self, context, listen, options, written) as running:
            yield running

    async def trim_log(self, name: str, *, before: Position | str, ignore_cursors: bool = False) -> Position:
        """Drops the ledgers of a log that lie wholly before the position (L3); returns where the log begins now.

        The last ledger always stays: `roll` first, to be able to drop it. Segments that a cursor has not committed
        stay, too, and `TrimBlockedError` names the cursor, after the segments before were trimmed; `ignore_cursors`
        drops them all the same. Raises `LogNotFoundError`, `PositionError`. If it raises or is cancelled, trimming
        again is harmless."""
        known = self._opened.ledgers, self._opened.log_driver, self._opened.cursors
        return await trimming.trim(name, Position.parse(before), *known, ignores_cursors=ignore_cursors)

    async def retain_log(
        self, name: str, *, age: timedelta | None = None, size_bytes: int | None = None, committed: bool = False
    ) -> Position:
        """Drops the oldest ledgers of a log (L3): those whose entries were all sent longer ago than `age`, those behind
        which there are `size_bytes` of payload, and with `committed` those that every cursor has committed, if there
        are cursors. Returns where the log begins now.

        A ledger stays, with all that follow it, while the log's record does not say its size or when its last entry was sent;
        the last one always stays. A time is by the clock of its writer, and now by this client's, if bookies confirm it (L3a).

        Raises, after trimming what may go, `TrimBlockedError` with the cursor that needs more, or `ClockMismatchError` with the
        clocks or the segment in doubt; `LogNotFoundError`, `ConfigError`, `MetastoreError`. Calling again is always harmless."""
        kept = Retention(age=age, size_bytes=size_bytes, committed=committed)
        return await retain(name, kept, self._opened.ledgers, self._opened.log_driver, self._opened.cursors)

    async def compact_log(
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
        known = self._opened.ledgers, self._opened.log_driver, self._opened.logs
        return await LogCompaction(name, into, *known, quorum or self.default_quorum, password, digest_type).run()

    async def delete_log(self, name: str, *, password: bytes = b"") -> None:
        """Fences a log's writer, and deletes the log, its ledgers and its cursors.

        Raises `LogNotFoundError`; `RecoveryUndecidedError` or `NotEnoughBookiesError` if its writer can't be fenced (retry: when
        bookies are back). If it raises or is cancelled, deleting again is harmless.

        A small record keeps the segment numbers: a log that is written under this name afterwards is another one, and
        goes on with them, so that no position ever means two records (L4)."""
        await delete(name, self._opened.ledgers, self._opened.log_driver, self._opened.cursors, password)

    async def logs(self, *, prefix: str = "", after: str = "", limit: int | None = None) -> list[str]:
        """The names of all logs; or of those that begin with `prefix`, behind the name `after`, `limit` at most. They are sorted;
        `/` and whatever else is percent-encoded in a key comes before letters, digits, `-`, `.` and `_`.

        The next page begins after the last name of this one. A page costs what its own logs do, and with ZooKeeper, objects and a
        metastore of your own without `values_page` a listing of all besides. Raises
        `ConfigError` for a limit below 1, `MetastoreError`."""
        if limit is not None and limit < 1:
            raise ConfigError(f"logs: limit={limit}: at least one name, or None for all")
        return await list_log_names(self._opened.ledgers.records.metastore, prefix, after, limit)

    async def log_metadata(self, name: str) -> LogMetadata:
        """A log's record as it is now: its numbers, and its last segments, with all that may be open. Raises `LogNotFoundError`.

        One read, however long the log is; `log_segments` has all segments."""
        return (await self._opened.logs.get(name))[0]

    async def log_summary(self, name: str, *, bounded: bool = False, password: bytes = b"") -> LogSummary:
        """The content of a log, its writer, and the lag of its cursors. Unknown values are None.

        Reads its record and pages, its cursors, and an entry or two. With `bounded` it reads no more than 16 pages and
        4 ledgers' records, and values that are only in others are None. Raises `LogNotFoundError`, `MetastoreError`;
        failures of bookies are in `problem`."""
        check_password(password)
        return await LogSummaries(self._opened.ledgers, self._opened.logs, self._opened.cursors, password).of(
            name, is_bounded=bounded
        )

    async def log_segments(self, name: str, *, first: int = 1, end: int | None = None) -> list[Segment]:
        """The segments of a log, in order: which ledgers it is made of; those numbered from `first` to before `end`, if given.
        Numbers that were trimmed away, or are not there yet, are left out.

        One read, and one more for each hundred or so that are asked for and aren't among the last. Raises
        `LogNotFoundError`, `MetastoreError`."""
        check_number("first", first)
        if end is not None:
            check_number("end", end)
        return await self._opened.logs.segments(name, first, end)

    def statistics(self) -> dict[str, dict[str, float]]:
        """Counters and gauges: of the client, and of each bookie that it embeds, by its id."""
        outstanding_bytes = float(self._opened.ledgers.context.connections.outstanding_bytes())
        own = {"outstanding_bytes": outstanding_bytes, "bookies_left_out": float(len(self.left_out))}
        return {"client": own, **{bookie.bookie_id: bookie.statistics() for bookie in self.bookies}}
