"""What one run of the shells has in common: its chance, its trace, who lives, and a task that does things later.

Rules: whatever is drawn comes from a stream of the world, whatever happens is told to its trace, in order. No set of texts
is iterated, no object's address is compared: so a seed has one trace, in any process.
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

from replog.runtime.chance import Chance
from replog.testing.simulating.lockstep import Lockstep

_TICK_S = 0.001
_EPOCH_NS = 1_700_000_000 * 10**9


class World:
    """One run. `transcript` is written to if it is given; `digest` stands for the whole trace."""

    def __init__(self, seed: int, nursery: trio.Nursery, threads: Lockstep, transcript: list[str] | None) -> None:
        self.seed = seed
        self.nursery = nursery  # of what happens by itself: messages under way, servers of the metastore
        self.threads = threads
        self.coverage: Counter[str] = Counter()
        self.dead: dict[str, float] = {}  # processes that were killed, and when
        self.paused: dict[str, None] = {}
        self._transcript = transcript
        self._hash = hashlib.sha256()
        self._context = contextvars.copy_context()
        self._clock = trio.lowlevel.current_clock()
        self._streams: dict[str, random.Random] = {}
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._earlier = trio.Event()
        self._resumed = trio.Event()

    # -- time, chance and what happened ----------------------------------------

    @property
    def now_s(self) -> float:
        """Virtual time, in any thread."""
        return self._clock.current_time()

    def stream(self, name: str) -> random.Random:
        """Random numbers of this thing's own."""
        if name not in self._streams:
            self._streams[name] = random.Random(f"{self.seed} {name}")
        return self._streams[name]

    def chance_of(self, process: str) -> Chance:
        """What the product draws from and looks at in this process: its clock is a little wrong."""
        stream = self.stream(f"chance of {process}")
        wrong_ns = stream.randrange(-(10**9), 10**9)
        return Chance(stream, lambda: _EPOCH_NS + wrong_ns + int(self.now_s * 1e9))

    def tell(self, who: str, what: str) -> None:
        """Something happened: one line of the trace."""
        line = f"{self.now_s:11.6f} {who:8} {what}"
        self._hash.update(line.encode())
        if self._transcript is not None:
            self._transcript.append(line)

    def count(self, situation: str) -> None:
        """Something that must happen now and then, if the runs are to prove anything."""
        self.coverage[situation] += 1

    @property
    def digest(self) -> str:
        """Of the trace so far."""
        return self._hash.hexdigest()

    def due_s(self, delay_s: float) -> float:
        """When something comes that takes so long: at a tick, so that much comes at once, and the seed says in which order."""
        return math.ceil((self.now_s + delay_s) / _TICK_S - 1e-6) * _TICK_S

    def spawn(self, function: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Start what happens outside of all processes, whichever process causes it."""
        self._context.run(self.nursery.start_soon, function, *arguments)

    # -- doing things later ----------------------------------------

    def at(self, due_s: float, action: Callable[[], None]) -> None:
        """Does this then, in the order of the times, and among equal ones of the calls."""
        self._sequence += 1
        heapq.heappush(self._later, (due_s, self._sequence, action))
        if self._later[0][1] == self._sequence:
            self._earlier.set()

    @contextmanager
    def cancelled_after(self, delay_s: float) -> Iterator[trio.CancelScope]:
        """A scope that is cancelled after so long, in the middle of what else happens then: maybe just when what is waited
        for has come. A deadline never does that: it is looked at before anything else happens."""
        with trio.CancelScope() as scope:
            if delay_s <= 0:
                scope.cancel()
            else:
                self.at(self.due_s(delay_s), scope.cancel)
            yield scope

    async def run(self) -> None:
        """Does what is due, until cancelled."""
        while True:
            self._earlier = trio.Event()
            with trio.move_on_at(self._later[0][0] if self._later else math.inf):
                await self._earlier.wait()
            while self._later and self._later[0][0] <= self.now_s:
                heapq.heappop(self._later)[2]()

    # -- processes ----------------------------------------

    def kill(self, process: str) -> None:
        """Nothing of this process reaches anybody any more."""
        self.dead[process] = self.now_s
        self.paused.pop(process, None)
        self.tell(process, "killed")
        self._resumed.set()
        self._resumed = trio.Event()

    def pause(self, process: str) -> None:
        """Nothing of this process reaches anybody, nor anything it, until it goes on: it is stopped, or gray."""
        self.paused[process] = None
        self.tell(process, "stopped")

    def resume(self, process: str) -> None:
        """It goes on."""
        if self.paused.pop(process, 1) is None:
            self.tell(process, "goes on")
            self._resumed.set()
            self._resumed = trio.Event()

    def is_up(self, process: str) -> bool:
        """Whether it is neither dead nor stopped."""
        return process not in self.dead and process not in self.paused

    async def running(self, process: str) -> None:
        """Returns when the process is not stopped."""
        while process in self.paused:
            await self._resumed.wait()
