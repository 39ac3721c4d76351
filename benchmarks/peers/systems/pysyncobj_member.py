"""One member of a PySyncObj cluster, and the client within it, driven by lines of JSON:

    python -m benchmarks.peers.systems.pysyncobj_member [--defaults] DIRECTORY OWN_ADDRESS OTHER_ADDRESS...

Each line of standard input is a request, `{"do": NAME, ...}`, for a method of `Member`; each is answered by one line. It ends
with its standard input. All of it runs in one thread, which also ticks, so that the client need not wait for a lock; another
one only reads the lines.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pysyncobj import SyncObj, SyncObjConf, replicated

from benchmarks.figures import Figures, Meter, clock
from benchmarks.peers.pump import SILENCE_S
from benchmarks.peers.system import Latencies, Load, NotMeasured

TICK_S, USUAL_TICK_S = 0.001, 0.05  # ours, and that of a cluster without settings
# It encodes what it sends twice, in a form that makes bytes longer, and compresses it: 64 KiB take 20 ms of CPU time in all.
SETTINGS = {
    "appendEntriesPeriod": 0.002,
    # An entry that is longer than this would go in pieces, the last of which are lost (0.3.17): followers die of it.
    "appendEntriesBatchSizeBytes": 1 << 18,
    "raftMinTimeout": 1.0,  # else a follower that gets many large entries takes its leader for dead
    "raftMaxTimeout": 2.0,
    "connectionRetryTime": 0.1,
    "logCompactionMinEntries": 1 << 20,  # compaction is asked for between two loads
    "commandsQueueSize": 1 << 20,
}
_AGAIN_S = 0.1  # after which an entry that nobody confirmed, since its leader has died, is appended again
_LOG_LEFT_MAX = 1000  # entries that compaction may leave


class Counter(SyncObj):  # type: ignore[misc]
    """What is replicated: how many entries there were, and how many bytes. They are kept in the cluster's log alone."""

    def __init__(self, own: str, others: list[str], settings: SyncObjConf) -> None:
        super().__init__(own, others, settings)
        self.entries = 0
        self.bytes = 0

    @replicated  # type: ignore[untyped-decorator]
    def append(self, data: bytes) -> None:
        """One more."""
        self.entries += 1
        self.bytes += len(data)
        seen_s = Member.seen_s
        if seen_s is not None:
            seen_s.append(clock())


class Member:
    """Does what it is asked for."""

    seen_s: list[float] | None = None  # when entries were applied here, while they are watched

    def __init__(
        self, directory: Path, own: str, others: list[str], requests: queue.SimpleQueue[str], *, is_tuned: bool
    ) -> None:
        files = {"journalFile": str(directory / "journal"), "fullDumpFile": str(directory / "dump")}
        settings: dict[str, Any] = SETTINGS if is_tuned else {}
        self._counter = Counter(own, others, SyncObjConf(autoTick=False, **files, **settings))
        self._tick_s = TICK_S if is_tuned else USUAL_TICK_S
        self._own = own
        self._requests = requests
        self._confirmed = 0
        self._failures: list[int] = []

    def run(self) -> None:
        """Ticks, and does what it is asked for, until there are no more requests."""
        while True:
            try:
                line = self._requests.get_nowait()
            except queue.Empty:
                self._counter.doTick(self._tick_s)
                continue
            if not line:
                return
            request = json.loads(line)
            try:
                answer = getattr(self, request.pop("do"))(**request)
            except NotMeasured as error:
                answer = {"error": str(error)}
            print(json.dumps(answer), flush=True)

    # -- what may be asked ------------------------------------------------------------------------------------------

    def look(self) -> dict[str, Any]:
        """Who leads as far as it knows, what it has, and how many entries of its own client were confirmed."""
        leader = self._counter._getLeader()
        return {
            "leader": str(leader) if leader is not None else "",
            "entries": self._counter.entries,
            "confirmed": self._confirmed,
            "is_ready": bool(self._counter.isReady()),
            "log_length": self._counter.getStatus()["log_len"],
        }

    def append(self, process_ids: list[int], **asked: Any) -> Figures:
        """The figures of `Running.append`, with the CPU time of these other processes and of this one as the servers'. `asked`
        are the fields of a `Load`."""
        load = Load(**asked)
        appending = _Appending(self, load)
        appending.run_for(load.warm_up_s)
        appending.latencies.forget()
        before, meter = self._confirmed, Meter(*process_ids)
        appending.run_for(load.seconds)
        entries = self._confirmed - before
        found = meter.figures(max(1, entries))
        lowest = appending.latencies.lowest_per_s()
        appending.drain()
        cpu = {"client_cpu_us": 0.0, "server_cpu_us": found["total_cpu_us"]}
        return {
            "entries": entries,
            "entries_per_s": found["entries_per_s"],
            **cpu,
            **lowest,
            **appending.latencies.figures(),
        }

    def append_each(self, entry_bytes: int, entries: int) -> list[float]:
        """One after the other. When each was handed in."""
        data, called_s = os.urandom(entry_bytes), list[float]()
        for _ in range(entries):
            called_s.append(clock())
            self._append_one(data)
        return called_s

    def append_for_ever(self, entry_bytes: int) -> None:
        """One after the other, until it is killed. Says now and then how many are confirmed."""
        data = os.urandom(entry_bytes)
        while True:
            self._append_one(data)
            if self._confirmed % 16 == 0:
                print(json.dumps({"confirmed": self._confirmed}), flush=True)

    def confirm_one(self, entry_bytes: int) -> dict[str, float]:
        """Appends an entry until it is confirmed; again, if it goes down with its leader. Says when it was."""
        data, confirmed, deadline = os.urandom(entry_bytes), self._confirmed, clock() + SILENCE_S
        while self._confirmed == confirmed:
            if clock() > deadline:
                raise NotMeasured(f"nobody confirmed an entry within {SILENCE_S:.0f} s")
            self._failures.clear()  # a leader that has gone refuses, or is silent
            self._counter.append(data, callback=self._answered)
            again_at = clock() + _AGAIN_S
            while self._confirmed == confirmed and not self._failures and clock() < again_at:
                self._counter.doTick(self._tick_s)
        self._failures.clear()
        return {"confirmed_s": clock()}

    def watch(self) -> dict[str, int]:
        """From now on it keeps when entries are applied here."""
        Member.seen_s = []
        return {"entries": self._counter.entries}

    def seen(self, entries: int) -> list[float]:
        """When each of so many was applied here, since it watches."""
        seen_s = Member.seen_s
        assert seen_s is not None, "it was told to watch"
        self._tick_until(lambda: len(seen_s) >= entries, f"{entries} entries are applied here")
        Member.seen_s = None
        return seen_s

    def compact(self) -> dict[str, int]:
        """Has it drop its log, and keep the counter."""
        if self._counter.getStatus()["log_len"] > _LOG_LEFT_MAX:
            self._counter.forceLogCompaction()
            self._tick_until(lambda: self._counter.getStatus()["log_len"] <= _LOG_LEFT_MAX, "its log is compacted")
        return {"log_length": self._counter.getStatus()["log_len"]}

    # -- appending --------------------------------------------------------------------------------------------------

    def _append_one(self, data: bytes) -> None:
        after = self._confirmed + 1
        self._put(data)
        self._tick_until(lambda: self._confirmed == after, f"entry {after} is confirmed")

    def _put(self, data: bytes) -> None:
        self._counter.append(data, callback=self._answered)

    def _answered(self, _result: object, failure: int) -> None:
        if failure:
            self._failures.append(failure)
        else:
            self._confirmed += 1

    def _tick(self) -> int:
        """Returns how many entries were confirmed meanwhile."""
        before = self._confirmed
        self._counter.doTick(self._tick_s)
        if self._failures:
            raise NotMeasured(f"an entry was refused, for reason {self._failures[0]} of pysyncobj's FAIL_REASON")
        return self._confirmed - before

    def _tick_until(self, is_so: Callable[[], bool], what: str) -> None:
        deadline = clock() + SILENCE_S
        while not is_so():
            self._tick()
            if clock() > deadline:
                raise NotMeasured(f"not within {SILENCE_S:.0f} s: {what}")


class _Appending:
    """As many as are confirmed are appended anew."""

    def __init__(self, member: Member, load: Load) -> None:
        self.latencies = Latencies()
        self._member = member
        self._data = os.urandom(load.entry_bytes)
        self._wanted = load.in_flight
        self._entries_max = load.entries_max
        self._in_flight = 0

    def run_for(self, seconds: float) -> None:
        """With as much in flight at its end as before."""
        deadline, confirmed = clock() + seconds, 0
        while not confirmed or (confirmed < self._entries_max and clock() < deadline):
            count = self._wanted - self._in_flight
            if count:
                self.latencies.sent(count)
                for _ in range(count):
                    self._member._put(self._data)
                self._in_flight = self._wanted
            confirmed += self._take()

    def drain(self) -> None:
        """Until nothing is in flight."""
        while self._in_flight:
            self._take()

    def _take(self) -> int:
        confirmed = 0
        silent_at = clock() + SILENCE_S
        while not confirmed:
            if clock() > silent_at:
                raise NotMeasured(f"no answer within {SILENCE_S:.0f} s, with {self._in_flight} entries in flight")
            confirmed = self._member._tick()
        self.latencies.confirmed(confirmed)
        self._in_flight -= confirmed
        return confirmed


def _read_lines(requests: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        requests.put(line)
    requests.put("")


def _main(directory: Path, own: str, others: list[str], *, is_tuned: bool) -> None:
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read_lines, args=(requests,), name="requests", daemon=True).start()
    Member(directory, own, others, requests, is_tuned=is_tuned).run()


if __name__ == "__main__":
    are_defaults, *words = (sys.argv[1] == "--defaults", *sys.argv[1:])
    place, own_address, *addresses = words[are_defaults:]
    _main(Path(place), own_address, addresses, is_tuned=not are_defaults)
