"""Which faults strike during a simulation, how often, and the task that lets them strike."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import attrs
import trio

from replog.errors import ConfigError
from replog.testing.simulating.programs import Programs
from replog.testing.simulating.troubles import BookieTroubles, MetastoreTroubles, NetworkTroubles, drawn_s

if TYPE_CHECKING:
    from replog.testing.simulating.world import World

_AT_ONCE = "bookies_at_once_max"


def _check(_faults: object, attribute: attrs.Attribute[Any], value: object) -> None:
    kinds = (int,) if attribute.name == _AT_ONCE else (int, float)
    if not isinstance(value, kinds) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise ConfigError(f"Faults: {attribute.name}={value!r} must be a number that is not negative")


def _rate(default: float) -> float:
    found: float = attrs.field(default=default, validator=_check)
    return found


@attrs.frozen(kw_only=True)
class Faults:
    """How often each fault strikes, in times per second of virtual time; 0 means never.

    A fault lasts up to a few seconds, then everything it touched works again. Acknowledged entries are never lost. The
    default mixes all faults of bookies, network and metastore, and leaves the app's own processes alone."""

    bookies_crash: float = _rate(0.05)  # a bookie's process dies, and is started again
    bookies_restart: float = _rate(0.02)  # a bookie's process ends in order, and is started again
    bookies_pause: float = _rate(0.03)  # a bookie neither receives nor sends, as if stopped, then goes on
    disks_fill: float = _rate(0.02)  # a bookie's disk is full
    disks_fail: float = _rate(0.02)  # a sync of a bookie's disk fails; the bookie is restarted
    disks_damage: float = _rate(0.03)  # reads from a bookie's disk fail, or give damaged bytes
    disks_slow: float = _rate(0.05)  # a bookie's disk becomes slow, or does not answer for a while
    network_cuts: float = _rate(0.05)  # a client loses its way to a bookie, to the metastore, or to everybody
    connections_break: float = _rate(0.05)  # some connections between clients and bookies break
    messages_lost: float = _rate(0.03)  # part of the requests and answers between clients and bookies are lost
    messages_late: float = _rate(0.05)  # part of them takes up to a second
    metastore_fails: float = _rate(0.03)  # calls of the metastore fail, are late, or lose their answers
    sessions_lost: float = _rate(0.02)  # a client or bookie loses its session in the metastore, and what it announced
    processes_crash: float = _rate(0.0)  # a process of the app is killed, and restarted later
    processes_pause: float = _rate(0.0)  # a process of the app is stopped, and goes on later
    bookies_at_once_max: int = attrs.field(default=1, validator=_check)  # bookies in trouble together

    @classmethod
    def none(cls, **rates: float) -> Faults:
        """Only the faults that are given: `Faults.none(bookies_crash=0.5)`."""
        names = [field.name for field in attrs.fields(cls) if field.name != _AT_ONCE]
        return cls(**{**dict.fromkeys(names, 0.0), **rates})  # type: ignore[arg-type] # the one int may be given, too


# The methods of the troubles that each fault begins: one of them, drawn.
_BOOKIES = {
    "bookies_crash": ("crash",),
    "bookies_restart": ("leave",),
    "bookies_pause": ("stall",),
    "disks_fill": ("fill",),
    "disks_fail": ("fail_sync",),
    "disks_damage": ("damage",),
    "disks_slow": ("slow", "hang"),
}
_NETWORK = {
    "network_cuts": ("cut", "isolate", "cut_off"),
    "connections_break": ("break_connections",),
    "messages_lost": ("lossy",),
    "messages_late": ("delays",),
}
_METASTORE = {"metastore_fails": ("unreliable",), "sessions_lost": ("lose_session",)}


class FaultDriver:
    """Lets faults strike from `run` until `end`."""

    def __init__(
        self,
        world: World,
        faults: Faults,
        bookies: BookieTroubles,
        network: NetworkTroubles,
        metastore: MetastoreTroubles,
        programs: Programs,
    ) -> None:
        self._world = world
        self._faults = faults
        self._bookies = bookies
        self._network = network
        self._metastore = metastore
        self._programs = programs
        self._random: random.Random = world.stream("faults")
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    async def run(self) -> None:
        """Let faults strike until `end`, several at a time if they are frequent."""
        with self._scope:
            await self._strike_at_random()
        self._ended.set()

    async def end(self) -> None:
        """End all faults, and wait until what they did to network, metastore and processes is undone."""
        self._scope.cancel()
        await self._ended.wait()

    async def _strike_at_random(self) -> None:
        rates = {name: rate for name, rate in attrs.asdict(self._faults).items() if rate > 0 and name != _AT_ONCE}
        if not rates:
            return
        async with trio.open_nursery() as nursery:
            while True:
                # Exponential pauses: faults come independently of each other, as the rates promise.
                await trio.sleep(self._random.expovariate(sum(rates.values())))
                name = self._random.choices(list(rates), list(rates.values()))[0]
                strike = self._strike_of(name)
                if strike is not None:
                    self._world.count(name)
                    self._world.tell("faults", name)
                    nursery.start_soon(strike)

    def _strike_of(self, name: str) -> Callable[[], Awaitable[None]] | None:
        """The action of this fault now; None if it has no target."""
        if name in _BOOKIES:
            trouble = self._random.choice(_BOOKIES[name])
            return (lambda: self._bookies.strike(trouble)) if self._bookies.may_strike else None
        if name in _NETWORK:
            found: Callable[[], Awaitable[None]] = getattr(self._network, self._random.choice(_NETWORK[name]))
            return found
        if name in _METASTORE:
            found = getattr(self._metastore, self._random.choice(_METASTORE[name]))
            return found
        running = self._programs.running()
        if not running:
            return None
        process = self._random.choice(running)
        return lambda: self._crash(process) if name == "processes_crash" else self._pause(process)

    async def _crash(self, name: str) -> None:
        program = self._programs[name]
        program.crash()
        # Compared at the end: the app itself may have restarted the process meanwhile, and its choice stands.
        died = program.incarnation
        try:
            await trio.sleep(drawn_s(self._random))
        finally:
            if program.incarnation == died and program.is_crashed:
                program.restart()

    async def _pause(self, name: str) -> None:
        program = self._programs[name]
        program.pause()
        paused = program.incarnation
        try:
            await trio.sleep(drawn_s(self._random, 5.0))
        finally:
            if program.incarnation == paused and program.is_paused:
                program.resume()
