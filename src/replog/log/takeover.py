"""Becoming the writer of a log (L1)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial

import trio

from replog.client.ledger_writer import LedgerWriter
from replog.client.ledgers import Ledgers, check_creation
from replog.errors import NotEnoughBookiesError, TakeoverFailedError
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


async def take_over(
    name: str,
    ledgers: Ledgers,
    driver: LogDriver,
    nursery: trio.Nursery,
    quorum: Quorum,
    password: bytes,
    digest_type: DigestType,
    custom: Mapping[str, str] | None = None,
    durability: str | None = None,
    *,
    yields: bool = False,
) -> LogWriter:
    """Recovers what the last writer left, and becomes the log's writer; the writer before is fenced. If another client takes over
    meanwhile, it starts over, or with `yields` raises `OvertakenError`.

    It waits for bookies that restart: in each recovery until its deadline, and for some seconds when it creates the new
    ledger. Raises `RecoveryUndecidedError` or `NotEnoughBookiesError` (retry: when bookies are back), `TakeoverFailedError` if
    others kept winning until `takeover_timeout_s` had passed, `MetastoreError`. Then there is no writer, and a ledger may be
    left that no log names: the next takeover deletes it (L7). If cancelled, the log may be left without a writer: take over
    again."""
    started = trio.current_time()

    async def create_writer(segment_number: int) -> LedgerWriter:
        async def announce(ledger_id: int) -> None:
            await driver.records.announce(name, ledger_id, segment_number)

        marked = {**(custom or {}), "log": name}
        return await ledgers.create(quorum, password, digest_type, marked, announce, durability=durability)

    # At most half of the time, so that the compare-and-set, and a second try after a conflict, have the rest.
    restart_s = min(_RESTART_S, ledgers.options.takeover_timeout_s / 2)
    created: list[LedgerWriter] = []

    async def create_ledger(segment_number: int) -> int:
        create = partial(create_writer, segment_number)
        created.append(await _when_bookies_are_back(create, started + restart_s))
        return created[-1].ledger_id

    machine = LogTakeover(
        name, ledgers.chance.token(), ledgers.chance.time_ms(), driver.records.page_segments, yields=yields
    )
    machine.start()
    writer: LedgerWriter | None = None
    try:
        with trio.move_on_after(ledgers.options.takeover_timeout_s):
            changed = await driver.drive(machine, create_ledger, password)
            writer = created[-1]
        if writer is None:
            waited = f"not taken over within {ledgers.options.takeover_timeout_s} s"
            problem = f"{waited}: others keep winning, or bookies or the metastore hang"
            raise TakeoverFailedError(name, f"{problem}; retry if you are still elected")
    except TakeoverFailedError:
        if machine.was_overtaken:
            raise OvertakenError(name, "somebody else has taken it over meanwhile") from None
        raise
    finally:
        # Each conflict costs a ledger (L1): its record is deleted by the machine, and its writer ends here.
        for lost in created:
            if lost is not writer:
                lost.leave()
    segments = changed.metadata.segments
    duration_s = trio.current_time() - started
    ledgers.observe(LogTakenOver(name, segments[-1].number, writer.ledger_id, machine.recovered, duration_s))
    log_writer = LogWriter(name, ledgers, driver, changed, writer, create_writer, password)
    nursery.start_soon(log_writer.run)
    return log_writer


@asynccontextmanager
async def lead(
    name: str, ledgers: Ledgers, taking_over: Callable[..., Awaitable[LogWriter]]
) -> AsyncIterator[LogWriter]:
    """Waits until no other client is elected, then takes over; a context with the log's writer. If another client takes over
    meanwhile, it may have been elected, so this waits for an election again."""
    while True:
        async with elected(name, ledgers):
            try:
                writer = await taking_over(yields=True)
            except OvertakenError:
                continue
            async with writer:
                yield writer
            return


def taking_over(
    name: str,
    ledgers: Ledgers,
    driver: LogDriver,
    nursery: trio.Nursery,
    quorum: Quorum,
    password: bytes,
    digest_type: DigestType,
    custom: Mapping[str, str] | None,
    durability: str | None,
) -> Callable[..., Awaitable[LogWriter]]:
    """`take_over` with these arguments. Raises `ConfigError` for invalid ones, before anything is done."""
    log_key_path(name)
    check_creation(quorum, password, digest_type, custom, durability)
    check_leader_custom(custom)
    return partial(take_over, name, ledgers, driver, nursery, quorum, password, digest_type, custom, durability)
