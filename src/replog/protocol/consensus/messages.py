"""The messages between members. Every message has its sender's term; the transport knows its sender."""

from __future__ import annotations

import attrs

from replog.protocol.consensus.log import Base, LogEntry


@attrs.frozen
class Ask:
    """Would you vote for me in this next term? Asking changes nothing (Q17)."""

    term: int
    next_term: int
    last: int
    last_term: int


@attrs.frozen
class MayAsk:
    """The answer to `Ask`. A no carries the term that the asker lacks."""

    term: int
    next_term: int
    is_granted: bool


@attrs.frozen
class VoteRequest:
    """Vote for me in this term: this is how my log ends (Q3)."""

    term: int
    last: int
    last_term: int


@attrs.frozen
class Vote:
    """The answer to `VoteRequest`: it is on the disk (Q1)."""

    term: int
    is_granted: bool


@attrs.frozen
class Append:
    """The entries behind `previous`, whose term is compared (Q4), and how far the leader has committed. Without entries it is a
    heartbeat. `probe` rises with the questions that its answer confirms (Q10)."""

    term: int
    previous: int
    previous_term: int
    entries: tuple[LogEntry, ...]
    commit: int
    probe: int


@attrs.frozen
class Copy:
    """The state up to the base was sent: take it over (Q12). The state itself travels beside."""

    term: int
    base: Base
    probe: int


@attrs.frozen
class Appended:
    """The answer to `Append` and `Copy`. If `is_matched`, the log is the leader's up to `index`, on the disk (Q2, Q4); otherwise
    the leader goes on from behind `index`."""

    term: int
    is_matched: bool
    index: int
    probe: int


Message = Ask | MayAsk | VoteRequest | Vote | Append | Copy | Appended
