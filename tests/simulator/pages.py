"""Writes one page of a simulated log, or finds out why it can't be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replog.protocol.chaining import WritePage
from tests.simulator.clients import Client
from tests.simulator.metastore import Outcome, page_key

LOG_NAME = "log"
_RETRY = 150


class WritingPage:
    """One page. `settled` is told whether it stands; if not, the log was trimmed meanwhile."""

    def __init__(self, client: Client, effect: WritePage, settled: Callable[[bool], None]) -> None:
        self._client = client
        self._effect = effect
        self._settled = settled
        self._key = page_key(effect.page.number)

    def start(self) -> None:
        """Sends the CAS."""
        self._client.metastore.cas(self._client, self._key, None, self._effect.page, self._written)

    def _written(self, outcome: Outcome, record: Any, version: int) -> None:
        if outcome is Outcome.UNCERTAIN:
            self._client.after(_RETRY, self.start)
        elif outcome is Outcome.CONFLICT:
            self._client.world.count("page of a log existed")
            self._compare()
        else:
            self._client.world.count("page of a log written")
            self._settled(True)

    def _compare(self) -> None:
        self._client.metastore.get(self._client, self._key, self._compared)

    def _compared(self, outcome: Outcome, record: Any, version: int) -> None:
        if outcome is Outcome.UNCERTAIN:
            self._client.after(_RETRY, self._compare)
            return
        is_written = outcome is Outcome.DONE and set(self._effect.page.segments) <= set(record.segments)
        if not is_written:  # the oracle sees to it that this is so only if the record has changed
            self._client.world.count("page of a log was trimmed meanwhile")
            version = self._client.metastore.records[LOG_NAME][1]
            self._client.setting.oracle.log.page_lacks(self._effect.head_version, version)
        self._settled(is_written)
