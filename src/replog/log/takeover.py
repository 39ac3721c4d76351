"""Becoming the writer of a log (L1)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from replog.client.ledger_writer import LedgerWriter
from replog.client.ledgers import Ledgers, check_compression, check_creation
from replog.config.client import LEDGER_KINDS, UNBOUNDED
from replog.errors import ConfigError, NotEnoughBookiesError, TakeoverFailedError
from replog.hookspecs import LogTakenOver
from replog.log.catalog import elected
from replog.log.checking import check_leader_custom
from replog.log.log_driver import LogDriver
from replog.log.log_writer import LogWriter
from replog.protocol.chaining import LogTakeover
from replog.protocol.digest import DigestType
from replog.protocol.quorum import Quorum
from replog.records.paths import log_key_path

# For how long after its beginning a takeover waits for bookies that restart, even if there is nothing to recover (R12).
_RESTART_S = 5.0
_AGAIN_S = 0.1


@attrs.frozen
class NewLedgers:
    """The ledgers that a writer of a log creates. None: as the client's options say.

    `kind` is `ledgers` of `Client.write_log`."""

    quorum: Quorum
    password: bytes
    digest_type: DigestType
    custom: Mapping[str, str] | None
    durability: str | None
    kind: str | None
    compression: str | None

    def check(self) -> None:
        """Raises `ConfigError` for what no ledger of a log can be."""
        if self.kind not in (None, *LEDGER_KINDS):
            raise ConfigError(f"ledgers={self.kind!r}: the ledgers of a log are {' or '.join(map(repr, LEDGER_KINDS))}")
        check_creation(self.quorum, self.password, self.digest_type, self.custom, self.durability)
        check_compression(self.compression)
        check_leader_custom(self.custom)


class OvertakenError(TakeoverFailedError):
    """Another client took over during a takeover. The one that failed must be elected again before it retries."""


async def _when_bookies_are_back(create: Callable[[], Awaitable[LedgerWriter]], until_s: float) -> LedgerWriter:
    """A new ledger's writer. Tries again until `until_s` while too few bookies are present and known ones may restart. Raises as
    `create` does."""
    while True:
        try:
            return await create()
        except NotEnoughBookiesError as error:
            may_come_back = len(error.usable) + len(error.excluded) >= error.needed
            if not may_come_back or trio.current_time() >= until_s:
                raise
        await trio.sleep(_AGAIN_S)


def _machine(name: str, ledgers: Ledgers, driver: LogDriver, ledgers_kind: str | None, *, yields: bool) -> LogTakeover:
    machine = LogTakeover(
        name,
        ledgers.chance.token(),
        ledgers.chance.time_ms(),
        driver.records.page_segments,
        yields=yields,
        is_unbounded=None if ledgers_kind is None else ledgers_kind == UNBOUNDED,
        is_new_unbounded=ledgers.options.log_ledgers == UNBOUNDED,
    )
    machine.start()
    return machine


class _Candidates:
    """The writers that one takeover makes. The last one is the log's, once the machine is done."""

    def __init__(
        self,
        ledgers: Ledgers,
        create_writer: Callable[[int, bool], Awaitable[LedgerWriter]],
        restarted_by_s: float,
        wanted: NewLedgers,
    ) -> None:
        self.writers: list[LedgerWriter] = []
        self._ledgers = ledgers
        self._create_writer = create_writer
        self._restarted_by_s = restarted_by_s
        self._wanted = wanted

    async def create(self, segment_number: int, *, is_unbounded: bool) -> int:
        """As `Writers.create`; waits for bookies that restart."""
        create = partial(self._create_writer, segment_number, is_unbounded)
        self.writers.append(await _when_bookies_are_back(create, self._restarted_by_s))
        return self.writers[-1].ledger_id

    async def take_over(self, ledger_id: int) -> int:
        """As `Writers.take_over`."""
        writer = await self._ledgers.take_over(
            ledger_id, self._wanted.password, compression=self._wanted.compression, rolls_fragments=False
        )
        # Whether a late request could create it again knows only who created it.
        writer.is_created_for_certain = False
        self.writers.append(writer)
        return writer.metadata.term


async def take_over(
    name: str,
    wanted: NewLedgers,
    ledgers: Ledgers,
    driver: LogDriver,
    nursery: trio.Nursery,
    *,
    yields: bool = False,
) -> LogWriter:
    """Recovers what the last writer left, and becomes the log's writer; the writer before is fenced. If another client takes over
    meanwhile, it starts over, or with `yields` raises `OvertakenError`.

    It waits for bookies that restart: in each recovery until its deadline, and for some seconds when it creates the new
    ledger. Raises `RecoveryUndecidedError` or `NotEnoughBookiesError` (retry: when bookies are back), `TakeoverFailedError` if
    others kept winning until `takeover_timeout_s` had passed, `MetastoreError`. Then there is no writer, and a ledger may be left
    that no log names: the next takeover deletes it (L7). `ConfigError`: nothing was done. If cancelled, the log may be left
    without a writer: take over again."""
    log_key_path(name)
    wanted.check()
    started = trio.current_time()

    async def create_writer(segment_number: int, is_unbounded: bool) -> LedgerWriter:
        async def announce(ledger_id: int) -> None:
            await driver.records.announce(name, ledger_id, segment_number)

        return await ledgers.create(
            wanted.quorum,
            wanted.password,
            wanted.digest_type,
            {**(wanted.custom or {}), "log": name},
            announce,
            unbounded=is_unbounded,
            durability=wanted.durability,
            compression=wanted.compression,
            rolls_fragments=False,
        )

    # At most half of the time, so that the compare-and-set, and a second try after a conflict, have the rest.
    restart_s = min(_RESTART_S, ledgers.options.takeover_timeout_s / 2)
    candidates = _Candidates(ledgers, create_writer, started + restart_s, wanted)
    machine = _machine(name, ledgers, driver, wanted.kind, yields=yields)
    writer: LedgerWriter | None = None
    try:
        with trio.move_on_after(ledgers.options.takeover_timeout_s):
            changed = await driver.drive(machine, candidates, wanted.password)
            writer = candidates.writers[-1]
        if writer is None:
            waited = f"not taken over within {ledgers.options.takeover_timeout_s} s"
            problem = f"{waited}: others keep winning, or bookies or the metastore hang"
            raise TakeoverFailedError(name, f"{problem}; retry if you are still elected")
    except TakeoverFailedError:
        if machine.was_overtaken:
            raise OvertakenError(name, "somebody else has taken it over meanwhile") from None
        raise
    finally:
        # Each conflict costs a ledger (L1), or a term of the last one (L9). What records are needless, the machine deletes.
        for lost in candidates.writers:
            if lost is not writer:
                lost.leave()
    segments = changed.metadata.segments
    duration_s = trio.current_time() - started
    ledgers.observe(LogTakenOver(name, segments[-1].number, writer.ledger_id, machine.recovered, duration_s))
    log_writer = LogWriter(name, ledgers, driver, changed, writer, create_writer, wanted.password)
    nursery.start_soon(log_writer.run)
    return log_writer


@asynccontextmanager
async def lead(
    name: str, wanted: NewLedgers, ledgers: Ledgers, driver: LogDriver, nursery: trio.Nursery
) -> AsyncIterator[LogWriter]:
    """Waits until no other client is elected, then takes over; a context with the log's writer. If another client takes over
    meanwhile, it may have been elected, so this waits for an election again."""
    # Before the wait for an election, which may take days.
    wanted.check()
    while True:
        async with elected(name, ledgers):
            try:
                writer = await take_over(name, wanted, ledgers, driver, nursery, yields=True)
            except OvertakenError:
                continue
            async with writer:
                yield writer
            return
