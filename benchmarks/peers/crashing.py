"""What servers have in common that are killed and started again: who leads is killed, the others are asked until one of them
confirms an entry, and all that was confirmed has to be there in the end."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Protocol, Self, TypeVar

from benchmarks.figures import Figures, clock
from benchmarks.peers.children import held_bytes
from benchmarks.peers.system import NotMeasured
from tests.servers.processes import Server, ServerFailedError

ANSWER_S = 30.0
CONFIRMED = 100  # entries that a leader has confirmed before it is killed
TAKEOVER_S = 60.0
COUNTED_S = 30.0  # until servers have said how many entries they have

AnyCrashing = TypeVar("AnyCrashing", bound="Crashing")


class Writer(Protocol):
    """A blocking connection that appends one entry at a time."""

    def append(self, payload: bytes) -> None:
        """Returns when it is confirmed. Raises `NotMeasured` or OSError if it isn't."""

    def __enter__(self) -> Self:
        """Itself."""

    def __exit__(self, *_: object) -> None:
        """Closes it."""


class Crashing(ABC):
    """Servers as far as they may die. A subclass says how one appends to them; methods are those of `Running`."""

    attempt_s: float  # for an answer, while a leader is looked for

    def __init__(self, directory: Path, servers: Sequence[Server]) -> None:
        self._directory = directory
        self._servers = servers
        self._leader = 0  # the number of a server

    # -- what differs -----------------------------------------------------------------------------------------------

    @abstractmethod
    def _writer(self, number: int, within_s: float) -> Writer:
        """A connection to this server, whose answers come within this time. Raises as `Writer.append` does."""

    @abstractmethod
    def _wait_for_all(self) -> None:
        """Until all servers have all entries, and `_leader` is the one that leads."""

    @abstractmethod
    def _forget(self) -> None:
        """The entries of an earlier load."""

    @abstractmethod
    def _count(self) -> int:
        """How many entries there are."""

    def _launch(self) -> None:
        """Starts all that do not run."""
        for server in self._servers:
            if not server.is_running:
                server.launch()

    def _watched(self) -> AbstractContextManager[None]:
        """With whatever it takes that somebody else leads when the leader dies."""
        return nullcontext()

    # -- what doesn't -----------------------------------------------------------------------------------------------

    @property
    def process_ids(self) -> Sequence[int]:
        """Of the servers."""
        return [server.pid for server in self._servers]

    def start(self) -> None:
        """All of them, until an entry can be confirmed."""
        self._launch()
        self._wait_for_all()

    def kill(self) -> None:
        """All of them. Idempotent."""
        for server in self._servers:
            server.kill()

    def stop(self) -> None:
        """In the end. Idempotent."""
        self.kill()

    def take_over(self, entry_bytes: int) -> Figures:
        """As `Running.take_over`, after a number of entries that it is known for."""
        payload = os.urandom(entry_bytes)
        self._forget()
        with self._watched(), self._writer(self._leader, ANSWER_S) as writer:
            for _ in range(CONFIRMED):
                writer.append(payload)
            killed = clock()
            self._servers[self._leader].kill()
            others = [number for number in range(len(self._servers)) if number != self._leader]
            self._leader = self._append_anywhere(others, payload)
            took_s = clock() - killed
        self._launch()
        self._wait_for_all()
        self._check(CONFIRMED + 1)
        return {"takeover_s": took_s}

    def restart(self) -> Figures:
        """As `Running.restart`; those that come later than the first entry are waited for."""
        confirmed = self._count()
        self.kill()
        held = held_bytes(self._directory)
        began = clock()
        self._launch()
        self._leader = self._append_anywhere(range(len(self._servers)), bytes(100))
        took_s = clock() - began
        self._wait_for_all()
        self._check(confirmed + 1)
        return {"restart_s": took_s, "held_bytes": float(held)}

    def _append_anywhere(self, numbers: Sequence[int], payload: bytes) -> int:
        """Until one of these has it confirmed by whoever leads; which one."""
        deadline = clock() + TAKEOVER_S
        while clock() < deadline:
            for number in numbers:
                with suppress(OSError, NotMeasured), self._writer(number, self.attempt_s) as writer:
                    writer.append(payload)
                    return number
        raise NotMeasured(f"no entry was confirmed within {TAKEOVER_S:.0f} s")

    def _check(self, confirmed: int) -> None:
        """That so many are there. One that was sent again, as nobody had confirmed it, may be there twice."""
        try:
            self._servers[0].wait_until(lambda: self._count() >= confirmed, "all entries are there", COUNTED_S)
        except ServerFailedError as error:
            raise NotMeasured(f"of {confirmed} entries that were confirmed, {self._count()} are there") from error


@contextmanager
def started(make: Callable[[Path], AnyCrashing], directory: Path) -> Iterator[AnyCrashing]:
    """As `System.running`."""
    system = make(directory)
    try:
        try:
            system.start()
        except ServerFailedError as error:  # a server's log is within
            raise NotMeasured(str(error)) from error
        yield system
    finally:
        system.stop()
