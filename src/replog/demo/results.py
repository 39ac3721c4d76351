"""What an act came to, as data and as JSON."""

from __future__ import annotations

from typing import Any

import attrs

from replog.demo.verdict import Findings


@attrs.frozen
class Takeover:
    """How long each part of a takeover took, in seconds.

    `start_s`: the process, until its bookies were open. `recovery_s`: fencing and closing the last ledgers, a new one, the
    CAS. `replay_s`: reading the whole log. `append_s`: the first append, until it was confirmed."""

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

    `in_flight` are entries of the first leader whose fate was unknown, of which `survived` are in the log. `learnt_s` is
    how long after the takeover began the first leader knew that it is fenced, if it lived."""

    title: str
    confirmed_by_first: int
    in_flight: int
    survived: int
    takeover: Takeover
    first_rate: Rate
    second_rate: Rate
    findings: Findings
    learnt_s: float | None = None
    confirmed_afterwards: int | None = None
    own_faults: tuple[str, ...] = ()

    @property
    def faults(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.own_faults, *self.findings.faults)

    @property
    def entries_per_s(self) -> float:
        """Of both leaders together."""
        both = Rate(
            self.first_rate.entries + self.second_rate.entries, self.first_rate.seconds + self.second_rate.seconds
        )
        return both.entries_per_s

    @property
    def bytes_per_s(self) -> float:
        """The same in payload bytes, by the average entry."""
        return self.entries_per_s * self.findings.read_bytes / max(self.findings.read, 1)

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "title": self.title,
            "passed": not self.faults,
            "faults": list(self.faults),
            "entries_confirmed": self.findings.confirmed,
            "entries_confirmed_by_first_leader": self.confirmed_by_first,
            "entries_in_flight": self.in_flight,
            "entries_in_flight_survived": self.survived,
            "entries_read": self.findings.read,
            "bytes_read": self.findings.read_bytes,
            "sha256_of_input": self.findings.digest_expected,
            "sha256_read": self.findings.digest_read,
            "takeover_s": {"total": self.takeover.total_s, **attrs.asdict(self.takeover)},
            "first_leader_learnt_s": self.learnt_s,
            "entries_confirmed_after_takeover": self.confirmed_afterwards,
            "entries_per_s": self.entries_per_s,
            "bytes_per_s": self.bytes_per_s,
        }
