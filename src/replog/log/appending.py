"""Adding closed ledgers to a log, all or none of them. Drives the machine of `replog.protocol.appending`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs
import trio

from replog.client.ledgers import Ledgers, check_custom, check_password
from replog.config import check_seconds, names_in
from replog.config.client import UNBOUNDED
from replog.errors import ConfigError, MetastoreUncertainError, TakeoverFailedError
from replog.log.log_driver import NO_WRITERS, LogDriver
from replog.log.right_time import time_ms_before
from replog.protocol.appending import Addition, Claim, LogAppending
from replog.protocol.model import Position, Segment, Transaction
from replog.protocol.retiring import LogRetiring
from replog.records.paths import ledger_key_path, log_key_path

TRANSACTION_ID_BYTES_MAX = 200  # a thousand of them must leave room in the log's record
_TRANSACTION_NUMBER_MAX = (1 << 63) - 1
_LEDGER_S = 0.01  # for each ledger that has to be checked, beyond the time limit of a takeover


@attrs.frozen
class AppendedLedgers:
    """The result of `jobs.append_ledgers`. `segments` are the ledgers' segments, in order, and `first` is their first
    position; () and None if there were no ledgers, or nothing was changed.

    `is_new` is False if the transaction was committed before: then nothing was changed. It may also be False for a call that
    made the change itself, if the answer was lost and the change can no longer be seen. It may be True for two clients that add
    the same ledgers at the same time, if the answer to one's change was lost, or a leader was asked: both find the ledgers in
    the log, whose record does not name their adder. They are in it once."""

    is_new: bool
    first: Position | None
    segments: tuple[Segment, ...]


def addition(
    name: str,
    ledger_ids: Sequence[int],
    transaction: tuple[str, int] | None,
    job: str,
    custom: Mapping[str, str] | None,
) -> Addition:
    """Checks the arguments of `Client.jobs.append_ledgers`. Raises `ConfigError` for invalid ones."""
    log_key_path(name)
    given: object = ledger_ids
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(f"ledger_ids={ledger_ids!r} must be a list of ledger ids")
    ids = tuple(ledger_ids)
    for ledger_id in ids:
        ledger_key_path(ledger_id)
    if len(set(ids)) < len(ids):
        raise ConfigError(f"log {name!r}: a ledger can be added once, and one of {len(ids)} stands there twice")
    if not isinstance(job, str):
        raise ConfigError(f"{job!r} is not the name of a job: it must be a text, as in the ledgers' custom metadata")
    check_custom(custom)
    return Addition(ids, None if transaction is None else _transaction(transaction), job, dict(custom or {}))


def _transaction(transaction: tuple[str, int]) -> Transaction:
    match transaction:
        case (str(transaction_id), int(number)) if not isinstance(number, bool):
            size_bytes = len(transaction_id.encode(errors="surrogatepass"))
            if not transaction_id.isprintable() or not 1 <= size_bytes <= TRANSACTION_ID_BYTES_MAX:
                wanted = f"1 to {TRANSACTION_ID_BYTES_MAX} bytes that can be printed"
                raise ConfigError(f"{transaction_id[:60]!r} can't be the id of a transaction: it must have {wanted}")
            if not 0 <= number <= _TRANSACTION_NUMBER_MAX:
                raise ConfigError(f"{number} can't be the number of a transaction: it is 0 or more, and below 2**63")
            return Transaction(transaction_id, number)
    raise ConfigError(f"{transaction!r} is not a transaction: expected a pair of an id, which is a text, and a number")


async def retire(
    name: str, transaction_ids: Iterable[str], older_than_s: float | None, ledgers: Ledgers, driver: LogDriver
) -> list[str]:
    """Makes a log forget transactions; returns their ids. Raises as `Client.jobs.retire_transactions`."""
    log_key_path(name)
    ids = names_in("transaction_ids", transaction_ids)
    before_ms = await time_ms_before(older_than_s, name, ledgers, driver.records)
    machine = LogRetiring(name, frozenset(ids), before_ms, ledgers.entropy.token())
    machine.start()
    await driver.drive(machine, NO_WRITERS, b"")
    return list(machine.retired)


async def append(
    name: str,
    wanted: Addition,
    patience_s: float,
    ledgers: Ledgers,
    driver: LogDriver,
    password: bytes,
    *,
    makes_log: bool | Claim = False,
) -> AppendedLedgers:
    """Adds the ledgers. Raises as `jobs.append_ledgers`; with `makes_log` also `ConfigError` if there is such a log. With a
    `Claim` for that, it makes the log of any number of ledgers: see `LogAppending`."""
    check_password(password)
    check_seconds("patience_s", patience_s)
    machine = LogAppending(
        name,
        wanted,
        ledgers.entropy.token(),
        ledgers.entropy.time_ms(),
        driver.records.page_segments,
        is_new_unbounded=ledgers.options.log_ledgers == UNBOUNDED,
        asks_leader=patience_s > 0,
        makes_log=makes_log,
    )
    machine.start()
    # A job may hand in thousands of ledgers, and each is read: a fixed limit would make a large commit impossible.
    timeout_s = ledgers.options.takeover_timeout_s + patience_s + _LEDGER_S * len(wanted.ledger_ids)
    with trio.move_on_after(timeout_s):
        await driver.drive(machine, NO_WRITERS, password, patience_s)
    # Ledgers that the log names are added, even if no client could close the ledgers before them in time.
    if not machine.is_done and not machine.is_added:
        problem = f"{len(wanted.ledger_ids)} ledgers were not added within {timeout_s:g} s: others keep winning"
        # A repetition with the same transaction finds out, and changes nothing if the first one succeeded.
        if machine.is_in_doubt:
            advice = "whether they were is unknown: call again with the same transaction"
            raise MetastoreUncertainError(f"log {name!r}: {problem}, or the metastore hangs; {advice}")
        raise TakeoverFailedError(name, f"{problem}, or bookies or the metastore hang; nothing was added")
    if machine.is_new:
        await driver.finish(name)
    first = Position(machine.segments[0].number, 0) if machine.segments else None
    return AppendedLedgers(machine.is_new, first, machine.segments)
