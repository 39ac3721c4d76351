"""The verbs of a client that write and read single ledgers, bounded and unbounded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from replog.client import terms
from replog.client.ledger_reader import LedgerReader
from replog.client.ledger_writer import LedgerWriter
from replog.client.ledgers import Ledgers
from replog.protocol.digest import DigestType
from replog.protocol.quorum import Quorum
from replog.records.ids import raise_next_ledger_id
from replog.records.ledgers import list_ledger_ids


class LedgerVerbs(ABC):
    """What a `Client` does with single ledgers."""

    default_quorum: Quorum

    @property
    @abstractmethod
    def _ledgers(self) -> Ledgers:
        """The client's ledgers. Raises `trio.ClosedResourceError` once it was left."""

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
        """A new ledger and its writer, as a context manager. `custom` becomes part of its metadata. Leaving it closes the
        ledger; an `unbounded` one stays open, so that `take_over_ledger` goes on with it, until `finish` closes it. With
        `durability="write-quorum"` closes, rolls and takeovers of it end only when bookies have all copies of what is before
        them, or raise `WriteQuorumError` (W8). `compression="zstd"` stores batches compressed where that saves an eighth: readers
        need `replog[zstd]`, too. None takes what the client's options say.

        Raises `NotEnoughBookiesError` (retry: when there are more), `MetastoreError`: then no ledger was created, or one
        that no client knows."""
        wanted = self.default_quorum if quorum is None else quorum
        async with await self._ledgers.create(
            wanted,
            password,
            digest_type,
            custom,
            unbounded=unbounded,
            durability=durability,
            compression=compression,
        ) as writer:
            yield writer

    @asynccontextmanager
    async def take_over_ledger(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        accept_loss: bool = False,
        compression: str | None = None,
    ) -> AsyncIterator[LedgerWriter]:
        """Fences whoever writes an unbounded ledger, recovers what that has left, and goes on in the same ledger: a writer of the
        next term, as a context manager. Entry ids continue.

        Of entries whose outcome was unknown, the takeover decides: each is kept or gone, for everybody. `accept_loss` as for
        `recover_ledger`, `compression` as for `create_ledger`. Raises `LedgerFinishedError`; `FencedError` if another client
        takes it over meanwhile; `RecoveryUndecidedError`, `NotEnoughBookiesError` or `WriteQuorumError` (retry: when bookies are
        back), `LedgerRolledBackError`, `LedgerNotFoundError`, `ConfigError` for a bounded ledger or a log's, `MetastoreError`.
        If it raises or is cancelled, the ledger's writer may be fenced, and nothing was cut: another takeover goes on from
        there."""
        metadata, _ = await self._ledgers.records.get_head(ledger_id)
        terms.check_alone(metadata, "taken over")
        async with await self._ledgers.take_over(
            ledger_id, password, accept_loss=accept_loss, compression=compression
        ) as writer:
            yield writer

    @asynccontextmanager
    async def open_ledger(
        self, ledger_id: int, *, first: int | None = None, follow: bool = False, password: bytes = b""
    ) -> AsyncIterator[LedgerReader]:
        """A reader of a ledger, as a context manager; iterating begins at the entry `first`, or where the ledger begins. Never
        fences (D1). With `follow` it waits for more, across terms and fragments, until the ledger is closed.

        Raises `LedgerNotFoundError`, `UnauthorizedError`, `LedgerTrimmedError`, `ConfigError` if `first` is not an entry id."""
        async with await self._ledgers.open(ledger_id, password, first, follow=follow) as reader:
            yield reader

    async def trim_ledger(self, ledger_id: int, *, before: int) -> int:
        """Drops the fragments of an unbounded ledger that lie wholly before this entry; returns the first entry that is left.
        The last fragment always stays: `roll` first, to be able to drop it. Readers below get `LedgerTrimmedError`.

        Raises `LedgerNotFoundError`, `ConfigError` for a bounded ledger, a log's, or a number below 0, `MetastoreError`. If it
        raises or is cancelled, trimming again is harmless."""
        return await terms.trim(ledger_id, before, self._ledgers.context)

    async def raise_ledger_ids(self) -> int:
        """Raises the next ledger id in the metastore above every id that an announced bookie has ever seen, and above that of
        every existing ledger; returns it. For metadata that was restored from an old back-up: its next ids were given out before,
        to ledgers of which bookies have entries (M5). A client does the same before it creates a ledger.

        Raises `MetastoreError`: then it may be raised; raising it again is harmless."""
        ledgers = self._ledgers
        existing = await list_ledger_ids(ledgers.records.metastore)
        await ledgers.context.membership.announced()
        above = max(ledgers.context.membership.ledgers_below, *(each + 1 for each in existing[-1:]), 0)
        return await raise_next_ledger_id(ledgers.records.metastore, above)

    async def raise_ledger_term(self, ledger_id: int, *, password: bytes = b"") -> int:
        """Raises the term in the metadata of an unbounded ledger to the highest that an announced bookie knows; returns it.
        Only for metadata that was restored from an old back-up, once nothing newer is left: what only the lost metadata named
        is gone. The ledger can be taken over after that. Whoever still writes it is deposed by that takeover.

        Raises `RecoveryUndecidedError` if a bookie doesn't answer (retry: yes), `LedgerNotFoundError`, `UnauthorizedError`,
        `ConfigError` for a bounded ledger, `MetastoreError`."""
        ledgers = self._ledgers
        metadata, _ = await ledgers.records.get_head(ledger_id)
        ledgers.authorize(metadata, password)
        return await terms.raise_term(
            ledger_id, metadata.key(password), ledgers.context, ledgers.options.read_timeout_s
        )
