"""`connect`: a client of a BookKeeper cluster, with the nouns and verbs of `replog.connect`.

It drives replog's own machines and keeps replog's rules, which are stricter than those of Java's client in places: absence is
decided after all bookies that can be reached were heard (R10), a recovery waits for those that cannot (R12), the last add
confirmed that it writes back never advances (R5), and one buffer goes to all bookies of an entry (W3). It is safe beside
Java's clients: whatever the record says after a lost compare-and-set is true, also if a Java writer closed the ledger that
was being recovered.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import attrs
import trio

from replog.client.channel import Answer
from replog.client.connections import Connections
from replog.client.entry_writer import EntryWriter
from replog.client.following import Following
from replog.client.ledger_effects import ClientContext
from replog.client.ledger_reader import LedgerReader
from replog.client.ledger_writer import LedgerWriter
from replog.client.ledgers import check_password
from replog.client.new_ensembles import EnsembleChooser
from replog.client.placing import Placing
from replog.client.recovering import RecoveringShell
from replog.client.scan import LedgerScan, find_end
from replog.client.writer_background import kept_bytes_max
from replog.config import ClientOptions, check_number, check_types
from replog.config.client import ClientTuning, tuned
from replog.errors import ConfigError, KeyExistsError, MetastoreUnavailableError
from replog.hookspecs import LedgerRecovered
from replog.metastores.zookeeper.options import ZooKeeperOptions
from replog.protocol.digest import DigestType
from replog.protocol.messages import ReadRequest, Response, Status
from replog.protocol.model import Fragment, LedgerMetadata, LedgerState
from replog.protocol.quorum import Quorum
from replog.protocol.recovery import LedgerRecovery
from replog.registry import Registry
from replog.runtime.entropy import current_entropy
from replog.runtime.event_loop import check_event_loop
from replog.runtime.nursery import open_service_nursery
from replog.runtime.ticker import Ticker
from replog_bookkeeper import frames, frames_v2
from replog_bookkeeper.bookies import Bookie, BookKeeperMembership
from replog_bookkeeper.digests import LedgerDigest, LedgerKey, process_digest
from replog_bookkeeper.errors import lacks
from replog_bookkeeper.layouts import LEDGER_ID_MAX, Layout, Target
from replog_bookkeeper.metadata import TOKEN, LedgerRecord
from replog_bookkeeper.nodes import LedgersRoot
from replog_bookkeeper.records import BookKeeperRecords
from replog_bookkeeper.transport import BookKeeperTransport
from replog_bookkeeper.writing import SingleEntryWriter, SingleEntryWriting

_CREATOR_BITS = 62
_CLOSING_S = 10.0


class Client:
    """A way to the ledgers of a BookKeeper cluster. Made by `connect`; belongs to the trio run that made it."""

    def __init__(
        self,
        context: ClientContext,
        records: BookKeeperRecords,
        membership: BookKeeperMembership,
        options: ClientTuning,
        quorum: Quorum,
        registry: Registry,
        nursery: trio.Nursery,
    ) -> None:
        #: The quorum of ledgers that are created without one.
        self.default_quorum = quorum
        self._context = context
        self._records = records
        self._membership = membership
        self._options = options
        self._registry = registry
        self._nursery = nursery
        self._ensembles = EnsembleChooser(membership, context.connections, context.placing, context.entropy.random)
        self._ticker = Ticker(options.explicit_last_add_confirmed_after_s)
        self._writers: dict[int, EntryWriter] = {}
        self._recovering: dict[int, list[LedgerKey]] = {}  # by ledger that is being recovered, once for each attempt
        records.length_of = self._length_of
        nursery.start_soon(self._ticker.run)
        nursery.start_soon(context.call_soon.run)

    # -- writing ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def create_ledger(
        self,
        *,
        quorum: Quorum | None = None,
        password: bytes = b"",
        digest: LedgerDigest = LedgerDigest.CRC32C,
        custom: Mapping[str, str | bytes] | None = None,
        ledger_id: int | None = None,
        unbounded: bool = False,
        durability: str | None = None,
        compression: str | None = None,
    ) -> AsyncIterator[LedgerWriter]:
        """A new ledger and its writer, as a context manager; leaving it closes the ledger. Java's programs read it with the
        same password and digest. `custom` becomes part of its record; `ledger_id` is its id, if the caller wants a certain one.

        Raises `NotEnoughBookiesError` (retry: when there are more), `MetastoreError`: then no ledger was created, or one that
        no client knows; `KeyExistsError` if `ledger_id` is taken; `NotInBookKeeperError` for what only replog's bookies have."""
        writer = await self._create(quorum, password, digest, custom, ledger_id, unbounded, durability, compression)
        async with writer:
            yield LedgerWriter(writer)

    async def _create(
        self,
        quorum: Quorum | None,
        password: bytes,
        digest: LedgerDigest,
        custom: Mapping[str, str | bytes] | None,
        ledger_id: int | None,
        unbounded: bool,
        durability: str | None,
        compression: str | None,
    ) -> EntryWriter:
        if unbounded:
            raise lacks("unbounded ledgers", "its fences have no terms; write a chain of ledgers")
        if compression not in (None, "none"):
            raise lacks("compressed batches", "compress entries before they are appended")
        if durability not in (None, "ack-quorum"):
            raise lacks("guaranteed write quorum", "its auditor copies what is missing")
        check_types("create_ledger", quorum=(quorum, Quorum), digest=(digest, LedgerDigest))
        check_password(password)
        values = _custom(custom)
        if ledger_id is not None and not (type(ledger_id) is int and 0 <= ledger_id <= LEDGER_ID_MAX):
            raise ConfigError(f"{ledger_id!r} is not the id of a ledger")
        wanted = self.default_quorum if quorum is None else quorum
        ensemble, missing, shortfall = await self._ensembles.choose(wanted)
        entropy = self._context.entropy
        metadata = LedgerMetadata(
            0 if ledger_id is None else ledger_id,
            wanted,
            DigestType.CRC32C,
            "",
            (Fragment(0, ensemble),),
            token=entropy.token(),
            created_at_ms=entropy.time_ms(),
        )
        metadata, version, is_only_request = await self._record(
            metadata, digest, password, values, is_id_chosen=ledger_id is not None
        )
        chosen_id = metadata.ledger_id
        self._context.placing.unmet(chosen_id, shortfall)
        machine = SingleEntryWriting(
            metadata,
            version,
            process_digest(chosen_id),
            entropy.token(),
            missing=missing,
            kept_bytes_max=kept_bytes_max(self._options),
        )
        key = LedgerKey(password, digest, wanted)
        observe = self._registry.observe
        writer = SingleEntryWriter(machine, key, self._context, self._options, observe, self._ticker)
        writer.is_created_for_certain = is_only_request
        self._writers[chosen_id] = writer
        self._nursery.start_soon(self._run_writer, writer)
        return writer

    async def _record(
        self,
        metadata: LedgerMetadata,
        digest: LedgerDigest,
        password: bytes,
        custom: Mapping[str, bytes],
        *,
        is_id_chosen: bool,
    ) -> tuple[LedgerMetadata, int, bool]:
        """Writes the record of a new ledger, under its id or a new one; returns it, its version, and whether no other request to
        create it can still arrive."""
        creator = self._context.entropy.random.getrandbits(_CREATOR_BITS)
        while True:
            if not is_id_chosen:
                metadata = attrs.evolve(metadata, ledger_id=await self._records.new_id())
            try:
                created = await self._records.create_ledger(metadata, digest, password, custom, creator)
            except KeyExistsError:
                # Somebody chose an id by hand that the counter had not come to: Java's client, too, goes on to the next one.
                if is_id_chosen:
                    raise
            else:
                return metadata, *created

    async def _run_writer(self, writer: EntryWriter) -> None:
        try:
            await writer.run()
        finally:
            if self._writers.get(writer.ledger_id) is writer:
                del self._writers[writer.ledger_id]

    # -- reading ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def open_ledger(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        digest: LedgerDigest = LedgerDigest.CRC32,
        first: int = 0,
        follow: bool = False,
    ) -> AsyncIterator[LedgerReader]:
        """A reader of a ledger, as a context manager; iterating begins at the entry `first`. Never fences (D1). With `follow` it
        waits for more until the ledger is closed. `digest` is for a record of format 1, which does not name its own.

        Raises `LedgerNotFoundError`, `UnauthorizedError`, `ConfigError` if `first` is not an entry id, `MetastoreError`;
        `EntryUnreadableError` (retry: yes) if the ledger is open and no bookie says how far, unless it follows."""
        check_password(password)
        check_number("first", first)
        record, _ = await self._records.record(ledger_id)
        key = record.key(password, digest)
        following = Following(self._records, self._options.follow_wait_s) if follow else None
        scan = self._scan(record.metadata, first, key)
        # Asked by a scan of its own: nothing must look like an empty ledger.
        await (scan.refresh() if follow else find_end(scan))

        def scan_of(known: LedgerMetadata, at: int) -> LedgerScan:
            made = self._scan(known, at, key)
            made.adopt(scan.last_readable)
            return made

        async with LedgerReader(scan_of, scan.metadata, first, self._nursery, following) as reader:
            yield reader

    def _scan(self, metadata: LedgerMetadata, first_entry_id: int, key: LedgerKey) -> LedgerScan:
        digest = process_digest(metadata.ledger_id)
        return LedgerScan(metadata, digest, key, first_entry_id, self._context, self._options, self._confirmed_here)

    def _confirmed_here(self, ledger_id: int) -> tuple[int, int]:
        """The term and the last add confirmed of this client's writer of a ledger; (0, -1) if there is none."""
        writer = self._writers.get(ledger_id)
        return (0, -1) if writer is None else (writer.metadata.term, writer.last_add_confirmed)

    # -- recovering, deleting, looking ------------------------------------------------------------------------------

    async def recover_ledger(
        self, ledger_id: int, *, password: bytes = b"", digest: LedgerDigest = LedgerDigest.CRC32
    ) -> LedgerMetadata:
        """Fences a ledger, a live Java writer of it included, and closes it at its last entry (R2-R12); returns its metadata. A
        closed ledger stays as it is.

        Raises `RecoveryUndecidedError` or `NotEnoughBookiesError` (retry: when bookies are back), `LedgerNotFoundError`,
        `UnauthorizedError`, `MetastoreError`. If it raises or is cancelled, the ledger's writer may be fenced, and nothing was
        cut: Java's clients, too, go on from there."""
        check_password(password)
        started_s = trio.current_time()
        record, version = await self._records.record(ledger_id)
        key = record.key(password, digest)
        if record.metadata.state is LedgerState.CLOSED:
            return record.metadata
        machine = LedgerRecovery(record.metadata, version, process_digest(ledger_id), self._context.entropy.token())
        keys = self._recovering.setdefault(ledger_id, [])
        keys.append(key)
        try:
            shell = RecoveringShell(machine, key, self._context, self._options, is_extended=True)
            metadata = await shell.run()
        finally:
            keys.remove(key)
            if not keys:
                del self._recovering[ledger_id]
        assert metadata.last_entry_id is not None, "a recovered ledger is closed"
        duration_s = trio.current_time() - started_s
        self._registry.observe(LedgerRecovered(ledger_id, metadata.last_entry_id, duration_s))
        return (await self._records.get(ledger_id))[0] if metadata.chunks else metadata

    async def _length_of(self, metadata: LedgerMetadata, entry_id: int) -> int:
        """How long the payloads are up to this entry, by a copy of it. Raises `MetastoreUnavailableError` if none can be read."""
        key, stamp = self._recovering[metadata.ledger_id][-1], metadata.fragments[0].term
        ensemble, connections = metadata.fragment_of(entry_id).ensemble, self._context.connections
        members = [ensemble[index] for index in metadata.quorum.write_set(entry_id)]
        await connections.connect_most(members, connections.patience_s)
        problems = []
        for bookie_id in members:
            channel = connections.channel(bookie_id)
            if channel is None:
                problems.append(f"bookie {bookie_id}: not connected")
                continue
            request = ReadRequest(next(channel.request_ids), metadata.ledger_id, key, entry_id, stamp, 0)
            answered, answers = trio.Event(), list[Answer]()

            def note(answer: Answer, answered: trio.Event, answers: list[Answer] = answers) -> None:
                answers.append(answer)
                answered.set()

            channel.ask(request, note, answered, self._options.read_timeout_s)
            await answered.wait()
            (answer,) = answers
            if isinstance(answer, Response) and answer.status is Status.OK:
                return answer.batches[0].cumulative_length
            problems.append(answer.detail if isinstance(answer, Response) else str(answer))
        words = "; ".join(problems)
        problem = f"ledger {metadata.ledger_id}: its length is not known, since entry {entry_id} can't be read: {words}"
        raise MetastoreUnavailableError(f"{problem}. It stays in recovery: retry when a bookie that has it is back")

    async def delete_ledger(self, ledger_id: int) -> None:
        """Deletes a ledger; bookies drop its entries with their next collection. Deleting one that does not exist does nothing.

        Raises `MetastoreError`. If it raises or is cancelled, it may be deleted or not; deleting again is harmless."""
        await self._records.delete(ledger_id)

    async def ledgers(self) -> list[int]:
        """The ids of all ledgers, ascending. Raises `MetastoreError`."""
        return sorted([ledger_id async for ledger_id in self._records.ledger_ids()])

    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """A ledger's metadata as it is now; no bookie is asked, and no password needed. Raises `LedgerNotFoundError`."""
        return (await self._records.record(ledger_id))[0].metadata

    async def ledger_record(self, ledger_id: int) -> LedgerRecord:
        """The same with what only BookKeeper has: the format, the digest, the password. Raises `LedgerNotFoundError`."""
        return (await self._records.record(ledger_id))[0]

    async def node(self, path: str) -> bytes:
        """The data of a node beside the root of the ledgers, as "/managed-ledgers/...", where programs that use the cluster keep
        their metadata. Raises `KeyNotFoundError`, `MetastoreError`."""
        return await self._records.node(path)

    async def node_names(self, path: str) -> list[str]:
        """The names of the nodes right below such a node, sorted; none if it does not exist. Raises `MetastoreError`."""
        return await self._records.node_names(path)

    async def bookies(self) -> list[Bookie]:
        """All bookies: those that are registered, and those that only have a cookie, whose `address` is None. Raises
        `MetastoreError`."""
        found = {each.bookie_id: each for each in await self._membership.bookies()}
        away = {each: Bookie(each, None) for each in await self._membership.cookie_ids()}
        return [bookie for _, bookie in sorted((away | found).items())]

    async def layout(self) -> Layout:
        """How the cluster spreads ledgers over nodes, as it says itself. Raises `ConfigError`, `MetastoreError`."""
        return await self._records.layout()

    async def instance_id(self) -> str:
        """The name that the cluster was given when it was begun; "" if it has none. Raises `MetastoreError`."""
        return await self._records.instance_id()


def _custom(custom: Mapping[str, str | bytes] | None) -> dict[str, bytes]:
    pairs = (custom or {}).items()
    if not all(isinstance(name, str) and isinstance(value, str | bytes) for name, value in pairs):
        raise ConfigError(f"custom={custom!r} must be a mapping of texts to texts or bytes: it stands in a record")
    if TOKEN in (custom or {}):
        raise ConfigError(f"custom: {TOKEN!r} is what this client knows its own changes by: choose another name")
    return {name: value.encode() if isinstance(value, str) else value for name, value in pairs}


@asynccontextmanager
async def connect(
    uri: str,
    *,
    options: ClientOptions | None = None,
    quorum: Quorum | None = None,
    placement: str = "random",
    zookeeper: ZooKeeperOptions | None = None,
    tls: ssl.SSLContext | None = None,
    wire_version: int = frames.VERSION,
    registry: Registry | None = None,
) -> AsyncIterator[Client]:
    """A client of the BookKeeper cluster whose metadata is there: `connect("zk+hierarchical://zk1;zk2/ledgers")`.

    - `uri`: as Java's `metadataServiceUri`; with `zk://` the cluster says itself which layout it has.
    - `options`, `quorum`: of this client, and of ledgers that are created without one.
    - `placement`: the policy that chooses bookies, as for `replog.connect`.
    - `zookeeper`: security and deadlines of the metadata. `tls`: how to check and be checked by bookies, which then speak TLS.
    - `wire_version`: of the protocol, 3 or 2. In version 2 nobody hears of a writer's last entry before its ledger is closed, and
      readers that follow ask again and again.
    - `registry`: the plugins to use; without it, all installed ones.

    Raises `ConfigError` for invalid arguments, and if there is no cluster; `MetastoreError`. Leaving the context cancels writers
    and readers that are still open: leave writers first."""
    check_event_loop("connect")
    check_types("connect", options=(options, ClientOptions), quorum=(quorum, Quorum), registry=(registry, Registry))
    if wire_version not in (frames_v2.VERSION, frames.VERSION):
        raise ConfigError(f"connect: wire_version={wire_version!r}: {frames_v2.VERSION} or {frames.VERSION}")
    plugins, chosen, target = registry or Registry(), tuned(options or ClientOptions()), Target.parse(uri)
    root = LedgersRoot(target.place, zookeeper or ZooKeeperOptions())
    records = BookKeeperRecords(root, target, chosen.metastore_timeout_s)
    entropy = current_entropy()
    try:
        await records.layout()
        async with open_service_nursery() as nursery:
            membership = BookKeeperMembership(root, chosen)
            transport = BookKeeperTransport(tls, wire_version)
            connections = Connections(membership, lambda _scheme: transport, chosen, nursery)
            policy = plugins.open_placement(placement)
            placing = Placing(policy, membership, entropy.random, plugins.observe, chosen.zone)
            context = ClientContext(records, membership, connections, placing)
            context.observe_batches = plugins.batch_observer
            try:
                yield Client(context, records, membership, chosen, quorum or Quorum(), plugins, nursery)
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + chosen.connect_timeout_s):
                    await connections.aclose()
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSING_S):
            await root.aclose()
