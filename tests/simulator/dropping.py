"""The shell that deletes what a simulated log names no more: ledgers, then the pages that named them (L3)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from replog.protocol.dropping import DeletePending, DropSegments
from replog.protocol.model import LogPage, PendingLedger, Segment
from tests.simulator.clients import Client
from tests.simulator.metastore import Outcome, page_key, pending_key

_RETRY = 150


PENDING_KEPT = 20_000  # longer than any request is under way, or sent again


class DeletingPending:
    """Does one `DeletePending`, step by step."""

    def __init__(self, client: Client, effect: DeletePending, on_done: Callable[[], None]) -> None:
        self.client = client
        self.log = effect.log
        self._left = list(effect.pending)
        self._on_done = on_done

    def go_on(self) -> None:
        """Looks at the next one."""
        if not self._left:
            self._on_done()
            return
        log, pending = self.log, self._left[0]
        listed = log.listed(pending.segment_number)
        if listed is None and log.first_segment_number <= pending.segment_number < log.next_segment_number:
            key = page_key(log.page_of(pending.segment_number))
            self.client.metastore.get(self.client, key, self._page_read)
        else:
            self._decide(listed)

    def _page_read(self, outcome: Outcome, record: Any, version: int) -> None:
        if outcome is Outcome.UNCERTAIN:
            self.client.after(_RETRY, self.go_on)
        elif outcome is Outcome.MISSING:
            self._decide(None)  # it was trimmed since
        else:
            number = self._left[0].segment_number
            self._decide(next((each for each in record.segments if each.number == number), None))

    def _decide(self, segment: Segment | None) -> None:
        pending, world = self._left[0], self.client.world
        if segment is not None and segment.ledger_id == pending.ledger_id:
            world.count("pending ledger was in the log")
            self._forget(pending)
        else:
            world.count("pending ledger deleted")
            self._delete(pending.ledger_id, partial(self._forget, pending))

    def _forget(self, pending: PendingLedger) -> None:
        """Unless a request to create it may still be under way."""
        if self.client.world.now - pending.created_at_ms < PENDING_KEPT:
            self._next()
        else:
            self._delete(pending_key(pending.ledger_id), self._next)

    def _delete(self, key: int | str, then: Callable[[], None]) -> None:
        def answered(outcome: Outcome, record: Any, version: int) -> None:
            if outcome is Outcome.UNCERTAIN:
                self.client.after(_RETRY, self._delete, key, then)
            else:
                then()

        self.client.metastore.delete(self.client, key, answered)

    def _next(self) -> None:
        del self._left[0]
        self.go_on()


class Dropping:
    """Does one `DropSegments`, step by step. `on_done` is told which ledgers were deleted."""

    def __init__(self, client: Client, effect: DropSegments, on_done: Callable[[tuple[int, ...]], None]) -> None:
        self.client = client
        self.effect = effect
        self._on_done = on_done
        self._dropped = {segment.number: segment.ledger_id for segment in effect.known}
        size = effect.page_segments
        self._start = max(effect.first, effect.end - effect.end % size)
        self._steps: list[tuple[str, int]] = []
        if any(number not in self._dropped for number in range(self._start, effect.end)):
            self._steps.append(("partial page", effect.end // size))
        self._steps += [("ledger", ledger_id) for ledger_id in self._dropped.values()]
        if effect.first // size < effect.end // size or effect.first == effect.end:
            self._steps.append(("list", 0))

    def go_on(self) -> None:
        """Does the next step."""
        if not self._steps:
            self._on_done(tuple(self._dropped.values()))
            return
        what, number = self._steps[0]
        metastore = self.client.metastore
        answer = partial(self._answered, what, number)
        if what == "list":
            metastore.list_pages(self.client, answer)
        elif what == "ledger":
            metastore.delete(self.client, number, answer)
        elif what == "delete page":
            metastore.delete(self.client, page_key(number), answer)
        else:
            metastore.get(self.client, page_key(number), answer)

    def _answered(self, what: str, number: int, outcome: Outcome, record: Any, version: int) -> None:
        if outcome is Outcome.UNCERTAIN:
            self.client.after(_RETRY, self.go_on)
            return
        del self._steps[0]
        if what == "list":
            emptied = [each for each in record if (each + 1) * self.effect.page_segments <= self.effect.end]
            for each in emptied:
                self._steps += [("page", each), ("delete page", each)]
        elif isinstance(record, LogPage):
            first = 0 if what == "page" else self._start
            found = {each.number: each.ledger_id for each in record.segments if first <= each.number < self.effect.end}
            new = [("ledger", ledger_id) for number, ledger_id in found.items() if number not in self._dropped]
            self._dropped.update(found)
            self._steps[:0] = new
        elif what == "delete page" and outcome is Outcome.DONE:
            self.client.world.count("page of a log deleted")
        self.go_on()
