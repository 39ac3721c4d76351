"""The requests of a member to its shell, in order, beside sending and writing."""

from __future__ import annotations

import attrs

from replog.protocol.consensus.log import Base, LogEntry


@attrs.frozen
class Committed:
    """These entries are committed: apply them, and answer those who wait for them (Q14)."""

    first: int
    entries: tuple[LogEntry, ...]


@attrs.frozen
class CopyTaken:
    """The state that was received replaces what there was: it is that of `base` (Q12)."""

    base: Base


@attrs.frozen
class Elected:
    """This member leads in this term."""

    term: int


@attrs.frozen
class Deposed:
    """This member leads no more: the outcome of what waits to be committed is unknown (Q14), and no read is confirmed."""

    term: int


@attrs.frozen
class ReadsConfirmed:
    """No other leader had committed anything before the reads up to this probe came: look them up now (Q10)."""

    probe: int


@attrs.frozen
class CopyWanted:
    """This member needs entries that were dropped: send it a copy of the state, and then `Member.copy_sent`."""

    name: str


Effect = Committed | CopyTaken | Elected | Deposed | ReadsConfirmed | CopyWanted
