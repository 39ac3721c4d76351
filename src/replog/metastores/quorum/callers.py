"""The clients of one member that wait: for a command to be committed, a read to be confirmed, or something to change."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import attrs
import trio

from replog.protocol.consensus.commands import Command, Outcome

_ENTRY_COMMANDS_MAX, _ENTRY_BYTES_MAX = 1024, 1 << 20  # of one entry, unless one command has more
_GATHERED_BYTES_MAX = 16 << 20  # of commands that wait to become entries


class NotLeaderError(Exception):
    """This member does not lead: nothing was appended. `leader` is whom it follows, if it knows. Never leaves this package."""

    def __init__(self, leader: str | None) -> None:
        super().__init__(leader)
        self.leader = leader


class BusyError(Exception):
    """Too many commands wait, or the disk is full, as its text says: nothing was appended. Never leaves this package."""


class UnknownOutcomeError(Exception):
    """This member has appended the command, and leads no more: ask again with the same token. Never leaves this package."""


@attrs.define(eq=False)
class WaitingCommand:
    """A command of a client, and what came of it."""

    command: Command
    ended: trio.Event = attrs.field(factory=trio.Event)
    outcome: Outcome | None = None
    index: int = 0
    error: Exception | None = None

    @property
    def size_bytes(self) -> int:
        """The bytes of its key and value."""
        return len(self.command.key) + len(self.command.value)

    def end(self, outcome: Outcome | None = None, index: int = 0, error: Exception | None = None) -> None:
        """Has its caller go on."""
        self.outcome, self.index, self.error = outcome, index, error
        self.ended.set()


@attrs.define(eq=False)
class WaitingRead:
    """A read, which this probe confirms, or a later one (Q10)."""

    probe: int
    ended: trio.Event = attrs.field(factory=trio.Event)
    is_confirmed: bool = False


class Waits:
    """Clients that wait for a key to change, and those that wait for the words right below one."""

    def __init__(self) -> None:
        self._events: dict[str, trio.Event] = {}  # by key; by key and a slash, for what is below it

    async def changed(self, place: str) -> None:
        """Waits until `wake` names this place."""
        event = self._events.setdefault(place, trio.Event())
        try:
            await event.wait()
        finally:
            if self._events.get(place) is event and not event.statistics().tasks_waiting:
                del self._events[place]

    def wake(self, key: str, *, is_listed_anew: bool) -> None:
        """This key has changed; with `is_listed_anew` it was created or deleted."""
        self._wake(key)
        while is_listed_anew and key:
            key = key.rpartition("/")[0]
            self._wake(f"{key}/")

    def wake_all(self) -> None:
        """All of them look elsewhere."""
        for place in list(self._events):
            self._wake(place)

    def _wake(self, place: str) -> None:
        event = self._events.pop(place, None)
        if event is not None:
            event.set()


class Callers:
    """Those that wait. Commands gather until they become an entry together; from then on they wait for its index."""

    def __init__(self) -> None:
        self.under_way: dict[int, list[WaitingCommand]] = {}  # by the index of their entry
        self.waits = Waits()
        self._gathered: deque[WaitingCommand] = deque()
        self._gathered_bytes = 0
        self._reads: list[WaitingRead] = []

    @property
    def have_gathered(self) -> bool:
        """True if commands wait to become an entry."""
        return bool(self._gathered)

    def gather(self, command: Command) -> WaitingCommand:
        """A command of a client has come. Raises `BusyError` if too many bytes wait."""
        waiting = WaitingCommand(command)
        if self._gathered and self._gathered_bytes + waiting.size_bytes > _GATHERED_BYTES_MAX:
            raise BusyError("too many changes wait there")
        self._gathered.append(waiting)
        self._gathered_bytes += waiting.size_bytes
        return waiting

    def next_entry(self) -> list[WaitingCommand]:
        """Takes the commands of the next entry: it has so many, or so many bytes, at most."""
        waiting: list[WaitingCommand] = []
        size_bytes = 0
        while self._gathered and len(waiting) < _ENTRY_COMMANDS_MAX and size_bytes < _ENTRY_BYTES_MAX:
            waiting.append(self._gathered.popleft())
            size_bytes += waiting[-1].size_bytes
        self._gathered_bytes -= size_bytes
        return waiting

    def committed(self, index: int, outcomes: Sequence[tuple[Command, Outcome]]) -> None:
        """An entry was applied: answers those who wait for it (Q14)."""
        waiting = self.under_way.pop(index, None)
        if waiting is not None:
            for each, (_, outcome) in zip(waiting, outcomes, strict=True):
                each.end(outcome, index)

    def refuse_gathered(self, error: Exception) -> None:
        """What has gathered becomes no entry."""
        while self._gathered:
            self._gathered.popleft().end(error=error)
        self._gathered_bytes = 0

    # -- reads --------------------------------------------------------------------------------------------------------

    def ask(self, probe: int) -> WaitingRead:
        """A read has come. `confirmed` waits for it."""
        asked = WaitingRead(probe)
        self._reads.append(asked)
        return asked

    async def confirmed(self, asked: WaitingRead) -> bool:
        """Waits until the read is confirmed; False if this member leads no more."""
        try:
            await asked.ended.wait()
        finally:
            self._reads.remove(asked)
        return asked.is_confirmed

    def confirm(self, probe: int) -> None:
        """The reads up to this probe are confirmed."""
        for each in self._reads:
            if each.probe <= probe:
                each.is_confirmed = True
                each.ended.set()

    def end_all(self, error: Exception) -> None:
        """This member leads no more: what was appended has an unknown outcome (Q14)."""
        under_way, self.under_way = self.under_way, {}
        for waiting in under_way.values():
            for each in waiting:
                each.end(error=error)
        for read in self._reads:
            read.ended.set()
        self.waits.wake_all()
