"""Records of logs that several tests write and read."""

from __future__ import annotations

from replog.protocol.closed_contents import Contents
from replog.protocol.model import LogCursor, LogMetadata, LogPage, Position, Segment, Transaction

LOG = LogMetadata(
    name="orders/\N{SNOWMAN}",
    segments=(
        Segment(4, 12_345, 1_763_600_000_000, Contents(142, 9000, 1_763_600_000_005, 1_763_600_100_000)),
        Segment(5, 7, 1_763_600_000_001),
    ),
    first_segment_number=3,
    next_segment_number=6,
    page_segments=2,
    token="another",
    created_at_ms=1_763_500_000_000,
    deletions=1,
    custom={"owner": "me"},
    transactions=(Transaction("nightly \N{SNOWMAN}", 20_261_120, 1_763_500_000_002), Transaction("4711", 0)),
    deleted_before_number=2,
    first_open_number=5,
    dropped=(Segment(2, 4, 1_763_500_000_000),),
    cursors=(LogCursor("billing \N{SNOWMAN}", "c0ffee", Position(4, 2)),),
    trimmed_to=Position(2, 7),
    begun_with_number=2,
)

DELETED_LOG = LOG.deleted(1_763_700_000_000)

PAGE = LogPage(
    LOG.name,
    1,
    (
        Segment(2, 3, 1_763_500_000_000, Contents(7, None, None, 1_763_500_000_400)),
        Segment(3, 900, 1_763_500_000_001, Contents(0, 0)),
    ),
)
