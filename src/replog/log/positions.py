"""Positions of many entries, without making an object for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from replog.protocol.model import Position


class Positions(Sequence[Position]):
    """The positions of consecutive entries of one segment; made when they are looked at."""

    __slots__ = ("entries", "segment")

    def __init__(self, segment: int, entries: range) -> None:
        self.segment = segment
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries)

    @overload
    def __getitem__(self, place: int) -> Position: ...

    @overload
    def __getitem__(self, place: slice) -> Positions: ...

    def __getitem__(self, place: int | slice) -> Position | Positions:
        if isinstance(place, slice):
            return Positions(self.segment, self.entries[place])
        return Position(self.segment, self.entries[place])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(Position.__eq__, self, other))

    def __hash__(self) -> int:
        return hash((self.segment, self.entries))

    def __repr__(self) -> str:
        return f"<positions {self[0]} to {self[-1]}>" if self.entries else "<no positions>"
