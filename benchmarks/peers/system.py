"""The seam between the runner and the systems: what each does to be measured, and how it tells what it promises.

An adapter is a module of its own in `benchmarks.peers.systems`, with a `SYSTEM`. It brings up the real servers, three of
them where the system is replicated, on free ports of the loopback, and does what the runner asks for by the leanest client.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import attrs

from benchmarks.figures import Figures, clock
from benchmarks.setting import NotMeasured

__all__ = ["Latencies", "Load", "NotMeasured", "Promise", "Running", "System"]

_WARM_UP_SHARE, _WARM_UP_S_MAX = 0.2, 1.0  # of a load's time, before it


@attrs.frozen
class Promise:
    """What is true of an entry when it is confirmed."""

    copies: int  # that exist of each entry in the end
    confirmed_by: int  # so many nodes have it when the writer hears of it
    is_synced: bool  # on those it is on the disk then (fdatasync), and not only in memory
    words: str  # the same for a reader of the table, with the settings that make it so


@attrs.frozen
class Load:
    """Appends of random bytes. `in_flight` entries are sent and not confirmed: for each one that is confirmed another one is
    sent. `entries_per_call` of more than one: the form for many at once, where a system has one (a transaction, a batch)."""

    entry_bytes: int
    in_flight: int
    seconds: float
    entries_per_call: int = 1
    entries_max: int = sys.maxsize  # a replicated one ends when so many are confirmed: a disk is full some day
    is_sustained: bool = False  # what servers do now and then, by their defaults, is not put off until it is over

    @property
    def warm_up_s(self) -> float:
        """What comes before, and does not count."""
        return min(_WARM_UP_S_MAX, self.seconds * _WARM_UP_SHARE)


class Running(Protocol):
    """A system that runs, empty. Each method raises `NotMeasured`, with a sentence that says why, for what the system has no
    form of, and when what it measured was not what was asked for."""

    @property
    def process_ids(self) -> Sequence[int]:
        """Of its servers; none where it is a library within the client's process."""

    def append(self, load: Load) -> Figures:
        """entries, entries_per_s, p50_us, p99_us, p999_us (from sending to hearing that it is confirmed), client_cpu_us and
        server_cpu_us for an entry; of a load of two seconds or more lowest_per_s, the entries that were confirmed in the worst
        of its whole seconds. After a warm-up that does not count (`warm_up_s`)."""

    def scan(self, entry_bytes: int, entries: int) -> Figures:
        """Appends so many entries, then reads them all from the first to the last into the client's memory, as `bytes`
        or what it has instead, and counts them: entries_per_s, client_cpu_us, server_cpu_us."""

    def tail(self, entry_bytes: int, entries: int) -> Figures:
        """Appends one after the other, while a reader in a process or thread of its own follows: from the call of append until
        the entry is in the reader's hand: p50_us, p99_us."""

    def take_over(self, entry_bytes: int) -> Figures:
        """Kills the leader (SIGKILL), one entry at a time being appended, until another one has confirmed an entry: takeover_s.
        The system is whole again when this returns, with all that was confirmed before."""

    def restart(self) -> Figures:
        """Kills all servers (SIGKILL) after what was appended so far, and starts them again: restart_s from then until
        an entry is confirmed; held_bytes, what their directories hold."""


class System(Protocol):
    """Something to measure."""

    name: str  # in commands and results
    title: str  # in tables
    is_replicated: bool  # over three nodes; else it is compared with a log of one bookie in process
    promise: Promise

    def missing(self) -> str | None:
        """What it lacks here, and how to get it; None if it can run."""

    def version(self) -> str:
        """Of the server or the library."""

    def running(self, directory: Path) -> AbstractContextManager[Running]:
        """Starts it with its files below this directory (which is there, and empty), ready for appends; stops it in the end.
        Raises `NotMeasured` with the servers' logs if it does not come up."""


class Latencies:
    """How long entries took, that are sent in groups and confirmed in groups, in order: one group costs as much as one entry.
    Where a system confirms out of order this is still right for the mean, and a little kind to the highest percentiles."""

    def __init__(self) -> None:
        self._sent: deque[list[float]] = deque()  # [when, how many are not confirmed]
        self._took: list[tuple[float, int]] = []  # (seconds, entries)
        self._began = clock()
        self._by_second: Counter[int] = Counter()  # entries, by the whole seconds since then

    def sent(self, entries: int) -> None:
        """So many entries are sent now."""
        self._sent.append([clock(), entries])

    def confirmed(self, entries: int) -> None:
        """The oldest ones are confirmed now."""
        now, left = clock(), entries
        self._by_second[int(now - self._began)] += entries
        while left:
            group = self._sent[0]
            count = min(left, int(group[1]))
            self._took.append((now - group[0], count))
            group[1] -= count
            left -= count
            if not group[1]:
                self._sent.popleft()

    def forget(self) -> None:
        """What was confirmed so far: it was the warm-up."""
        self._took.clear()
        self._by_second.clear()
        self._began = clock()

    def lowest_per_s(self) -> Figures:
        """lowest_per_s: the fewest entries that were confirmed in one of the whole seconds since `forget`, up to now; nothing
        unless there were two of them."""
        whole = int(clock() - self._began)
        return {"lowest_per_s": float(min(self._by_second[each] for each in range(whole)))} if whole > 1 else {}

    def figures(self) -> Figures:
        """Of each entry, not of each group: p50_us, p99_us, p999_us."""
        ordered = sorted(self._took)
        total = sum(count for _, count in ordered)
        return {name: _nth(ordered, total * share) * 1e6 for name, share in _SHARES.items()}


_SHARES = {"p50_us": 0.5, "p99_us": 0.99, "p999_us": 0.999}


def _nth(ordered: Sequence[tuple[float, int]], rank: float) -> float:
    seen = 0
    for took_s, count in ordered:
        seen += count
        if seen > rank:
            return took_s
    raise NotMeasured("no entry was confirmed while it was measured")
