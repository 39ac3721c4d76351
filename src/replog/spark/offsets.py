"""The part of Spark's checkpoint for a stream: for each log, the position to read on from.

Rules:
- A query of one log (`log`) has the place of that log as its offset. A query of many (`logs`) has places by log, and goes on from
  an offset of one of them.
- A log that was found while the query ran has also the position where it began: so a micro-batch that is repeated begins there.
- An offset never loses a log, even if the query does not read it any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from replog.errors import ConfigError, PositionError
from replog.protocol.model import Position
from replog.spark.selection import Selection

Offset = dict[str, Any]


@attrs.frozen
class Place:
    """Where to read on in one log. `deletions` says how often the log was deleted, so another one of the same name is
    known; `lost` describes entries trimmed away unread; `begin` where reading began, of a log that was found later."""

    position: Position
    deletions: int | None
    lost: str | None = None
    begin: Position | None = None

    def as_offset(self) -> Offset:
        """As JSON has it."""
        offset: Offset = {"position": str(self.position), "deletions": self.deletions}
        if self.begin is not None:
            offset["begin"] = str(self.begin)
        return offset if self.lost is None else {**offset, "lost": self.lost}

    @classmethod
    def parse(cls, offset: Mapping[str, Any]) -> Place:
        """Raises KeyError, TypeError, `PositionError`."""
        begin = offset.get("begin")
        position = Position.parse(offset["position"])
        return cls(
            position, offset.get("deletions"), offset.get("lost"), None if begin is None else Position.parse(begin)
        )


def as_offset(places: Mapping[str, Place], selection: Selection) -> Offset:
    """The offset of a query that reads these logs."""
    if not selection.is_many:
        ((name, place),) = places.items()
        return {"log": name, **place.as_offset()}
    # Sorted: Spark compares offsets as texts.
    return {"logs": {name: places[name].as_offset() for name in sorted(places)}}


def places_in(offset: Offset, selection: Selection) -> dict[str, Place]:
    """The places that a checkpoint has. Raises `ConfigError` if it is of another query."""
    try:
        if "logs" in offset:
            places = {name: Place.parse(each) for name, each in offset["logs"].items()}
        else:
            places = {offset["log"]: Place.parse(offset)}
    except (KeyError, TypeError, AttributeError, PositionError):
        raise ConfigError(
            f"the checkpoint's offset {offset!r} is none of this format: give the query its own checkpoint"
        ) from None
    read = [name for name in places if selection.selects(name)]
    # No places: the checkpoint of a pattern that has matched nothing so far.
    if (places and not read) or (not selection.is_many and ("logs" in offset or len(read) != 1)):
        wanted = ", ".join(map(repr, (*selection.names, *selection.patterns)))
        raise ConfigError(
            f"the checkpoint is of log {', '.join(map(repr, places)) or 'patterns'}, and the query reads {wanted}: give it its "
            "own checkpoint"
        )
    return places
