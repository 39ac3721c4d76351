"""What the acts and the reading back came to, as data and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from replog.demo.verdict import Findings


@attrs.frozen
class Takeover:
    """How long each part of a takeover took, in seconds.

    `start_s`: the process, until its client knew the bookies. `recovery_s`: fencing and closing the last ledgers, a new one,
    the CAS. `replay_s`: reading the whole log. `append_s`: the first append, until it was confirmed."""

    start_s: float
    recovery_s: float
    replay_s: float
    append_s: float
    ledgers_recovered: int

    @property
    def total_s(self) -> float:
        """From the decision to the first confirmed append."""
        return self.start_s + self.recovery_s + self.replay_s + self.append_s


@attrs.frozen
class Rate:
    """How fast a leader got entries confirmed."""

    entries: int
    seconds: float

    @property
    def entries_per_s(self) -> float:
        """Entries a second."""
        return self.entries / self.seconds if self.seconds > 0 else 0.0


@attrs.frozen
class ActResult:
    """One act. `faults` are what is wrong, in words: none means that the act passed.

    `confirmed` and `in_flight` are of the moment at which it happened: entries that must not be lost, and those whose fate
    was unknown, of which `survived` are in the log (None: it does not matter). `stalled_s` is how long at most nothing was
    confirmed to anybody. `replaced_s` is how long after a bookie's death another had its place; `learnt_s` how long after
    its waking a leader knew that it is fenced, and `in_doubt` the first and the last entry that it named then."""

    title: str
    confirmed: int
    in_flight: int
    stalled_s: float
    rate: Rate
    survived: int | None = None
    takeover: Takeover | None = None
    replaced_s: float | None = None
    learnt_s: float | None = None
    in_doubt: tuple[str, str] | None = None
    faults: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        takeover = self.takeover
        return {
            "title": self.title,
            "passed": not self.faults,
            "faults": list(self.faults),
            "entries_confirmed": self.confirmed,
            "entries_in_flight": self.in_flight,
            "entries_in_flight_survived": self.survived,
            "stalled_s": self.stalled_s,
            "takeover_s": None if takeover is None else {"total": takeover.total_s, **attrs.asdict(takeover)},
            "bookie_replaced_s": self.replaced_s,
            "leader_learnt_s": self.learnt_s,
            "entries_in_doubt": None if self.in_doubt is None else list(self.in_doubt),
            "entries_per_s": self.rate.entries_per_s,
        }


@attrs.frozen
class Reading:
    """What was read back, and what the follower had read along: `behind_s` after the last entry was confirmed all of it."""

    findings: Findings
    followed: int
    followed_digest: str
    behind_s: float

    @property
    def followers_faults(self) -> tuple[str, ...]:
        """What the follower read differently."""
        found = []
        if self.followed != self.findings.read:
            found.append(f"the follower read {self.followed:,} entries, and {self.findings.read:,} were read back")
        elif self.followed_digest != self.findings.digest_read:
            found.append("the follower read other entries than were read back: the checksums differ")
        return tuple(found)

    @property
    def faults(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.findings.faults, *self.followers_faults)

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "passed": not self.faults,
            "faults": list(self.faults),
            "entries_confirmed": self.findings.confirmed,
            "entries_read": self.findings.read,
            "bytes_read": self.findings.read_bytes,
            "sha256_of_input": self.findings.digest_expected,
            "sha256_read": self.findings.digest_read,
            "entries_followed": self.followed,
            "sha256_followed": self.followed_digest,
            "follower_behind_s": self.behind_s,
        }


@attrs.frozen
class Result:
    """The whole demonstration."""

    acts: Sequence[ActResult]
    reading: Reading

    @property
    def faults(self) -> tuple[str, ...]:
        """All of them, each with where it was found."""
        found = [f"{act.title}: {fault}" for act in self.acts for fault in act.faults]
        return (*found, *(f"The log: {fault}" for fault in self.reading.faults))

    @property
    def entries_per_s(self) -> float:
        """Of all leaders, while they appended."""
        return Rate(
            sum(act.rate.entries for act in self.acts), sum(act.rate.seconds for act in self.acts)
        ).entries_per_s

    @property
    def bytes_per_s(self) -> float:
        """The same in payload bytes, by the average entry."""
        findings = self.reading.findings
        return self.entries_per_s * findings.read_bytes / max(findings.read, 1)

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "passed": not self.faults,
            "acts": [act.to_json() for act in self.acts],
            "log": self.reading.to_json(),
            "entries_per_s": self.entries_per_s,
            "bytes_per_s": self.bytes_per_s,
        }
