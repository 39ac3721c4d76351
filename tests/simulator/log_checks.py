"""Invariants of a log: of its list of segments, and of its leaders and followers."""

from __future__ import annotations

from collections.abc import Sequence

from replog.protocol.model import LedgerState, LogMetadata, LogPage, Segment
from tests.simulator.facts import Facts, Violation


class LogChecks:
    """Checks the log's record and pages, takeovers, and followers."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def changed(self, old: LogMetadata | None, new: LogMetadata) -> None:
        """The log's record got a new version."""
        if new.faults():
            self._facts.fail("L3", f"the log's record: {'; '.join(new.faults())}")
        before, self._facts.log = _places(self._facts.list), new
        self._facts.list = tuple(
            filter(None, map(self._named, range(new.first_segment_number, new.next_segment_number)))
        )
        after = _places(self._facts.list)
        if len(after) != new.segment_count:
            listed = [segment.number for segment in self._facts.list]
            self._facts.fail(
                "L3", f"the log has {new.first_segment_number} to {new.next_segment_number - 1}, only {listed} stand"
            )
        if old is not None:
            kept = [segment for segment in before if segment in after]
            added = [segment for segment in after if segment not in before]
            if [*kept, *added] != after or kept != before[len(before) - len(kept) :]:
                self._facts.fail("L3", f"the log's list went from {before} to {after}")
            if any(number < old.next_segment_number for number, _ in added) or len(added) > 1:
                self._facts.fail("L3", f"segments {added} were added, the next number was {old.next_segment_number}")
            if old.is_deleted and added:
                self._facts.world.count("log begun anew")
            self._check_terms(old, new)
        for segment in self._facts.list:
            self._facts.segments.setdefault(segment.ledger_id, segment.number)
        for segment in self._facts.list:
            state = self._facts.ledgers[segment.ledger_id].record.state
            if state is LedgerState.CLOSED:
                continue
            if segment not in self._facts.list[-2:]:
                self._facts.fail("I11", f"segment {segment.number} is {state.value}, and is not one of the last two")
            if segment.number < new.first_open_number:
                self._facts.fail("L8", f"segment {segment.number} is {state.value}, and the log says it is closed")

    def _check_terms(self, old: LogMetadata, new: LogMetadata) -> None:
        """Only a takeover of the last ledger changes a term, to one that it has opened (L9)."""
        for segment in new.segments:
            before = old.listed(segment.number)
            if before is None or before.term == segment.term:
                continue
            self._facts.world.count("log led on in its last ledger")
            opened = self._facts.ledgers[segment.ledger_id].record.open_term
            if segment != new.segments[-1] or not before.term < segment.term <= opened:
                self._facts.fail("L9", f"{before} became {segment}, and was opened in term {opened}")

    def _named(self, number: int) -> Segment | None:
        """The segment that a reader finds under this number: in the head, else in the page."""
        assert self._facts.log is not None
        listed = self._facts.log.listed(number)
        if listed is not None:
            return listed
        page = self._facts.pages.get(self._facts.log.page_of(number))
        return next((each for each in page.segments if each.number == number), None) if page is not None else None

    def page_written(self, page: LogPage) -> None:
        """A page was written."""
        if page.number in self._facts.pages:
            self._facts.fail("L3", f"page {page.number} was written twice")
        if any(self._facts.segments.get(segment.ledger_id) != segment.number for segment in page.segments):
            self._facts.fail("L3", f"page {page.number} names {page.segments}, and the log never did")
        self._facts.pages[page.number] = page

    def page_deleted(self, page: LogPage) -> None:
        """A page was deleted: the log needs none of it (L3)."""
        del self._facts.pages[page.number]
        assert self._facts.log is not None
        if any(self._named(segment.number) is None for segment in self._facts.list):
            self._facts.fail("L3", f"page {page.number} was deleted, and the log needs it")

    def page_lacks(self, expected: int, version: int) -> None:
        """A page exists without some of what somebody wanted to write there: then the log was trimmed meanwhile."""
        if expected == version:
            self._facts.fail("L3", "a page does not hold what the log's record says")

    def took_over(self, ledger_id: int, owner: str) -> None:
        """A takeover serves: it will append to this ledger. All before it is closed (L1)."""
        number = self._facts.segments.get(ledger_id)
        if number is None:
            self._facts.fail("L1", f"{owner} serves ledger {ledger_id}, which the log does not name")
            return
        for other, its_number in self._facts.segments.items():
            truth = self._facts.ledgers[other]
            if its_number < number and truth.record.state is not LedgerState.CLOSED and not truth.deleted:
                self._facts.fail("L1", f"{owner} serves segment {number}, and segment {its_number} is not closed")
        self._facts.served = max(self._facts.served, (number, owner))

    def follower_crosses(self, reader: str, before: int, after: int) -> None:
        """A follower goes on in another segment: it read all before it that is not trimmed (L6, O3)."""
        assert self._facts.log is not None
        if any(before < segment.number < after for segment in self._facts.list):
            self._facts.fail("L6", f"{reader} went from segment {before} to {after}, and there is another between")
        if any(segment.number == before for segment in self._facts.list):
            ledger_id, read = self._facts.progress[reader]
            if read != self._facts.ledgers[ledger_id].last_entry_id:
                self._facts.fail("L6", f"{reader} left segment {before} at entry {read}")

    def progress_of(self, reader: str) -> tuple[int, int]:
        """The position that a follower of the log read last."""
        ledger_id, read = self._facts.progress.get(reader, (0, -1))
        return self._facts.segments.get(ledger_id, -1), read

    def check_leaks(self, ledger_ids: Sequence[int]) -> None:
        """At the end: the log names every ledger that exists (L7)."""
        named = {segment.ledger_id for segment in self._facts.list}
        left = [ledger_id for ledger_id in ledger_ids if ledger_id not in named]
        if left:
            self._facts.fail("L7", f"ledgers {left} exist, and nothing names them: nobody will ever delete them")
        if self._facts.log is not None and self._facts.log.dropped:
            self._facts.fail("L7", f"the log says that ledgers of {self._facts.log.dropped} may exist")

    def check_log(self) -> None:
        """At the end: every leader's records stand in the log without a hole or a repeat, in their order (O4)."""
        for truth in self._facts.ledgers.values():
            if truth.confirmed >= 0 and truth.ledger_id not in self._facts.segments:
                self._facts.fail(
                    "I2", f"{truth.owner} confirmed records in ledger {truth.ledger_id}, which is not in the log"
                )
        seen: dict[str, int] = {}
        for ledger_id, number in sorted(self._facts.segments.items(), key=lambda item: item[1]):
            truth = self._facts.ledgers[ledger_id]
            last = truth.last_entry_id
            if last is None and truth.deleted:  # trimmed before it was closed, when all of it was confirmed
                last = truth.confirmed
            if last is None:
                raise Violation("liveness", f"segment {number} was never closed")
            for entry_id in range(last + 1):
                owner, _, sequence = truth.submitted[entry_id].decode().partition(":")
                expected = seen.get(owner, 0)
                if int(sequence) != expected:
                    self._facts.fail(
                        "O4", f"record {number}:{entry_id} is {owner}'s {sequence}; its {expected} is missing"
                    )
                seen[owner] = expected + 1


def _places(segments: Sequence[Segment]) -> list[tuple[int, int]]:
    return [(segment.number, segment.ledger_id) for segment in segments]
