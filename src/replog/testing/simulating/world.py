"""The state that all parts of one simulated run share: random streams, the trace, dead and paused processes, timers.

Rules that give a seed the same trace in every process: all random numbers come from a stream of the world; everything that
happens is added to the trace, in order; no code iterates over a set of texts or compares addresses of objects.
"""

from __future__ import annotations

import contextvars
import hashlib
import heapq
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio

from replog.runtime.entropy import Entropy
from replog.testing.simulating.lockstep import Lockstep

_TICK_S = 0.001
_EPOCH_NS = 1_700_000_000 * 10**9


class _Clocks:
    """Virtual time, and the wall clocks that are set ahead of it or behind it."""

    def __init__(self) -> None:
        self.ahead_s: dict[str, float] = {}  # by process or bookie, without the number of its restart
        self._clock = trio.lowlevel.current_clock()

    @property
    def now_s(self) -> float:
        """Virtual time in seconds; may be read in any thread."""
        return self._clock.current_time()

    def time_ns(self, name: str) -> int:
        """The wall clock of a process or bookie, in ns since the epoch."""
        return _EPOCH_NS + int((self.now_s + self.ahead_s.get(name, 0.0)) * 1e9)


class World:
    """One run. Each line of the trace is appended to `transcript`, if given; `digest` is the hash of all lines."""

    def __init__(self, seed: int, nursery: trio.Nursery, threads: Lockstep, transcript: list[str] | None) -> None:
        self.seed = seed
        self.nursery = nursery  # of tasks outside of all processes: messages under way, calls of the metastore
        self.threads = threads
        self.coverage: Counter[str] = Counter()
        self.dead: dict[str, float] = {}  # killed processes, and when they were killed
        self.paused: dict[str, None] = {}
        self._transcript = transcript
        self._hash = hashlib.sha256()
        self._context = contextvars.copy_context()
        self._clocks = _Clocks()
        self._streams: dict[str, random.Random] = {}
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._nap = trio.CancelScope()  # of `run`, until the first one is due
        self._resumed = trio.Event()

    # -- time, randomness and the trace ----------------------------------------

    @property
    def now_s(self) -> float:
        """Virtual time in seconds; may be read in any thread."""
        return self._clocks.now_s

    def stream(self, name: str) -> random.Random:
        """The random numbers of one part of the run, so that more draws in one part change no other."""
        if name not in self._streams:
            self._streams[name] = random.Random(f"{self.seed} {name}")
        return self._streams[name]

    def entropy_of(self, process: str) -> Entropy:
        """The clock and the randomness of one process. Its clock is up to a second wrong."""
        stream = self.stream(f"chance of {process}")
        # Clocks of machines disagree: code that compares times of two processes must show it.
        wrong_ns = stream.randrange(-(10**9), 10**9)
        return Entropy(stream, lambda: wrong_ns + self._clocks.time_ns(process.partition(".")[0]))

    def set_clock(self, name: str, ahead_s: float) -> None:
        """Set the wall clock of a process, through all its restarts, or of a bookie: so much ahead of the time; behind it, if
        negative. Its monotonic clock goes on."""
        self.tell(name, f"has its clock set to {ahead_s:+g} s")
        self._clocks.ahead_s[name] = ahead_s

    def tell(self, who: str, what: str) -> None:
        """Add one line to the trace."""
        line = f"{self.now_s:11.6f} {who:8} {what}"
        self._hash.update(line.encode())
        if self._transcript is not None:
            self._transcript.append(line)

    def count(self, situation: str) -> None:
        """Count a situation, so that tests can check that it occurs."""
        self.coverage[situation] += 1

    @property
    def digest(self) -> str:
        """The hash of the trace so far."""
        return self._hash.hexdigest()

    def due_s(self, delay_s: float) -> float:
        """The time after a delay, rounded up to a tick: then much happens at the same time, in an order that the seed decides."""
        return math.ceil((self.now_s + delay_s) / _TICK_S - 1e-6) * _TICK_S

    def spawn(self, function: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Start a task that belongs to no process, even if a task of a process calls this."""
        # In the world's own context: a task started in a process's context would be frozen with that process.
        self._context.run(self.nursery.start_soon, function, *arguments)

    # -- doing things later ----------------------------------------

    def at(self, due_s: float, action: Callable[[], None]) -> None:
        """Call the action at this time. Actions of the same time are called in the order in which they were given."""
        self._sequence += 1
        heapq.heappush(self._later, (due_s, self._sequence, action))
        # It is due before all others: the task that waits for the first one must wait for this one instead.
        if self._later[0][1] == self._sequence:
            self._nap.deadline = due_s

    @contextmanager
    def cancelled_after(self, delay_s: float) -> Iterator[trio.CancelScope]:
        """A cancel scope that is cancelled after a delay, in between everything else that happens at that time.

        So it may be cancelled in the same tick in which the awaited event happens. A deadline of trio never is: trio looks at
        deadlines before it runs tasks."""
        with trio.CancelScope() as scope:
            if delay_s <= 0:
                scope.cancel()
            else:
                self.at(self.due_s(delay_s), scope.cancel)
            yield scope

    async def run(self) -> None:
        """Call actions when they are due, until cancelled."""
        while True:
            self._nap = trio.CancelScope(deadline=self._later[0][0] if self._later else math.inf)
            with self._nap:
                await trio.sleep_forever()
            while self._later and self._later[0][0] <= self.now_s:
                heapq.heappop(self._later)[2]()

    # -- processes ----------------------------------------

    def kill(self, process: str) -> None:
        """Mark a process as dead: nothing that it does reaches others."""
        self.dead[process] = self.now_s
        self.paused.pop(process, None)
        self.tell(process, "killed")
        self._resumed.set()
        self._resumed = trio.Event()

    def pause(self, process: str) -> None:
        """Mark a process as paused: it neither sends nor receives until `resume`."""
        self.paused[process] = None
        self.tell(process, "stopped")

    def resume(self, process: str) -> None:
        """End a pause; a process that is not paused stays as it is."""
        if self.paused.pop(process, 1) is None:
            self.tell(process, "goes on")
            self._resumed.set()
            self._resumed = trio.Event()

    def is_up(self, process: str) -> bool:
        """True if the process is neither dead nor paused."""
        return process not in self.dead and process not in self.paused

    async def running(self, process: str) -> None:
        """Wait until the process is not paused."""
        while process in self.paused:
            await self._resumed.wait()
