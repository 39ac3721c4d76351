"""A client for every thread, and the ways to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager

from replog import api
from replog.blocking.bookies import RemoteBookie
from replog.blocking.portal import Portal
from replog.blocking.readers import LedgerReader, LogReader
from replog.blocking.writers import LedgerWriter, LogWriter
from replog.client.losses import EntriesAtRisk
from replog.config import BookieOptions, ClientOptions
from replog.log.appending import AppendedLedgers
from replog.protocol.digest import DigestType
from replog.protocol.model import LedgerMetadata, LogMetadata, Position, Segment
from replog.protocol.quorum import Quorum
from replog.registry import Registry


class Client:
    """A way to ledgers and logs, for any number of threads. Made by `connect` and `embed`.

    Every method is that of `replog.Client`, with the same arguments, results and errors. Outside of the block that made
    it, it raises `trio.ClosedResourceError`; in a fork of its process, `ForkedError`.
    """

    def __init__(self, portal: Portal, client: api.Client) -> None:
        self.default_quorum = client.default_quorum
        self._portal = portal
        self._client = client

    # -- ledgers ----------------------------------------------------------------------------------------------------

    @contextmanager
    def create_ledger(
        self,
        *,
        quorum: Quorum | None = None,
        password: bytes = b"",
        digest_type: DigestType = DigestType.CRC32C,
        custom: Mapping[str, str] | None = None,
    ) -> Iterator[LedgerWriter]:
        """A new ledger and its writer, as a context: left without an error it confirms everything and closes the ledger, else
        it closes it at the last confirmed entry. Raises `NotEnoughBookiesError`, `MetastoreError`."""
        context = self._client.create_ledger
        with self._portal.opened(
            lambda: context(quorum=quorum, password=password, digest_type=digest_type, custom=custom)
        ) as writer:
            yield LedgerWriter(self._portal, writer)

    @contextmanager
    def open_ledger(self, ledger_id: int, *, first: int = 0, password: bytes = b"") -> Iterator[LedgerReader]:
        """A reader of a ledger, as a context; iterating begins at the entry `first`. Never fences (D1).

        Raises `LedgerNotFoundError`, `UnauthorizedError`, `ConfigError` for what is no entry id."""
        context = self._client.open_ledger
        with self._portal.opened(lambda: context(ledger_id, first=first, password=password)) as reader:
            yield LedgerReader(self._portal, reader)

    def recover_ledger(
        self, ledger_id: int, *, password: bytes = b"", lost: Sequence[str] = (), accept_loss: bool = False
    ) -> LedgerMetadata:
        """Fences a ledger and closes it at its last entry (R2-R12); returns its metadata. One that is closed stays as it is.
        `lost` names bookies to be declared lost first, `accept_loss` accepts that confirmed entries may be gone. Raises
        `RecoveryUndecidedError` or `NotEnoughBookiesError` (retry: when bookies are back), `LedgerNotFoundError`."""
        recover = self._client.recover_ledger
        return self._portal.call(recover, ledger_id, password=password, lost=lost, accept_loss=accept_loss)

    def declare_bookies_lost(self, bookie_ids: Sequence[str], *, accept_loss: bool = False) -> Sequence[EntriesAtRisk]:
        """Declares bookies lost for good, for everybody (B8a); returns the entries that may be gone with them. Raises
        `LossNotAcceptedError`, `AdministrationError`: then nothing was declared; `MetastoreError`: try again."""
        return self._portal.call(self._client.declare_bookies_lost, bookie_ids, accept_loss=accept_loss)

    def delete_ledger(self, ledger_id: int) -> None:
        """Deletes a ledger; bookies drop its entries later (B6). One that does not exist is no error."""
        self._portal.call(self._client.delete_ledger, ledger_id)

    def ledgers(self) -> list[int]:
        """The ids of all ledgers, ascending."""
        return self._portal.call(self._client.ledgers)

    def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """A ledger's record as it is now; no bookie is asked, and no password needed. Raises `LedgerNotFoundError`."""
        return self._portal.call(self._client.ledger_metadata, ledger_id)

    # -- logs -------------------------------------------------------------------------------------------------------

    @contextmanager
    def write_log(
        self,
        name: str,
        *,
        quorum: Quorum | None = None,
        password: bytes = b"",
        digest_type: DigestType = DigestType.CRC32C,
        custom: Mapping[str, str] | None = None,
    ) -> Iterator[LogWriter]:
        """Takes a log over *now*, and creates it if need be: recovers what the last writer left, and fences it.

        A context with the log's writer. Raises `RecoveryUndecidedError` or `NotEnoughBookiesError` (retry: when bookies
        are back), `TakeoverFailedError` (others keep taking over), `MetastoreError`."""
        context = self._client.write_log
        with self._portal.opened(
            lambda: context(name, quorum=quorum, password=password, digest_type=digest_type, custom=custom)
        ) as writer:
            yield LogWriter(self._portal, writer)

    @contextmanager
    def lead_log(
        self,
        name: str,
        *,
        quorum: Quorum | None = None,
        password: bytes = b"",
        digest_type: DigestType = DigestType.CRC32C,
        custom: Mapping[str, str] | None = None,
    ) -> Iterator[LogWriter]:
        """Waits until nobody else leads the log, then takes it over as `write_log` does. Leading is advice (M3)."""
        context = self._client.lead_log
        with self._portal.opened(
            lambda: context(name, quorum=quorum, password=password, digest_type=digest_type, custom=custom)
        ) as writer:
            yield LogWriter(self._portal, writer)

    @contextmanager
    def read_log(
        self,
        name: str,
        *,
        after: Position | str | None = None,
        follow: bool = False,
        password: bytes = b"",
        timeout_s: float | None = None,
    ) -> Iterator[LogReader]:
        """A reader of a log, as a context: from the beginning or `after` a position; with `follow` it waits for more, for
        `timeout_s` at a time. Raises `LogNotFoundError` (with `follow` it waits for the log instead), `TrimmedError`,
        `PositionError`."""
        context = self._client.read_log
        with self._portal.opened(lambda: context(name, after=after, follow=follow, password=password)) as reader:
            yield LogReader(self._portal, reader, timeout_s)

    def append_ledgers(
        self,
        name: str,
        ledger_ids: Sequence[int],
        *,
        transaction: tuple[str, int] | None = None,
        job: str = "",
        custom: Mapping[str, str] | None = None,
        password: bytes = b"",
    ) -> AppendedLedgers:
        """Adds closed ledgers to the end of a log, in this order, all at once or none; creates the log if need be. Who writes to
        it is fenced before. A `transaction` that was committed before changes nothing. Raises `LedgerNotFoundError`,
        `LedgerRefusedError`, `JobAbandonedError`, `UnauthorizedError`, `CustomMismatchError`, `TooManyLedgersError`."""
        add = self._client.append_ledgers
        return self._portal.call(
            add, name, ledger_ids, transaction=transaction, job=job, custom=custom, password=password
        )

    def sweep_log(self, name: str, *, grace_s: float = 86400.0, job: str | None = None) -> list[int]:
        """Deletes the ledgers that jobs wrote for a log and that it does not name; returns their ids. With `job`, only what is
        left of that job, which is given up now. Raises `MetastoreError`. Sweeping again is harmless."""
        return self._portal.call(self._client.sweep_log, name, grace_s=grace_s, job=job)

    def trim_log(self, name: str, *, before: Position | str) -> Position:
        """Drops the ledgers of a log that lie wholly before the position (L3); returns where the log begins now. The last
        ledger always stays: `roll` first, to be able to drop it. Raises `LogNotFoundError`, `PositionError`."""
        return self._portal.call(self._client.trim_log, name, before=before)

    def delete_log(self, name: str, *, password: bytes = b"") -> None:
        """Fences a log's writer, and deletes the log and its ledgers. Raises `LogNotFoundError`. Deleting again is harmless."""
        self._portal.call(self._client.delete_log, name, password=password)

    def logs(self) -> list[str]:
        """The names of all logs, sorted."""
        return self._portal.call(self._client.logs)

    def log_metadata(self, name: str) -> LogMetadata:
        """A log's record as it is now: its numbers, and its last segments, at least the last two. Raises
        `LogNotFoundError`."""
        return self._portal.call(self._client.log_metadata, name)

    def log_segments(self, name: str, *, first: int = 1, end: int | None = None) -> list[Segment]:
        """The segments of a log, in order: which ledgers it is made of; those numbered from `first` to before `end`, if given.
        Numbers that were trimmed away, or are not there yet, are left out. Raises `LogNotFoundError`, `MetastoreError`."""
        return self._portal.call(self._client.log_segments, name, first=first, end=end)

    # -- looking ----------------------------------------------------------------------------------------------------

    def remote_bookies(self) -> list[RemoteBookie]:
        """All bookies that are announced, wherever they run, to be looked at and looked after; by their ids. Raises
        `MetastoreError`."""
        return [RemoteBookie(self._portal, each) for each in self._portal.call(self._client.remote_bookies)]

    def statistics(self) -> dict[str, dict[str, float]]:
        """Counters and gauges: of the client, and of each bookie that it embeds, by its id."""
        return self._portal.call_sync(self._client.statistics)


# -- ways to a client -----------------------------------------------------------------------------------------------


@contextmanager
def connect(
    metastore: str,
    *,
    options: ClientOptions | None = None,
    quorum: Quorum | None = None,
    placement: str = "random",
    registry: Registry | None = None,
) -> Iterator[Client]:
    """`replog.connect` for programs without trio: a client of the bookies that announce themselves in a metastore."""
    with _client(
        lambda: api.connect(metastore, options=options, quorum=quorum, placement=placement, registry=registry)
    ) as client:
        yield client


@contextmanager
def embed(
    directory: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    bookies: int | None = None,
    storage: str | None = None,
    metastore: str | None = None,
    options: ClientOptions | None = None,
    bookie_options: BookieOptions | None = None,
    quorum: Quorum | None = None,
    placement: str = "random",
    registry: Registry | None = None,
) -> Iterator[Client]:
    """`replog.embed` for programs without trio: a client with bookies of its own in this process, served by one thread.

    Leaving the block joins that thread. A forked child can't use the client (`ForkedError`), but may leave the block, and
    open another directory."""
    with _client(
        lambda: api.embed(
            directory,
            bookies=bookies,
            storage=storage,
            metastore=metastore,
            options=options,
            bookie_options=bookie_options,
            quorum=quorum,
            placement=placement,
            registry=registry,
        )
    ) as client:
        yield client


@contextmanager
def _client(make: Callable[[], AbstractAsyncContextManager[api.Client]]) -> Iterator[Client]:
    portal = Portal()
    with portal.running(make) as client:
        yield Client(portal, client)
