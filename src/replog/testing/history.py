"""Histories of a run's processes, and a checker of the guarantees of a replicated log.

Each process writes its own file, one line for each event, each with one write: a process that is killed leaves a readable file,
at worst with an incomplete last line. Times are of CLOCK_MONOTONIC, which all processes of a machine share. "invoked" is
written before an append begins, "confirmed" after it has returned. So if the files say that one append was confirmed before
another one was invoked, then it was so.

`check_history` is a pure function from histories to findings. `RULES` lists what it checks, and the protocol's rules behind that.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import attrs

from replog.protocol.model import Position

_FINDINGS_MAX = 5  # reported of each rule


class HistoryError(ValueError):
    """A history that no log can cause: it was not recorded as `History` demands. Retry: no, fix the recording."""


@attrs.frozen
class Event:
    """One line of a history. `actor` is a writer from one takeover to the next, or a reader from one `read_log` to the next."""

    at_s: float
    actor: str
    kind: str
    call: int = -1
    payload: str = ""
    position: Position | None = None
    segment: int = 0
    detail: str = ""


class History:
    """The file in which a process records what it does and sees. Each call makes one write, before it returns.

    `actor` names a writer from one takeover to the next, or a reader from one `read_log` to the next: a process that takes over
    again, or opens another reader, is another actor. Its appends are numbered in the order in which they are made. Payloads
    must be unique in the whole run.
    """

    def __init__(self, path: str | os.PathLike[str], actor: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.actor = actor
        self._clock = clock
        self._calls = 0
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def _write(self, kind: str, **details: object) -> None:
        line = json.dumps({"at_s": self._clock(), "actor": self.actor, "kind": kind, **details})
        os.write(self._file, line.encode() + b"\n")

    # -- writers --------------------------------------------------------------------------------------------------

    def takeover_began(self) -> None:
        """Record that the actor is about to take over."""
        self._write("takeover began")

    def served(self, segment: int) -> None:
        """Record that the actor has taken over, and appends to this segment first."""
        self._write("served", segment=segment)

    def invoked(self, payload: str) -> int:
        """Record that the actor appends this right after; return the number of the append."""
        self._calls += 1
        # Written before the append is made: a crash in between looks like an append without an answer, which is true.
        self._write("invoked", call=self._calls, payload=payload)
        return self._calls

    def confirmed(self, call: int, position: Position) -> None:
        """Record that the append has returned this position."""
        self._write("confirmed", call=call, position=str(position))

    def unknown(self, call: int, error: BaseException) -> None:
        """Record that the append has raised an error that leaves its outcome unknown."""
        self._write("unknown", call=call, detail=f"{type(error).__name__}: {error}")

    def not_written(self, call: int, error: BaseException) -> None:
        """Record that the append has raised an error that says that nothing was written."""
        self._write("not written", call=call, detail=f"{type(error).__name__}: {error}")

    def fenced(self, error: BaseException) -> None:
        """Record that the actor has learned that it is deposed."""
        self._write("fenced", detail=f"{type(error).__name__}: {error}")

    # -- readers and others -----------------------------------------------------------------------------------------

    def reading(self, after: Position | None) -> None:
        """Record that the actor begins to read, from the beginning or after this position."""
        self._write("reading", position=None if after is None else str(after))

    def saw(self, position: Position, payload: str) -> None:
        """Record that the actor has read this."""
        self._write("saw", position=str(position), payload=payload)

    def note(self, detail: str) -> None:
        """Record something that is not checked: a fault, its end, an error."""
        self._write("note", detail=detail)

    def close(self) -> None:
        """Close the file. Closing twice is allowed."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def read_histories(paths: Iterable[str | os.PathLike[str]]) -> list[Event]:
    """Read the events of several files, ordered by time. Skips incomplete last lines; raises `HistoryError` for other damage."""
    events: list[Event] = []
    for path in paths:
        lines = Path(path).read_bytes().split(b"\n")
        # What follows the last newline: nothing, or an incomplete line.
        lines.pop()
        for number, line in enumerate(lines, 1):
            try:
                events.append(parse_event(line))
            except HistoryError as error:
                raise HistoryError(f"{path}, line {number}: {error}") from error
    return sorted(events, key=lambda event: event.at_s)  # stable: keeps the order within one file


def parse_event(line: bytes) -> Event:
    """Parse one line, without its newline. Raises `HistoryError`."""
    try:
        found: dict[str, Any] = json.loads(line)
        position = found.get("position")
        return Event(**{**found, "position": None if position is None else Position.parse(position)})
    except (ValueError, TypeError) as error:
        raise HistoryError(str(error)) from error


# -- judging ------------------------------------------------------------------------------------------------------


@attrs.frozen
class Finding:
    """One way in which a rule was broken."""

    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


@attrs.define
class _Append:
    """One append, and its outcome."""

    actor: str
    call: int
    payload: str
    invoked_s: float
    outcome: str = "unheard"
    ended_s: float = float("inf")
    position: Position | None = None  # that the append returned

    def __str__(self) -> str:
        return f"append {self.call} of {self.actor} ({self.payload!r})"


@attrs.define
class _Term:
    """One writer, from one takeover to the next."""

    actor: str
    began_s: float = float("inf")
    served_s: float = float("inf")
    fenced_s: float = float("inf")
    segment: int = 0
    appends: list[_Append] = attrs.Factory(list)


class _Case:
    """The events and the final log, in a form that rules can query."""

    def __init__(self, events: Sequence[Event], final: Sequence[tuple[Position, str]]) -> None:
        self.final = final
        self.places: dict[str, Position] = {}  # the first position of each payload in the final log
        self.contents = dict(final)
        self.terms: dict[str, _Term] = {}
        self.sessions: dict[str, list[Event]] = defaultdict(list)
        self.appends: dict[str, _Append] = {}
        for position, payload in final:
            self.places.setdefault(payload, position)
        for event in events:
            self._take(event)

    def _take(self, event: Event) -> None:
        if event.kind in ("reading", "saw"):
            if (event.kind == "reading") == bool(self.sessions[event.actor]):
                raise HistoryError(f"{event.actor} must record `reading` once, before `saw`")
            self.sessions[event.actor].append(event)
        elif event.kind == "invoked":
            append = _Append(event.actor, event.call, event.payload, event.at_s)
            if event.payload in self.appends:
                raise HistoryError(f"{append} has a payload that was appended before")
            calls = self._term(event).appends
            if event.call != len(calls) + 1:
                raise HistoryError(f"{append} is call number {len(calls) + 1} of its actor")
            self.appends[event.payload] = append
            calls.append(append)
        elif event.kind in ("confirmed", "unknown", "not written"):
            self._end(event)
        elif event.kind in ("takeover began", "served", "fenced"):
            name = {"takeover began": "began_s"}.get(event.kind, f"{event.kind}_s")
            if getattr(self._term(event), name) != float("inf"):
                raise HistoryError(f"{event.actor} has {event.kind!r} twice: each takeover must be another actor")
            setattr(self._term(event), name, event.at_s)
            self._term(event).segment = event.segment or self._term(event).segment
        elif event.kind != "note":
            raise HistoryError(f"unknown event {event.kind!r}")

    def _end(self, event: Event) -> None:
        calls = self._term(event).appends
        if not 1 <= event.call <= len(calls) or calls[event.call - 1].outcome != "unheard":
            raise HistoryError(f"call {event.call} of {event.actor} ended, and was not running")
        append = calls[event.call - 1]
        append.outcome, append.ended_s, append.position = event.kind, event.at_s, event.position

    def _term(self, event: Event) -> _Term:
        return self.terms.setdefault(event.actor, _Term(event.actor))

    def confirmed(self) -> Iterator[_Append]:
        return (append for append in self.appends.values() if append.outcome == "confirmed")

    def terms_that_served(self) -> list[_Term]:
        """All writers that served, in the order of their takeovers, which is the order of their segments (L1)."""
        served = (term for term in self.terms.values() if term.served_s != float("inf"))
        return sorted(served, key=lambda term: term.segment)


def _lost(case: _Case) -> Iterator[str]:
    for append in case.confirmed():
        assert append.position is not None
        found = case.contents.get(append.position)
        if found != append.payload:
            place = case.places.get(append.payload)
            there = "nothing" if found is None else repr(found)
            where = "is nowhere" if place is None else f"is at {place}"
            yield f"{append} was confirmed at {append.position}, where there is {there}; it {where}"


def _twice(case: _Case) -> Iterator[str]:
    for payload, times in Counter(payload for _, payload in case.final).items():
        if times > 1:
            yield f"{payload!r} is in the log {times} times"
    for position, times in Counter(position for position, _ in case.final).items():
        if times > 1:
            yield f"{position} was read {times} times"


def _foreign(case: _Case) -> Iterator[str]:
    for position, payload in case.final:
        append = case.appends.get(payload)
        if append is None:
            yield f"{payload!r} at {position} was never appended"
        elif append.outcome == "not written":
            yield f"{append} is at {position}, and it was said that it is not written"


def _order(case: _Case) -> Iterator[str]:
    for before, after in zip(case.final, case.final[1:], strict=False):
        if before[0] >= after[0]:
            yield f"{after[0]} was read after {before[0]}"
    for term in case.terms.values():
        last: _Append | None = None
        for append in term.appends:
            place = case.places.get(append.payload)
            if place is None:
                continue
            if last is not None and place < case.places[last.payload]:
                yield f"{append} is at {place}, before {last} at {case.places[last.payload]}"
            last = append


def _hole(case: _Case) -> Iterator[str]:
    for term in case.terms.values():
        # Entries of one writer are confirmed in order (W2), so that what survives of them is a prefix: no hole.
        missing: _Append | None = None
        for append in term.appends:
            if append.payload in case.places:
                if missing is not None:
                    yield f"{append} is in the log, and {missing} before it is not"
                    break
            elif missing is None and append.outcome != "not written":
                missing = append


def _real_time(case: _Case) -> Iterator[str]:
    """In order of time: each append must be in the log after everything that was confirmed before it was invoked."""
    ended = sorted(case.confirmed(), key=lambda append: append.ended_s)
    furthest: _Append | None = None
    number = 0
    for append in sorted(case.appends.values(), key=lambda append: append.invoked_s):
        # Both lists are walked once, in order of time, instead of comparing each append with all others.
        while number < len(ended) and ended[number].ended_s < append.invoked_s:
            each = ended[number]
            if each.payload in case.places and (
                furthest is None or case.places[each.payload] > case.places[furthest.payload]
            ):
                furthest = each
            number += 1
        place = case.places.get(append.payload)
        if place is not None and furthest is not None and place <= case.places[furthest.payload]:
            where = case.places[furthest.payload]
            yield f"{append} is at {place}, and began after {furthest} was confirmed, which is at {where}"


def _deposed(case: _Case) -> Iterator[str]:
    next_s = float("inf")
    for term in reversed(case.terms_that_served()):
        for append in term.appends:
            if append.outcome == "confirmed" and append.invoked_s > term.fenced_s:
                yield f"{append} began after {term.actor} had learned that it is fenced, and was confirmed"
            elif append.outcome == "confirmed" and append.invoked_s > next_s:
                yield f"{append} began after another writer had taken over, and was confirmed"
        # Backwards over the takeovers: an append must end before the *first* of all that followed has served.
        next_s = min(next_s, term.served_s)
    furthest: tuple[Position, str] | None = None
    for term in case.terms_that_served():
        places = [case.places[append.payload] for append in term.appends if append.payload in case.places]
        if places and furthest is not None and min(places) < furthest[0]:
            yield f"{term.actor} has an entry at {min(places)}, before {furthest[0]} of {furthest[1]}, whom it deposed"
        if places:
            furthest = max(places), term.actor
    for term in case.terms.values():
        if term.served_s == float("inf") and term.appends:
            yield f"{term.actor} appended, and never served"


def _readers(case: _Case) -> Iterator[str]:
    numbers = {position: number for number, (position, _) in enumerate(case.final)}
    for actor, events in case.sessions.items():
        after = events[0].position
        expected = 0 if after is None else numbers.get(after, -2) + 1
        if expected < 0:
            yield f"{actor} reads after {after}, which is not in the log"
            continue
        for event in events[1:]:
            assert event.position is not None
            number = numbers.get(event.position)
            if number is None:
                yield f"{actor} saw {event.payload!r} at {event.position}, which is not in the log"
                break
            if case.final[number][1] != event.payload:
                yield f"{actor} saw {event.payload!r} at {event.position}, where {case.final[number][1]!r} is"
                break
            if number != expected:
                due = case.final[expected][0] if expected < len(case.final) else "the end"
                yield f"{actor} saw {event.position} when {due} was next: {'a gap' if number > expected else 'again'}"
                break
            append = case.appends.get(event.payload)
            if append is not None and event.at_s < append.invoked_s:
                yield f"{actor} saw {append} before it was appended"
                break
            expected += 1


RULES: Mapping[str, tuple[str, Callable[[_Case], Iterator[str]]]] = {
    "lost": ("what was confirmed is in the log, at its position, unchanged (W2, B1, R4)", _lost),
    "twice": ("nothing is in the log twice, whatever its outcome (W4)", _twice),
    "foreign": ("nothing is in the log that was not appended, or was said not to be written (T3, W4)", _foreign),
    "order": ("the log has one order, and each writer's appends are in the order of its calls (L2, L4)", _order),
    "hole": ("the log has a prefix of each writer's appends, without a hole (W2, L2)", _hole),
    "real time": (
        "what was invoked after something was confirmed comes after it in the log, whoever the writers (W2, L1)",
        _real_time,
    ),
    "deposed": (
        "nothing invoked after the next writer served is confirmed, or comes after that writer's entries (L5)",
        _deposed,
    ),
    "readers": ("readers see the log as it is: no gap, no duplicate, nothing that is not in it (D3, L6)", _readers),
}


def check_history(events: Sequence[Event], final: Sequence[tuple[Position, str]]) -> list[Finding]:
    """Check the events against the final log; return the faults, at most a few of each rule.

    `final` is the whole log, read in the end after a takeover. An append whose process died before it returned has an unknown
    outcome. Raises `HistoryError` if the history is impossible: an append that ended without beginning, a payload used twice."""
    case = _Case(events, final)
    findings = []
    for rule, (_, broken) in RULES.items():
        for number, text in enumerate(broken(case)):
            if number == _FINDINGS_MAX:
                findings.append(Finding(rule, "and more"))
                break
            findings.append(Finding(rule, text))
    return findings


# -- latencies ----------------------------------------------------------------------------------------------------


def latencies_s(events: Sequence[Event], begin_s: float = 0.0, end_s: float = float("inf")) -> list[float]:
    """Latencies of the confirmed appends that were invoked in this span of time, in seconds, ascending."""
    invoked: dict[tuple[str, int], float] = {}
    found = []
    for event in events:
        if event.kind == "invoked" and begin_s <= event.at_s < end_s:
            invoked[event.actor, event.call] = event.at_s
        elif event.kind == "confirmed" and (event.actor, event.call) in invoked:
            found.append(event.at_s - invoked[event.actor, event.call])
    return sorted(found)


def quantile(ascending: Sequence[float], part: float) -> float:
    """The value below which this part of the values is: 0.99 for the p99. Raises `ValueError` if there are none."""
    if not ascending:
        raise ValueError("no appends were confirmed in this span of time")
    return ascending[min(len(ascending) - 1, int(len(ascending) * part))]
