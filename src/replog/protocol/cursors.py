"""The record of a cursor: how far a log was worked off under one name, and whose turn it is.

The log's record names its cursors (`LogCursor`); each has a record of its own, so that a commit does not touch the log's.
"""

from __future__ import annotations

import attrs

from replog.protocol.model import Position


@attrs.frozen
class CursorRecord:
    """A cursor as it is in the metastore. `begins_at` is the first position that is not committed. `term` is raised by
    each client that acquires the cursor, and `owner` names it, for people. `committed_at_ms` is when it was last
    committed, by that client's clock. `token` names the attempt that wrote this version (M1)."""

    log_name: str
    name: str
    begins_at: Position
    term: int = 0
    owner: str = ""
    committed_at_ms: int = 0
    token: str = ""
