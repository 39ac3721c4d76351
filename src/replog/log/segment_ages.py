"""When the segments of a log ended, by clocks that may be wrong (L3a).

The times in a log's record are by the clocks of its writers. The order of segments is certain, and shows some of the wrong ones:

- Times that lie in the future are wrong. Such a segment is in doubt.
- Where more than a year seems to have passed between two times of segments, or since the last one, a writer's clock was behind,
  unless the log was idle for so long. All segments before are in doubt.
- Where times go back from one segment to the next, one of the two clocks was wrong. The later segment counts as no older than the
  first segment from there on that was created no earlier than the times before. The segment before it stays as long: without it,
  nothing would show that times went back.
- A doubt differs by more than a minute: clocks of machines are never equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise

import attrs

from replog.protocol.model import Segment

_TOLERANCE_MS = 60_000
_IDLE_MAX_MS = 366 * 86_400_000
_ALWAYS_MS = -(1 << 63)  # an empty segment ended before any time


@attrs.frozen
class Doubt:
    """Why the times of a segment cannot be right, and the last segment that this is about."""

    segment: int
    problem: str


class SegmentAges:
    """When each of these segments of one log was sent to its end, at the latest. The last one is written to, and has no end."""

    def __init__(self, segments: Sequence[Segment], now_ms: int) -> None:
        self.doubts: dict[int, Doubt] = {}  # by segment number
        self._ended_ms: dict[int, int | None] = {}
        soon_ms = now_ms + _TOLERANCE_MS
        latest_ms = 0
        goes_back: set[int] = set()
        for place, segment in enumerate(segments[:-1]):
            sent = _sent_ms(segment)
            # Without entries, or while their times are unknown, its creation shows the time of its leader's clock.
            first_ms, last_ms = sent or (segment.created_at_ms, segment.created_at_ms)
            if _is_of_the_future(segment, soon_ms):
                problem = f"by its writer's clock, segment {segment.number} was sent at {_told(last_ms)}, which is in the future"
                self._doubt([segment], problem)
            elif 0 < first_ms < latest_ms - _TOLERANCE_MS:
                goes_back.add(segment.number)
                created_ms = _created_since(segments[place:], latest_ms - _TOLERANCE_MS)
                self._ended_ms[segment.number] = _unsent_ms(segment) if sent is None else created_ms
            elif sent is None:
                self._ended_ms[segment.number] = _unsent_ms(segment)
            else:
                self._ended_ms[segment.number] = last_ms
                latest_ms = max(latest_ms, last_ms)
        self._doubt_before_long_gaps(segments, goes_back, now_ms)
        for segment, following in reversed(list(pairwise(segments))):
            # All that one leader wrote is named together: one command drops it.
            if _is_of_the_future(segment, soon_ms) and _is_of_the_future(following, soon_ms):
                self.doubts[segment.number] = self.doubts.get(following.number, self.doubts[segment.number])
            if following.number in goes_back:
                ends = self._ended_ms[segment.number], self._ended_ms[following.number]
                self._ended_ms[segment.number] = None if ends[0] is None or ends[1] is None else max(ends[0], ends[1])

    def _doubt_before_long_gaps(self, segments: Sequence[Segment], goes_back: set[int], now_ms: int) -> None:
        """Doubts all segments before the last place where more than a year seems to have passed."""
        doubtful, problem, before_ms = 0, "", 0
        for place, segment in enumerate(segments):
            if segment.number in goes_back or _is_of_the_future(segment, now_ms + _TOLERANCE_MS):
                continue
            for time_ms in (segment.created_at_ms, *(_sent_ms(segment) or ())):
                if 0 < before_ms < time_ms - _IDLE_MAX_MS and time_ms <= now_ms + _TOLERANCE_MS:
                    doubtful, problem = place, _gap_told(segment, before_ms, time_ms)
                before_ms = time_ms or before_ms
        if 0 < before_ms < now_ms - _IDLE_MAX_MS:
            doubtful, problem = len(segments) - 1, _gap_told(segments[-1], before_ms, now_ms)
        self._doubt(segments[:doubtful], problem)

    def ended_before(self, segment: Segment, limit_ms: float) -> bool:
        """True if all of a segment is known to have been sent before this time."""
        ended_ms = self._ended_ms.get(segment.number)
        return ended_ms is not None and ended_ms < limit_ms

    def _doubt(self, segments: Sequence[Segment], problem: str) -> None:
        for each in segments:
            self.doubts[each.number] = Doubt(segments[-1].number, problem)
            self._ended_ms[each.number] = None


def _sent_ms(segment: Segment) -> tuple[int, int] | None:
    """When the first and the last entry of a segment were sent; None if it has none, or they are unknown."""
    contents = segment.contents
    if contents is None or not contents.entries or contents.last_sent_ms is None:
        return None
    last_ms = contents.last_sent_ms
    return (last_ms if contents.first_sent_ms is None else contents.first_sent_ms), last_ms


def _is_of_the_future(segment: Segment, soon_ms: int) -> bool:
    sent = _sent_ms(segment)
    return sent is not None and max(sent) > soon_ms


def _unsent_ms(segment: Segment) -> int | None:
    """When a segment ended for which no time is known: always before, if it has no entry; None, if unknown."""
    return _ALWAYS_MS if segment.contents is not None and not segment.contents.entries else None


def _created_since(segments: Sequence[Segment], time_ms: int) -> int | None:
    """When the first of these segments was created that was created at that time or later; None if none was."""
    return next((each.created_at_ms for each in segments if each.created_at_ms >= time_ms), None)


def _gap_told(segment: Segment, before_ms: int, time_ms: int) -> str:
    gap = f"from {_told(before_ms)} to {_told(time_ms)}"
    return f"by its writer's clock, what is before segment {segment.number} is more than a year older than what follows: {gap}"


def _told(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms since 1970"
