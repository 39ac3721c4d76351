"""A bookie's holdings of some entries of a ledger, as text in its answer (F3).

A bookie may leave out entries that it holds: an entry that is missing here may exist, and only a read proves absence.
An answer has a bounded number of ranges and names the entry through which it is complete, so that the rest can be
requested.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import attrs

from replog.errors import RemoteProtocolError
from replog.protocol.messages import DENIALS, RangesRequest, Status

RANGES_MAX = 4096  # in one answer: some 100 KiB

_Range = tuple[int, int, int]  # first entry, last entry, stride
_Damaged = tuple[int, int]  # first entry, last entry


@attrs.frozen
class Holding:
    """The ranges that are held, ascending, up to entry `through`. `denial` says how far the bookie vouches for the rest (B8).
    `damaged` are first and last entry of what is stored and cannot be read; all of that may be more than its place holds."""

    ranges: tuple[_Range, ...]
    through: int
    denial: Status = Status.NO_ENTRY
    damaged: tuple[_Damaged, ...] = ()


def hold(ranges: Iterable[_Range], denial: Status, request: RangesRequest, damaged: Iterable[_Damaged] = ()) -> Holding:
    """The requested part of these ranges and of the damage, as far as one answer takes it."""
    first, through = request.first_entry_id, request.last_entry_id
    found = sorted(each for each in (_within(each, first, through) for each in ranges) if each is not None)
    if len(found) > RANGES_MAX:
        # What begins with the first range that is left out is asked for again.
        through = max(first, found[RANGES_MAX][0] - 1)
        found = [each for each in (_within(each, first, through) for each in found[:RANGES_MAX]) if each is not None]
    parts = sorted(
        (max(start, first), min(end, through)) for start, end in damaged if start <= through and end >= first
    )
    return Holding(tuple(found), through, denial, tuple(parts[:RANGES_MAX]))


def _within(held: _Range, first: int, last: int) -> _Range | None:
    """The part of a range between two entries."""
    start, end, stride = held
    if start < first:
        start += -(-(first - start) // stride) * stride
    if end > last:
        end -= -(-(end - last) // stride) * stride
    return (start, end, stride) if start <= end else None


def encode_holding(holding: Holding) -> str:
    """The text of an answer."""
    found: dict[str, object] = {
        "through": holding.through,
        "denial": int(holding.denial),
        "ranges": holding.ranges,
    }
    if holding.damaged:
        found["damaged"] = holding.damaged
    return json.dumps(found, separators=(",", ":"))


def decode_holding(text: str, request: RangesRequest) -> Holding:
    """Reads the text of an answer to this request. Raises `RemoteProtocolError` for anything else, and nothing else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"an answer about ledger {request.ledger_id} that is not JSON: {error}") from error
    first, last = request.first_entry_id, request.last_entry_id
    try:
        through, denial = found["through"], Status(found["denial"])
        ranges = tuple(_checked(each, first, through) for each in found["ranges"])
        damaged = tuple(_checked((*each, 1), first, through)[:2] for each in found.get("damaged", ()))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise RemoteProtocolError(f"an answer about ledger {request.ledger_id} that says no ranges: {error}") from error
    if (
        type(through) is not int
        or not first <= through <= last
        or denial not in DENIALS
        or max(len(ranges), len(damaged)) > RANGES_MAX
    ):
        raise RemoteProtocolError(
            f"an answer about ledger {request.ledger_id}: {len(ranges)} ranges through {through!r}, {denial.name}"
        )
    return Holding(ranges, through, denial, damaged)


def _checked(held: Any, first: int, through: Any) -> _Range:
    start, end, stride = held
    if any(type(number) is not int for number in (start, end, stride, through)):
        raise ValueError(f"{held!r} is not of whole numbers")
    if stride < 1 or not first <= start <= end <= through or (end - start) % stride:
        raise ValueError(f"{held!r} is not a range within {first} to {through}")
    return start, end, stride
