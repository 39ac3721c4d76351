"""Ledgers: creating, opening, recovering, deleting, listing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress

import trio

from replog.client.channel import Answer
from replog.client.clocks import Clocks
from replog.client.connections import Connections
from replog.client.entry_writer import Completion, EntryWriter
from replog.client.following import Following
from replog.client.fragment_limits import FragmentRoller
from replog.client.job_records import JobRecords
from replog.client.ledger_effects import ClientContext
from replog.client.ledger_reader import LedgerReader
from replog.client.membership import watch_draining
from replog.client.new_ensembles import EnsembleChooser
from replog.client.record_watch import RecordWatch
from replog.client.recovering import RecordOutdatedError, RecoveringShell
from replog.client.scan import LedgerScan
from replog.client.unbounded import check_unbounded
from replog.client.writer_background import kept_bytes_max
from replog.config.client import ClientTuning
from replog.errors import ConfigError, LedgerNotFoundError, LedgerTrimmedError, MetastoreError, UnauthorizedError
from replog.hookspecs import Event, LedgerRecovered, LedgerTakenOver
from replog.protocol.batch import ENTRY_ID_MAX
from replog.protocol.compression import COMPRESSIONS, Compressor, compressor_for
from replog.protocol.digest import Digest, DigestType, ledger_key, ledger_key_check
from replog.protocol.gaps import Gap
from replog.protocol.messages import AdminCommand, AdminRequest
from replog.protocol.model import Durability, Fragment, LedgerMetadata, LedgerState
from replog.protocol.quorum import Quorum
from replog.protocol.recovery import LedgerRecovery
from replog.protocol.writing import LedgerWriting
from replog.records.ledgers import list_ledger_ids
from replog.runtime.nursery import open_service_nursery
from replog.runtime.ticker import Ticker

# Of a ledger's key, and the digest that checks its batches.
CompletionMaker = Callable[[bytes, Digest, ClientContext, ClientTuning], Completion]


class Ledgers:
    """The ledgers of one client. Background tasks run in `nursery`; `make_completion` is what repairs know (W8)."""

    def __init__(
        self,
        context: ClientContext,
        options: ClientTuning,
        observe: Callable[[Event], None],
        nursery: trio.Nursery,
        make_completion: CompletionMaker,
    ) -> None:
        self.context = context
        self.options = options
        self.observe = observe
        self.records = context.records
        self.entropy = context.entropy
        self.clocks = Clocks(context.connections, context.entropy)
        self.jobs = JobRecords(context.records, lambda: self.entropy.time_ms())
        self.deleted: Callable[[], None] = lambda: None  # called after ledgers were deleted: bookies may collect them
        self.nursery = nursery
        self._make_completion = make_completion
        self._writers: dict[int, EntryWriter] = {}
        self._ensembles = EnsembleChooser(context.membership, context.connections, context.placing, self.entropy.random)
        self.refusing_ids = self._ensembles.refusing_ids  # bookies whose disks are full or failed
        self._ticker = Ticker(options.explicit_last_add_confirmed_after_s)
        nursery.start_soon(self._ticker.run)
        lease_s = context.records.metastore.lease_s
        nursery.start_soon(
            watch_draining, context.membership, lease_s, self._leave_bookies, lambda: bool(self._writers)
        )
        nursery.start_soon(context.call_soon.run)
        nursery.start_soon(RecordWatch(context.records, self._writers).run)
        context.connections.on_awaited = self._reader_waits
        context.records.ids_from = lambda: context.membership.ledgers_below

    # -- creating and writing ---------------------------------------------------------------------------------------

    async def create(
        self,
        quorum: Quorum,
        password: bytes = b"",
        digest_type: DigestType = DigestType.CRC32C,
        custom: Mapping[str, str] | None = None,
        before_creation: Callable[[int], Awaitable[None]] | None = None,
        *,
        unbounded: bool = False,
        durability: str | None = None,
        compression: str | None = None,
        rolls_fragments: bool = True,
    ) -> EntryWriter:
        """Creates a ledger and starts its writer, of term 1 if it is unbounded. Its ensemble may name bookies that are
        away (C7). `durability` and `compression` are those of the client's options if None. `before_creation` is called
        with its id before it exists. An unbounded one begins new fragments by the options, with `rolls_fragments`: a
        log begins a new ledger instead. Raises `ConfigError` for invalid arguments; `NotEnoughBookiesError`,
        `MetastoreError`: then no ledger was created, or one without a user."""
        check_creation(quorum, password, digest_type, custom, durability)
        compressor = self._compressor(compression)
        ensemble, missing, shortfall = await self._ensembles.choose(quorum)
        ledger_id = await self.records.new_id()
        if before_creation is not None:
            await before_creation(ledger_id)
        # Before the ledger exists: a sweep then finds even one whose creator dies right after creating it.
        await self.jobs.register(ledger_id, custom or {})
        creation = self.entropy.token()
        key = ledger_key(ledger_id, password, creation)
        metadata = LedgerMetadata(
            ledger_id,
            quorum,
            digest_type,
            ledger_key_check(key),
            (Fragment(0, ensemble),),
            token=creation,
            creation=creation,
            created_at_ms=self.entropy.time_ms(),
            custom=dict(custom or {}),
            gaps=tuple(Gap(index, 0) for index in range(quorum.ensemble) if missing >> index & 1),
            is_unbounded=unbounded,
            owner=self.entropy.token() if unbounded else "",
            durability=Durability(self.options.durability if durability is None else durability),
        )
        version, is_only_request = await self.records.create(metadata)
        self.context.placing.unmet(ledger_id, shortfall)
        digest = metadata.digest(password)
        machine = LedgerWriting(
            metadata,
            version,
            digest,
            self.entropy.token(),
            missing=missing,
            compressor=compressor,
            kept_bytes_max=kept_bytes_max(self.options),
        )
        writer = self._start_writer(
            machine, key, self._completion(metadata, password), rolls_fragments=unbounded and rolls_fragments
        )
        writer.is_created_for_certain = is_only_request
        return writer

    async def take_over(
        self,
        ledger_id: int,
        password: bytes = b"",
        *,
        accept_loss: bool = False,
        compression: str | None = None,
        rolls_fragments: bool = True,
    ) -> EntryWriter:
        """Starts the writer of the next term of an unbounded ledger: fences the writer of the last one, and recovers what that
        has left (T2, R2-R12). As `Client.take_over_ledger`."""
        started = trio.current_time()
        compressor = self._compressor(compression)
        metadata, version = await self.records.get_head(ledger_id)
        key, digest = self.authorize(metadata, password), metadata.digest(password)
        check_unbounded(metadata, "taken over")
        recovery = LedgerRecovery(
            metadata, version, digest, self.entropy.token(), is_loss_accepted=accept_loss, takes_over=True
        )
        try:
            opened = await RecoveringShell(recovery, key, self.context, self.options).run()
        except RecordOutdatedError:
            if not await self._is_newer_than(metadata):
                raise
            return await self.take_over(
                ledger_id,
                password,
                accept_loss=accept_loss,
                compression=compression,
                rolls_fragments=rolls_fragments,
            )
        completion = self._completion(opened, password)
        if completion is not None:
            # What the last writer left has all its copies before this one confirms anything behind it (W8).
            await completion.complete(opened, recovery.version)
        machine = LedgerWriting(
            opened,
            recovery.version,
            digest,
            self.entropy.token(),
            missing=recovery.missing,
            compressor=compressor,
            kept_bytes_max=kept_bytes_max(self.options),
        )
        if completion is not None:
            machine.found_full(opened.last_fragment.first_entry_id)
        duration_s = trio.current_time() - started
        self.observe(LedgerTakenOver(ledger_id, opened.term, machine.last_add_confirmed, duration_s))
        return self._start_writer(machine, key, completion, rolls_fragments=rolls_fragments)

    def _compressor(self, compression: str | None) -> Compressor | None:
        """The compressor for one writer's batches, by its own option or the client's."""
        check_compression(compression)
        return compressor_for(self.options.compression if compression is None else compression)

    def _completion(self, metadata: LedgerMetadata, password: bytes) -> Completion | None:
        """The completion that brings the ledger to its full write quorum, if that is guaranteed (W8)."""
        if metadata.durability is not Durability.WRITE_QUORUM:
            return None
        return self._make_completion(metadata.key(password), metadata.digest(password), self.context, self.options)

    def _start_writer(
        self, machine: LedgerWriting, key: bytes, completion: Completion | None, *, rolls_fragments: bool
    ) -> EntryWriter:
        writer = EntryWriter(machine, key, self.context, self.options, self.observe, self._ticker, completion)
        # The writer of an earlier term may be here, too, deposed. What it knows is of less use than what this one will.
        self._writers[writer.ledger_id] = writer
        self.nursery.start_soon(self._run_writer, writer, rolls_fragments)
        return writer

    def _leave_bookies(self, draining: Collection[str]) -> None:
        for writer in list(self._writers.values()):
            writer.leave_bookies(draining)

    async def _run_writer(self, writer: EntryWriter, rolls_fragments: bool) -> None:
        try:
            async with open_service_nursery() as nursery:
                if rolls_fragments:
                    nursery.start_soon(FragmentRoller(writer, self.options).run)
                await writer.run()
                nursery.cancel_scope.cancel()
        finally:
            if self._writers.get(writer.ledger_id) is writer:
                del self._writers[writer.ledger_id]

    def _reader_waits(self, ledger_id: int) -> None:
        writer = self._writers.get(ledger_id)
        if writer is not None:
            writer.reader_waits()

    # -- reading ----------------------------------------------------------------------------------------------------

    async def open(
        self, ledger_id: int, password: bytes = b"", first_entry_id: int | None = None, *, follow: bool = False
    ) -> LedgerReader:
        """Opens a ledger for reading from this entry on, or from the first one that was not trimmed; fences nothing. With
        `follow` its reader waits for more until the ledger is closed.

        Raises `LedgerNotFoundError`, `UnauthorizedError`, `LedgerTrimmedError`, `ConfigError` for an invalid entry id."""
        if first_entry_id is not None and (type(first_entry_id) is not int or not 0 <= first_entry_id <= ENTRY_ID_MAX):
            raise ConfigError(
                f"{first_entry_id!r} is not an entry id: expected a whole number from 0 to {ENTRY_ID_MAX}"
            )
        metadata, _ = await self.records.get_head(ledger_id)
        key = self.authorize(metadata, password)
        first = metadata.trim_to if first_entry_id is None else first_entry_id
        if first < metadata.trim_to:
            raise LedgerTrimmedError(ledger_id, first, metadata.trim_to)
        await self.context.placing.know_zones()
        following = Following(self.records, self.options.follow_wait_s) if follow else None
        reader = LedgerReader(
            lambda known, at: self._scan(known, at, password, key), metadata, first, self.nursery, following
        )
        await reader.refresh()
        return reader

    def scan(self, metadata: LedgerMetadata, first_entry_id: int, password: bytes = b"") -> LedgerScan:
        """A scan from this entry on, of a ledger whose record the caller has read. Raises `UnauthorizedError`."""
        return self._scan(metadata, first_entry_id, password, self.authorize(metadata, password))

    def _scan(self, metadata: LedgerMetadata, first_entry_id: int, password: bytes, key: bytes) -> LedgerScan:
        confirmed_here = self._confirmed_by_own_writer
        digest = metadata.digest(password)
        return LedgerScan(metadata, digest, key, first_entry_id, self.context, self.options, confirmed_here)

    def is_written_here(self, ledger_id: int) -> bool:
        """True if this client has the ledger's writer, which will close the ledger."""
        return ledger_id in self._writers

    def _confirmed_by_own_writer(self, ledger_id: int) -> tuple[int, int]:
        """The term and the last add confirmed of this client's writer of a ledger; (0, -1) if there is none."""
        writer = self._writers.get(ledger_id)
        return (0, -1) if writer is None else (writer.metadata.term, writer.last_add_confirmed)

    # -- recovering, deleting, listing ------------------------------------------------------------------------------

    async def recover(
        self, ledger_id: int, password: bytes = b"", *, accept_loss: bool = False, fills: bool = True
    ) -> LedgerMetadata:
        """Fences a ledger, finds its last entry and closes it (R2-R12); returns its record. A closed one is left as it
        is. If the write quorum is guaranteed, all copies are there then (W8); without `fills` they are not awaited.

        Raises `RecoveryUndecidedError` (retry: yes), `NotEnoughBookiesError`, `LedgerNotFoundError`, `MetastoreError`. If
        it raises or is cancelled, the ledger stays in recovery and its writer fenced; nothing is cut. After `WriteQuorumError`
        (retry: yes) it is closed."""
        started = trio.current_time()
        metadata, version = await self.records.get_head(ledger_id)
        self.authorize(metadata, password)
        if metadata.state is not LedgerState.CLOSED:
            digest = metadata.digest(password)
            machine = LedgerRecovery(metadata, version, digest, self.entropy.token(), is_loss_accepted=accept_loss)
            shell = RecoveringShell(machine, metadata.key(password), self.context, self.options)
            try:
                metadata, version = await shell.run(), machine.version
            except RecordOutdatedError:
                if not await self._is_newer_than(metadata):
                    raise
                return await self.recover(ledger_id, password, accept_loss=accept_loss, fills=fills)
            assert metadata.last_entry_id is not None
            self.observe(LedgerRecovered(ledger_id, metadata.last_entry_id, trio.current_time() - started))
        completion = self._completion(metadata, password) if fills else None
        metadata = metadata if completion is None else await completion.complete(metadata, version)
        # The recovery has read only the head of the record: callers get all fragments.
        return (await self.records.get(ledger_id))[0] if metadata.chunks else metadata

    async def _is_newer_than(self, known: LedgerMetadata) -> bool:
        """True if another client has changed the record since: then a recovery by that client may succeed."""
        found, _ = await self.records.get_head(known.ledger_id)
        return found.revision > known.revision

    async def read_and_delete(self, ledger_id: int) -> None:
        """Deletes a ledger for a caller that has not read its record, which names its bookies (see `delete`)."""
        known = None
        # A record that can't be read can still be deleted. The bookies find out by themselves.
        with suppress(LedgerNotFoundError, MetastoreError):
            known, _ = await self.records.get(ledger_id)
        await self.delete(ledger_id, known)

    async def delete(self, ledger_id: int, known: LedgerMetadata | None = None) -> None:
        """Deletes a ledger's record; bookies drop its entries later (B6). It is not an error if it does not exist. With `known`,
        the record as it was read, its bookies are told, and drop the entries within seconds."""
        await self.records.delete(ledger_id, known)
        self.deleted()
        if known is not None:
            await tell_deleted(known, self.context.connections, self.options)
            await self.context.delete_archived(known)

    async def list(self) -> list[int]:
        """The ids of all ledgers, ascending. Raises `MetastoreError`."""
        return await list_ledger_ids(self.records.metastore)

    def authorize(self, metadata: LedgerMetadata, password: bytes) -> bytes:
        """The key of the ledger with this record. Raises `UnauthorizedError` if the password is not the ledger's."""
        check_password(password)
        key = metadata.key(password)
        if ledger_key_check(key) != metadata.key_check:
            raise UnauthorizedError(metadata.ledger_id, "the password is not this ledger's; no bookie was asked (B7)")
        return key


def check_creation(
    quorum: object,
    password: object,
    digest_type: object,
    custom: Mapping[str, str] | None,
    durability: object = None,
) -> None:
    """Raises `ConfigError` for arguments that no ledger can be created with, before anything is requested or written."""
    if not isinstance(quorum, Quorum):
        raise ConfigError(f"{quorum!r} is not a quorum: make one by Quorum(ensemble=3, write=3, ack=2)")
    if not isinstance(digest_type, DigestType):
        raise ConfigError(f"{digest_type!r} is not a digest type: there are {', '.join(map(str, DigestType))}")
    check_password(password)
    check_custom(custom)
    names = [each.value for each in Durability]
    if durability is not None and durability not in names:
        raise ConfigError(f"durability={durability!r}: there are {', '.join(map(repr, names))}")


def check_compression(compression: object) -> None:
    """Raises `ConfigError` if this is not a compression; None is that of the client's options."""
    if compression is not None and compression not in COMPRESSIONS:
        raise ConfigError(f"compression={compression!r}: there are {', '.join(map(repr, COMPRESSIONS))}")


def check_custom(custom: object) -> None:
    """Raises `ConfigError` for invalid custom metadata."""
    pairs = custom.items() if isinstance(custom, Mapping) else () if custom is None else ((custom, None),)
    if not all(isinstance(name, str) and isinstance(value, str) for name, value in pairs):
        raise ConfigError(f"custom={custom!r} must be a mapping of texts to texts: it stands in a record")


def check_password(password: object) -> None:
    """Raises `ConfigError` for an invalid password."""
    if not isinstance(password, bytes):
        raise ConfigError(f"a password is bytes, not {type(password).__name__}")


async def tell_deleted(metadata: LedgerMetadata, connections: Connections, options: ClientTuning) -> None:
    """Tell all bookies of this deleted or archived ledger, so that they look soon what of it is still theirs (B6).

    Returns when the hint was sent to those that can be connected to without much waiting. If cancelled, some do not get it."""
    bookie_ids = dict.fromkeys(each for fragment in metadata.fragments for each in fragment.ensemble)
    await connections.connect_most(bookie_ids, connections.patience_s)
    for bookie_id in bookie_ids:
        channel = connections.channel(bookie_id)
        if channel is not None:
            request = AdminRequest(next(channel.request_ids), AdminCommand.LEDGER_DELETED, metadata.ledger_id)
            channel.ask(request, _ignore_answer, None, options.read_timeout_s)


def _ignore_answer(_answer: Answer, _context: object) -> None:
    """A bookie that did not get the hint finds out at its next garbage collection: no caller waits for an answer."""
