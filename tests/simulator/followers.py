"""The shell of a simulated follower: it reads a log ledger by ledger, and goes on when the list grows (L6)."""

from __future__ import annotations

from functools import partial
from typing import Any

from replog.protocol.model import LogMetadata, LogPage, Segment
from tests.simulator.clients import Client
from tests.simulator.metastore import Outcome, page_key
from tests.simulator.pages import LOG_NAME
from tests.simulator.readers import ReaderShell

_POLL = 120


class LogFollower:
    """Reads the log from its first ledger on, for ever, or until it is stopped."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.world = client.world
        self.number = 0  # of the segment that is being read, or was read last
        self.is_stopped = False
        self._reader: ReaderShell | None = None
        self._oracle = client.setting.oracle

    def start(self) -> None:
        """Reads the list."""
        if not self.is_stopped:
            self.client.metastore.get(self.client, LOG_NAME, self._listed)

    def _listed(self, outcome: Outcome, record: Any, version: int) -> None:
        if self.is_stopped:
            return
        wanted = self.number + 1
        if outcome is Outcome.DONE:
            assert isinstance(record, LogMetadata)
            wanted = max(wanted, record.first_segment_number)
        if outcome is not Outcome.DONE or wanted >= record.next_segment_number:
            self.client.after(_POLL, self.start)
            return
        segment = record.listed(wanted)
        if segment is not None:
            self._read(segment)
        else:
            key = page_key(record.page_of(wanted))
            self.client.metastore.get(self.client, key, partial(self._page_read, wanted))

    def _page_read(self, wanted: int, outcome: Outcome, record: Any, version: int) -> None:
        """Without the page, or without the segment in it, the log was trimmed: look again."""
        if self.is_stopped:
            return
        found = record.segments if isinstance(record, LogPage) else ()
        segment = next((each for each in found if each.number == wanted), None)
        if segment is None:
            self.client.after(_POLL, self.start)
            return
        self.world.count("follower read a page of the log")
        self._read(segment)

    def _read(self, segment: Segment) -> None:
        if self.number:
            self.world.count("follower crossed to the next ledger")
        self._oracle.log.follower_crosses(self.client.name, self.number, segment.number)
        self.number = segment.number
        self._reader = ReaderShell(self.client, segment.ledger_id, 0, self._ended)
        self._reader.start()

    def _ended(self, exists: bool) -> None:
        if not exists:
            self.world.count("follower met a trimmed ledger")
        self.start()

    def has_read(self, number: int, entry_id: int) -> bool:
        """Whether it came so far."""
        return self._oracle.log.progress_of(self.client.name) >= (number, entry_id)

    def stop(self) -> None:
        """Reads no more."""
        self.is_stopped = True
        if self._reader is not None:
            self._reader.stop()
