"""The verbs of a client about producers: those that append to a log with ids (L11)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from replog.client.ledgers import Ledgers
from replog.config import names_in
from replog.log.log_records import LogRecords
from replog.log.producers import ProducerRecords
from replog.log.right_time import time_ms_before
from replog.protocol.producers import KnownProducer


class ProducerVerbs(ABC):
    """What a `Client` does with producers."""

    _logs: LogRecords

    @property
    @abstractmethod
    def _ledgers(self) -> Ledgers:
        """The client's ledgers. Raises `trio.ClosedResourceError` once it was left."""

    async def log_producers(self, name: str) -> list[KnownProducer]:
        """The producers that a log remembers from its closed segments, by name. `last_ms` is when its last entry was sent.

        Raises `LogNotFoundError`, `MetastoreError`."""
        head, _ = await self._logs.get(name)
        record, _ = await ProducerRecords(self._ledgers).get(name)
        return [] if record is None or record.deletions != head.deletions else list(record.producers)

    async def retire_producers(
        self, name: str, producers: Sequence[str] = (), *, older_than_s: float | None = None
    ) -> list[str]:
        """Makes a log forget these producers, and those whose last entry was sent longer ago than `older_than_s`; returns their
        names.

        A log has room for 1000, and never forgets one by itself. An append that repeats an id of a producer that was retired
        appends the entry again. They are those of `log_producers`; one that appends meanwhile may stay. Raises
        `LogNotFoundError`, `ConfigError`, `MetastoreError`; `ClockMismatchError` if bookies do not confirm this client's clock:
        then none is retired. After another error, or if cancelled, they may be retired or not; retiring again is harmless."""
        names = names_in("producers", producers)
        before_ms = await time_ms_before(older_than_s, name, self._ledgers, self._logs)
        head, _ = await self._logs.get(name)
        return await ProducerRecords(self._ledgers).retire(head, frozenset(names), before_ms)
