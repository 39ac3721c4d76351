"""Turns repeated summaries of logs into rows. Pure: the caller says what time it is.

A rate is what was appended between two summaries, where both say it: otherwise it is unknown.
"""

from __future__ import annotations

import attrs

from replog.log.log_looks import LogListing
from replog.log.log_summaries import CursorLag, LogSummary


@attrs.frozen(kw_only=True)
class LogRow:
    """One log. `summary` is None while nobody knows anything of it; `problem` says why the last look failed."""

    name: str
    summary: LogSummary | None = None
    entries_rate: float | None = None  # per second
    absent_bookies: int | None = None  # that it is written to, and that are not announced
    problem: str = ""

    @property
    def state(self) -> str:
        """The state of its last ledger, in a word."""
        if self.summary is None or self.summary.state is None:
            return "unknown"
        return self.summary.state.value

    @property
    def lag(self) -> CursorLag:
        """How far its slowest cursor is behind; all None without cursors, or if it is unknown."""
        slowest = None if self.summary is None else self.summary.slowest_cursor
        if self.summary is None or slowest is None:
            return CursorLag()
        return self.summary.lags[slowest.name]


class Logs:
    """What is known of logs, from what polls have found. `problem` says why nobody knows which logs there are."""

    def __init__(self) -> None:
        self.problem = ""
        self.left_out = 0  # how many logs are not looked at
        self._bookies: frozenset[str] | None = None
        self._rows: dict[str, LogRow] = {}
        self._looked_s: dict[str, float] = {}

    def listed(self, listing: LogListing) -> None:
        """These are the logs that are looked at, of all that there are."""
        self.problem, self.left_out, self._bookies = "", listing.left_out, listing.bookies
        self._rows = {name: self._rows.get(name, LogRow(name=name)) for name in listing.names}
        self._looked_s = {name: at_s for name, at_s in self._looked_s.items() if name in self._rows}

    def summarized(self, summary: LogSummary, now_s: float) -> None:
        """A log holds this now."""
        name = summary.metadata.name
        before = self._rows.get(name)
        if before is None:
            return  # it vanished from the list meanwhile
        rate = None
        if before.summary is not None:
            appended, seconds = summary.appended_since(before.summary), now_s - self._looked_s[name]
            rate = None if appended is None or seconds <= 0 else appended.entries / seconds
        absent = summary.absent_bookies(self._bookies)
        self._rows[name] = LogRow(
            name=name, summary=summary, entries_rate=rate, absent_bookies=absent, problem=summary.problem or ""
        )
        self._looked_s[name] = now_s

    def failed(self, name: str, problem: str) -> None:
        """A log could not be looked at. What was known of it stays."""
        if name in self._rows:
            self._rows[name] = attrs.evolve(self._rows[name], entries_rate=None, problem=problem)

    def rows(self) -> list[LogRow]:
        """All of them, by name."""
        return [self._rows[name] for name in sorted(self._rows)]
