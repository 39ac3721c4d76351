"""The simulated world: a heap of events in integer time, and a network that loses, doubles, delays and reorders.

Rules: nothing here or in what runs here asks a clock or a shared random stream; every event comes from the heap; an
event runs to its end before the next. So a plan has one trace, in any process, whatever the hash seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from tests.simulator.plan import KIND_NUMBERS, MASK, Fault, Plan, mix, node_number

Action = Callable[..., None]
_RATE_BITS = 10


class Node:
    """Somebody who can be reached: a bookie, the metastore, a client. A paused one does everything later, in order; a
    dead one nothing."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.number = node_number(name)
        self.alive = True
        self.paused = False
        self.changes_left: int | None = None  # to what the metastore has, before it dies
        self._backlog: list[tuple[Action, tuple[Any, ...]]] = []

    def after(self, delay: int, action: Action, *arguments: Any) -> None:
        """Does something later, if still alive."""
        self.world.at(delay, self.wake, action, arguments)

    def wake(self, action: Action, arguments: tuple[Any, ...]) -> None:
        """Does something now, or when the pause ends."""
        if self.paused:
            self._backlog.append((action, arguments))
        elif self.alive:
            action(*arguments)

    def changed_something(self) -> None:
        """A change that it asked for was made: some die right then, before they learn of it."""
        if self.changes_left is not None and self.alive:
            self.changes_left -= 1
            if self.changes_left <= 0:
                self.alive = False
                self.world.count("client died right after a change of the metadata")
                self.world.tell(f"{self.name}: dies after its change")

    def pause(self, duration: int) -> None:
        """Stops until the duration has passed: long enough for every deadline to be missed."""
        self.paused = True
        self.world.at(duration, self.resume)

    def resume(self) -> None:
        """Goes on, with all that came meanwhile."""
        backlog, self._backlog = self._backlog, []
        self.paused = False
        for action, arguments in backlog:
            self.wake(action, arguments)


class World:
    """Time, chance and the network of one run."""

    def __init__(self, plan: Plan, transcript: list[str] | None = None) -> None:
        self.plan = plan
        self.rates = plan.rates
        self.now = 0
        self.steps = 0
        self.trace = plan.seed & MASK
        self.faulty = True
        self.coverage: Counter[str] = Counter()
        self.transcript = transcript
        self.suffered: list[Fault] = []
        self._given = None if plan.faults is None else {fault.key: fault for fault in plan.faults}
        self._heap: list[tuple[int, int, Action, tuple[Any, ...]]] = []
        self._sequence = 0
        self._counts: dict[int, int] = {}
        self._salt = mix(plan.seed)
        self._cuts: dict[tuple[int, int], int] = {}  # one-way, counted: cuts may overlap

    # -- time ----------------------------------------------------------------------------------------------------

    @property
    def wall_ms(self) -> int:
        """The wall clock of whoever looks: from one moment to the next it jumps by years. No rule depends on it (M3)."""
        return self.now * 2_654_435_761 % (1 << 41)

    def at(self, delay: int, action: Action, *arguments: Any) -> None:
        """Puts an event on the heap."""
        self._sequence += 1
        heappush(self._heap, (self.now + delay, self._sequence, action, arguments))

    def step(self) -> bool:
        """Runs the next event. False if there is none."""
        if not self._heap:
            return False
        now, _, action, arguments = heappop(self._heap)
        self.now = now
        self.steps += 1
        self.trace = ((self.trace ^ now) * 0x100000001B3) & MASK
        action(*arguments)
        return True

    @property
    def next_time(self) -> int | None:
        """When the next event is due."""
        return self._heap[0][0] if self._heap else None

    def tell(self, line: str) -> None:
        """A line of the conversation. Ask `transcript` first: building lines costs."""
        if self.transcript is not None:
            self.transcript.append(f"{self.now:>6} {line}")

    def count(self, situation: str) -> None:
        """Something interesting happened."""
        self.coverage[situation] += 1

    # -- chance --------------------------------------------------------------------------------------------------

    def draw(self, source: int, target: int, kind: str, subject: int) -> tuple[int, int]:
        """64 random bits of this thing's own, and how often it happened before."""
        key = source | target << 12 | KIND_NUMBERS[kind] << 24 | subject << 32
        count = self._counts.get(key, 0)
        self._counts[key] = count + 1
        bits = mix(self._salt ^ (key | count << 54))
        self.trace ^= bits
        return bits, count

    def fault(self, effect: str, rate: int, source: int, target: int, kind: str, subject: int) -> Fault | None:
        """Whether this fault happens to a thing that suffers only one kind of it (a sync, a choice)."""
        if not self.faulty:
            return None
        bits, count = self.draw(source, target, kind, subject)
        if self._given is not None:
            given = self._given.get((source, target, kind, subject, count))
            return self._suffer(given) if given is not None and given.effect == effect else None
        if bits & 1023 >= rate:
            return None
        return self._suffer(Fault(effect, source, target, kind, subject, count, 64 + (bits >> 20) % 1500))

    def _suffer(self, fault: Fault) -> Fault:
        self.suffered.append(fault)
        if self.transcript is not None:
            self.tell(f"fault: {fault}")
        self.coverage[f"fault: {fault.effect}"] += 1
        return fault

    # -- the network ---------------------------------------------------------------------------------------------

    def cut(self, source: int, target: int, duration: int) -> None:
        """Nothing passes this way any more, for a while."""
        key = (source, target)
        self._cuts[key] = self._cuts.get(key, 0) + 1
        self.at(duration, self._mend, key)

    def _mend(self, key: tuple[int, int]) -> None:
        self._cuts[key] -= 1
        if not self._cuts[key]:
            del self._cuts[key]

    def transmit(self, source: Node, target: Node, kind: str, subject: int, action: Action, *arguments: Any) -> None:
        """Sends a message, which may arrive late, never, or twice. `kind` is one of `REQUESTS`, or its answer."""
        bits, count = self.draw(source.number, target.number, kind, subject)
        delay = 1 + (bits >> 30) % self.rates.spread
        if self.faulty:
            if self._cuts and (source.number, target.number) in self._cuts:
                self.coverage["message stopped by a partition"] += 1
                return
            fault = self._message_fault(bits, count, source.number, target.number, kind, subject)
            if fault is not None:
                if fault.effect == "lose":
                    return
                if fault.effect == "delay":
                    delay += fault.amount
                else:
                    target.after(delay + fault.amount, action, *arguments)
        target.after(delay, action, *arguments)

    def _message_fault(self, bits: int, count: int, source: int, target: int, kind: str, subject: int) -> Fault | None:
        if self._given is not None:
            given = self._given.get((source, target, kind, subject, count))
            return self._suffer(given) if given is not None and given.effect in _MESSAGE_EFFECTS else None
        rates = self.rates
        chance = bits & 1023
        if rates.holes and kind == "add" and (bits >> 40) & 1023 < rates.holes:
            return self._suffer(Fault("lose", source, target, kind, subject, count))
        metastore = target == _METASTORE or source == _METASTORE
        lost, delayed = (rates.metastore_lost, rates.metastore_delayed) if metastore else (rates.lost, rates.delayed)
        if chance < lost:
            return self._suffer(Fault("lose", source, target, kind, subject, count))
        if chance >= lost + delayed + rates.duplicated:
            return None
        amount = 8 + ((bits >> 10) & 1023) * (1 << (4 + ((bits >> 20) & 1023) % (rates.delay_bits - 3))) // 1024
        if chance < lost + delayed:
            return self._suffer(Fault("delay", source, target, kind, subject, count, amount))
        if chance < lost + delayed + rates.duplicated and not metastore:
            return self._suffer(Fault("duplicate", source, target, kind, subject, count, amount))
        return None


_METASTORE = node_number("m")
_MESSAGE_EFFECTS = ("lose", "delay", "duplicate")
