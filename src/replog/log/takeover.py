"""Becoming the writer of a log (L1)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial

import trio

from replog.client.entry_writer import EntryWriter
from replog.client.ledgers import Ledgers
from replog.config.client import UNBOUNDED
from replog.errors import NotEnoughBookiesError, TakeoverFailedError
from replog.hookspecs import LogTakenOver
from replog.log.election import elected
from replog.log.log_driver import LogDriver
from replog.log.log_options import LogOptions
from replog.log.log_writer import LogWriter
from replog.protocol.chaining import LogTakeover
from replog.records.paths import log_key_path

# For how long after its beginning a takeover waits for bookies that restart, even if there is nothing to recover (R12).
_RESTART_S = 5.0
_REFUSED_S = 0.5  # a full disk may just get space again, from ledgers that were deleted
_AGAIN_S = 0.1


class OvertakenError(TakeoverFailedError):
    """Another client took over during a takeover. The one that failed must be elected again before it retries."""


async def _when_bookies_are_back(
    create: Callable[[], Awaitable[EntryWriter]], until_s: float, refusing: Callable[[], Collection[str]]
) -> EntryWriter:
    """A new ledger's writer. Tries again until `until_s` while too few bookies are present and known ones may restart; only for a
    moment if those are present, and `refusing` because their disks are full or failed. Raises as `create` does."""
    refused_by_s = trio.current_time() + _REFUSED_S
    while True:
        try:
            return await create()
        except NotEnoughBookiesError as error:
            now_s = trio.current_time()
            others = error.excluded if now_s < refused_by_s else set(error.excluded).difference(refusing())
            if len(error.usable) + len(others) < error.needed or now_s >= until_s:
                raise
        await trio.sleep(_AGAIN_S)


def _machine(name: str, ledgers: Ledgers, driver: LogDriver, ledgers_kind: str | None, *, yields: bool) -> LogTakeover:
    machine = LogTakeover(
        name,
        ledgers.entropy.token(),
        ledgers.entropy.time_ms(),
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
        create_writer: Callable[[int, bool], Awaitable[EntryWriter]],
        restarted_by_s: float,
        wanted: LogOptions,
    ) -> None:
        self.writers: list[EntryWriter] = []
        self._ledgers = ledgers
        self._create_writer = create_writer
        self._restarted_by_s = restarted_by_s
        self._wanted = wanted

    async def create(self, segment_number: int, *, is_unbounded: bool) -> int:
        """Creates a ledger (`Writers.create`); waits for bookies that restart."""
        create = partial(self._create_writer, segment_number, is_unbounded)
        self.writers.append(await _when_bookies_are_back(create, self._restarted_by_s, self._ledgers.refusing_ids))
        return self.writers[-1].ledger_id

    async def take_over(self, ledger_id: int) -> int:
        """Takes over a ledger (`Writers.take_over`)."""
        writer = await self._ledgers.take_over(
            ledger_id, self._wanted.password, compression=self._wanted.compression, rolls_fragments=False
        )
        # Only the creator knows whether a late create may still arrive.
        writer.is_created_for_certain = False
        self.writers.append(writer)
        return writer.metadata.term


async def take_over(
    name: str,
    wanted: LogOptions,
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
    quorum = wanted.quorum
    assert quorum is not None, "the client gives its own where its caller gives none"
    started = trio.current_time()

    async def create_writer(segment_number: int, is_unbounded: bool) -> EntryWriter:
        async def announce(ledger_id: int) -> None:
            await driver.records.announce(name, ledger_id, segment_number)

        return await ledgers.create(
            quorum,
            wanted.password,
            wanted.digest,
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
    machine = _machine(name, ledgers, driver, wanted.ledgers, yields=yields)
    writer: EntryWriter | None = None
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
            raise OvertakenError(name, "another client has taken it over meanwhile") from None
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
    nursery.start_soon(log_writer._run)
    return log_writer


@asynccontextmanager
async def lead(
    name: str, wanted: LogOptions, ledgers: Ledgers, driver: LogDriver, nursery: trio.Nursery
) -> AsyncIterator[LogWriter]:
    """Waits until no other client is elected, then takes over; a context with the log's writer. If another client takes over
    meanwhile, it may have been elected, so this waits for an election again."""
    while True:
        async with elected(name, ledgers):
            try:
                writer = await take_over(name, wanted, ledgers, driver, nursery, yields=True)
            except OvertakenError:
                continue
            async with writer:
                yield writer
            return
