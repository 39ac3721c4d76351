"""The results of the demonstration, as data: computed from the histories and from the log as it was read back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import attrs

from replog.protocol.model import Position
from replog.testing import Finding
from replog.testing.history import Event


class Evidence:
    """The events of all processes, by time, and the log as it was read back."""

    def __init__(self, events: Sequence[Event], final: Sequence[tuple[Position, str]]) -> None:
        self.final = final
        self._events = events
        self._confirmed = self._of_kind("confirmed")
        self._ended_s = {(each.actor, each.call): each.at_s for each in self._confirmed + self._of_kind("not written")}
        saw = self._of_kind("saw")
        self.followed = len(saw)
        self.behind_s = saw[-1].at_s - self._confirmed[-1].at_s if saw and self._confirmed else 0.0

    def _of_kind(self, kind: str) -> list[Event]:
        return [event for event in self._events if event.kind == kind]

    def confirmed(self, until_s: float = math.inf) -> int:
        """How many entries were confirmed until then."""
        return sum(event.at_s <= until_s for event in self._confirmed)

    def in_flight(self, actor: str, at_s: float) -> set[str]:
        """The payloads that this leader had appended by then, and that were not confirmed yet."""
        return {
            event.payload
            for event in self._of_kind("invoked")
            if event.actor == actor and event.at_s <= at_s <= self._ended_s.get((actor, event.call), math.inf)
        }

    def stalled_s(self, since_s: float, until_s: float) -> float:
        """For how long at most nothing was confirmed, in this span of time."""
        moments = [event.at_s for event in self._confirmed if event.at_s <= until_s]
        return max((after - before for before, after in pairwise(moments) if after >= since_s), default=0.0)

    def rate(self, *actors: str) -> float:
        """Entries a second that were confirmed to these leaders while they appended."""
        moments = [[event.at_s for event in self._confirmed if event.actor == actor] for actor in actors]
        seconds = sum(each[-1] - each[0] for each in moments if each)
        return sum(map(len, moments)) / seconds if seconds > 0 else 0.0


@attrs.frozen
class Act:
    """The notes of an act: the leader to which it happened, and the time; and the leader whose rate is shown.

    `takeover_s` has the parts of a takeover, from starting the process to its first confirmed append.
    `bookie_replaced_s` is the time from a bookie's death until another had its place, `leader_learnt_s` that from a
    leader's waking until it knew that it is fenced, `entries_in_doubt` the first and the last entry that it named then.
    `faults` describe each fault in words."""

    title: str
    leader: str
    at_s: float
    measured: str
    takeover_s: dict[str, float] | None = None
    bookie_replaced_s: float | None = None
    leader_learnt_s: float | None = None
    entries_in_doubt: list[str] | None = None
    faults: tuple[str, ...] = ()


class Result:
    """The whole demonstration. `faults` describe each fault in words: it has passed if there are none."""

    def __init__(self, acts: Sequence[Act], evidence: Evidence, findings: Sequence[Finding]) -> None:
        self._acts = acts
        self._evidence = evidence
        self.log_faults = [str(each) for each in findings]
        self.faults = [f"{act.title}: {fault}" for act in acts for fault in act.faults]
        self.faults += [f"The log: {fault}" for fault in self.log_faults]

    def _act_to_json(self, act: Act, end_s: float) -> dict[str, Any]:
        evidence = self._evidence
        # A leader that is killed or deposed never learns the outcome of these; act two's leader goes on, and does.
        in_flight = evidence.in_flight(act.leader, math.inf if act.takeover_s else act.at_s)
        survived = sum(payload in in_flight for _, payload in evidence.final)
        return {
            "title": act.title,
            "passed": not act.faults,
            "faults": list(act.faults),
            "entries_confirmed": evidence.confirmed(act.at_s),
            "entries_in_flight": len(in_flight),
            "entries_in_flight_survived": survived if act.takeover_s else None,
            "stalled_s": evidence.stalled_s(act.at_s, end_s),
            "takeover_s": act.takeover_s,
            "bookie_replaced_s": act.bookie_replaced_s,
            "leader_learnt_s": act.leader_learnt_s,
            "entries_in_doubt": act.entries_in_doubt,
            "entries_per_s": evidence.rate(act.measured),
        }

    def to_json(self) -> dict[str, Any]:
        """All of it, for programs and for the tables."""
        evidence = self._evidence
        read_bytes = sum(len(payload) for _, payload in evidence.final)
        # Each act's stall is looked for until the next accident, so that no stall counts twice.
        ends_s = [*(act.at_s for act in self._acts[1:]), math.inf]
        rate = evidence.rate(*{act.measured for act in self._acts})
        return {
            "passed": not self.faults,
            "acts": [self._act_to_json(act, end_s) for act, end_s in zip(self._acts, ends_s, strict=True)],
            "log": {
                "passed": not self.log_faults,
                "faults": self.log_faults,
                "entries_confirmed": evidence.confirmed(),
                "entries_read": len(evidence.final),
                "bytes_read": read_bytes,
                "entries_followed": evidence.followed,
                "follower_behind_s": evidence.behind_s,
            },
            "entries_per_s": rate,
            "bytes_per_s": rate * read_bytes / max(len(evidence.final), 1),
        }
