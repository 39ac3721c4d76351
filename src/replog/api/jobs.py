"""`client.jobs`: ledgers that jobs add to logs, and what logs remember of jobs and producers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from replog.api.opened import OpenClient
from replog.config import names_in
from replog.log import appending, sweeping
from replog.log.appending import AppendedLedgers
from replog.log.producers import ProducerRecords
from replog.log.right_time import time_ms_before
from replog.protocol.model import Transaction
from replog.protocol.producers import KnownProducer


class Jobs:
    """Adds ledgers of jobs to logs, and retires what logs remember of transactions and producers. `client.jobs` is one."""

    def __init__(self, opened: OpenClient) -> None:
        self._opened = opened

    async def append_ledgers(
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
        wanted = appending.addition(name, ledger_ids, transaction, job, custom)
        return await appending.append(name, wanted, patience_s, self._opened.ledgers, self._opened.log_driver, password)

    async def sweep(self, name: str, *, grace_s: float = 86400.0, job: str | None = None) -> list[int]:
        """Deletes ledgers that jobs wrote for a log and that it does not name; returns their ids.

        These are the ledgers with "log" and "job" in their `custom`: the leftovers of committed jobs, and the ledgers of
        jobs whose youngest ledger is older than `grace_s`. Such a job is given up: `append_ledgers` refuses its ledgers
        from then on. With `job`, it deletes only ledgers of that job, of any age. Ledgers without "job" belong to leaders
        and are never deleted. Records of cursors whose deletion was cut short go, too.

        Raises `MetastoreError`, `ConfigError`; `ClockMismatchError` if no job was given up by age, as bookies do not confirm this
        clock. If it raises or is cancelled, some are deleted, and some jobs given up; sweeping again is harmless.

        It asks bookies for nothing but their time, needs no password, and deposes no writer."""
        deleted = await sweeping.sweep(name, grace_s, job, self._opened.ledgers, self._opened.log_driver)
        await self._opened.cursors.sweep(name)
        return deleted

    async def transactions(self, name: str) -> list[Transaction]:
        """The transactions that a log remembers: each with its `transaction_id`, the highest `number` that was committed, and
        `committed_at_ms`; the last one last. Raises `LogNotFoundError`, `MetastoreError`."""
        return list((await self._opened.logs.get(name))[0].transactions)

    async def retire_transactions(
        self, name: str, transaction_ids: Sequence[str] = (), *, older_than_s: float | None = None
    ) -> list[str]:
        """Makes a log forget these transactions, and those that were committed longer ago than `older_than_s`; returns their ids.

        A log never forgets one by itself, and has room for 1000 of jobs and 1000 of streams. A job or stream that repeats a
        transaction after it was retired writes its rows again. Raises `LogNotFoundError`, `ConfigError`, `MetastoreError`;
        `ClockMismatchError`: none is retired. Else if it raises or is cancelled, they may be; retiring again is harmless."""
        return await appending.retire(
            name, transaction_ids, older_than_s, self._opened.ledgers, self._opened.log_driver
        )

    async def producers(self, name: str) -> list[KnownProducer]:
        """The producers that a log remembers from its closed segments, by name. `last_ms` is when its last entry was sent.

        Raises `LogNotFoundError`, `MetastoreError`."""
        head, _ = await self._opened.logs.get(name)
        record, _ = await ProducerRecords(self._opened.ledgers).get(name)
        return [] if record is None or record.deletions != head.deletions else list(record.producers)

    async def retire_producers(
        self, name: str, producers: Sequence[str] = (), *, older_than_s: float | None = None
    ) -> list[str]:
        """Makes a log forget these producers, and those whose last entry was sent longer ago than `older_than_s`; returns their
        names.

        A log has room for 1000, and never forgets one by itself. An append that repeats an id of a producer that was retired
        appends the entry again. They are those of `producers`; one that appends meanwhile may stay. Raises
        `LogNotFoundError`, `ConfigError`, `MetastoreError`; `ClockMismatchError` if bookies do not confirm this client's clock:
        then none is retired. After another error, or if cancelled, they may be retired or not; retiring again is harmless."""
        names = names_in("producers", producers)
        before_ms = await time_ms_before(older_than_s, name, self._opened.ledgers, self._opened.logs)
        head, _ = await self._opened.logs.get(name)
        return await ProducerRecords(self._opened.ledgers).retire(head, frozenset(names), before_ms)
