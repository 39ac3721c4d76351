"""The parts of one client, which its groups of verbs share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from replog.client.ledgers import Ledgers
from replog.log.cursor_catalog import CursorCatalog
from replog.log.log_driver import LogDriver
from replog.log.log_records import LogRecords
from replog.protocol.quorum import Quorum
from replog.registry import Registry

if TYPE_CHECKING:
    from replog.bookie.serving import ServedBookie
    from replog.repair.repairer import Repairer


class OpenClient:
    """The parts of an open client. Once the client was left, each part raises `trio.ClosedResourceError` instead."""

    def __init__(
        self,
        ledgers: Ledgers,
        default: Quorum,
        nursery: trio.Nursery,
        bookies: Sequence[ServedBookie],
        plugins: Registry,
    ) -> None:
        self.default_quorum = default
        self.bookies = tuple(bookies)
        self.nursery, self.plugins = nursery, plugins
        self._is_left = False
        self._ledgers, self._logs = ledgers, LogRecords(ledgers)
        self._log_driver = LogDriver(ledgers, self._logs)
        self._cursors = CursorCatalog(ledgers, self._logs)
        self._repairer: Repairer | None = None

    @property
    def ledgers(self) -> Ledgers:
        """Ledgers: their records, writers and readers."""
        self._check()
        return self._ledgers

    @property
    def logs(self) -> LogRecords:
        """The records of logs."""
        self._check()
        return self._logs

    @property
    def log_driver(self) -> LogDriver:
        """The driver that takes logs over and changes their records."""
        self._check()
        return self._log_driver

    @property
    def cursors(self) -> CursorCatalog:
        """The cursors of logs."""
        self._check()
        return self._cursors

    @property
    def repairer(self) -> Repairer:
        """Audits, repairs and drains."""
        self._check()
        if self._repairer is None:
            # Imported here: few clients repair.
            from replog.repair.repairer import Repairer

            self._repairer = Repairer(self._ledgers.context, self._ledgers.options, self._ledgers.observe)
        return self._repairer

    def leave(self) -> None:
        """Makes every later verb raise."""
        self._is_left = True

    def _check(self) -> None:
        if self._is_left:
            raise trio.ClosedResourceError("this client was left: make another one")
