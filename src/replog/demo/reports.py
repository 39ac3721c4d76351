"""What a leader tells the process that watches it: one JSON object a line, each written at once by one system call.

A line is shorter than what a pipe takes as a whole (PIPE_BUF), so a kill leaves no half of one behind a whole one.
"""

from __future__ import annotations

import json
from typing import Any

import attrs
import cattrs

from replog.demo.errors import DemoFailedError
from replog.protocol.model import Position


@attrs.frozen
class Opened:
    """The bookies are open; the log is not taken over yet."""

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


@attrs.frozen
class Closed:
    """The leader has closed the log behind so many entries."""

    entries: int


Report = Opened | TakenOver | Replayed | Confirmed | Closed

_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Opened, TakenOver, Replayed, Confirmed, Closed)}

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
        raise DemoFailedError(f"a leader wrote {line[:200]!r}, which is no report") from error
    return report
