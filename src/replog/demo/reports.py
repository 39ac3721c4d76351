"""What the processes of leaders and of the follower tell the process that watches them: one JSON object a line, each written
at once by one system call.

A line is shorter than what a pipe takes as a whole (PIPE_BUF), so a kill leaves no half of one behind a whole one. Moments
(`at_s`) are of the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import json
from typing import Any

import attrs
import cattrs

from replog.demo.errors import DemoFailedError
from replog.protocol.model import Position


@attrs.frozen
class Connected:
    """The process runs and has a client; it knows of so many bookies. The log is not taken over yet."""

    bookies: int


@attrs.frozen
class TakenOver:
    """The leader is the log's writer; `recovered` are the ledgers that it fenced and closed for that (L1)."""

    segment: int
    recovered: tuple[int, ...]
    duration_s: float


@attrs.frozen
class Replayed:
    """The leader read the whole log, and goes on behind so many entries."""

    entries: int


@attrs.frozen
class Confirmed:
    """The log's first `entries` entries are confirmed, the last of them stands at `position`; `pushed` are on their way."""

    entries: int
    position: Position
    pushed: int
    at_s: float = 0.0


@attrs.frozen
class BookieReplaced:
    """In the ensemble of the leader's ledger one bookie took the place of another, from this entry on (C3)."""

    first_entry_id: int
    old: str
    new: str
    at_s: float


@attrs.frozen
class Fenced:
    """The leader learnt that it is deposed: the fate of these entries, the first and the last of them, is unknown (L5)."""

    first: Position
    last: Position
    entries: int
    at_s: float


@attrs.frozen
class Closed:
    """The leader has closed the log behind so many entries."""

    entries: int


@attrs.frozen
class Followed:
    """The follower has read the log's first `entries` entries, which have this digest."""

    entries: int
    digest: str
    at_s: float


Report = Connected | TakenOver | Replayed | Confirmed | BookieReplaced | Fenced | Closed | Followed

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (Connected, TakenOver, Replayed, Confirmed, BookieReplaced, Fenced, Closed, Followed)
}

_converter = cattrs.Converter()
_converter.register_unstructure_hook(Position, str)
_converter.register_structure_hook(Position, lambda text, _: Position.parse(text))


def encode(report: Report) -> bytes:
    """One line."""
    return json.dumps({"report": type(report).__name__, **_converter.unstructure(report)}).encode() + b"\n"


def decode(line: bytes) -> Report:
    """Reads a line. Raises `DemoFailedError` for what is no report."""
    try:
        fields = json.loads(line)
        report: Report = _converter.structure(fields, _KINDS[fields["report"]])
    except (ValueError, KeyError, TypeError, cattrs.BaseValidationError) as error:
        raise DemoFailedError(f"a process wrote {line[:200]!r}, which is no report") from error
    return report
