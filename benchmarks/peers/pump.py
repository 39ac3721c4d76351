"""Keeps a number of requests in flight over sockets, as lean as Python can: no task, no await and no object for each entry.

What a system's protocol looks like is the matter of its `Conversation`, which does no input or output: the same one could be
tested against recorded bytes.
"""

from __future__ import annotations

import selectors
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Protocol

import attrs

from benchmarks.figures import Figures, Meter, clock
from benchmarks.peers.system import Latencies, Load, NotMeasured

_RECEIVE_BYTES = 1 << 18
_JOINED_BYTES = 1 << 18
_FILLED_BYTES = 1 << 20  # in flight while entries are appended that are to be read
SILENCE_S = 30.0  # without an answer: then something is wrong


class Conversation(Protocol):
    """One connection's half that is the client's, once it is set up."""

    def requests(self, count: int) -> bytes:
        """The bytes that ask for this many appends."""

    def receive(self, data: bytes) -> tuple[int, bytes]:
        """These bytes have come: how many requests they confirm, and what has to be sent because of them (credit for a flow
        control; mostly nothing). Raises `NotMeasured` for a refusal, with its words."""


@attrs.define
class _Connection:
    stream: socket.socket
    conversation: Conversation
    unsent: deque[memoryview] = attrs.field(factory=deque)

    def send(self, data: bytes) -> bool:
        """Queues behind what is unsent; whether all of it was sent. Small requests are sent together; large ones, of which
        there may be tens of MiB, are not copied for each that is added."""
        if self.unsent and len(self.unsent[-1]) + len(data) <= _JOINED_BYTES:
            self.unsent[-1] = memoryview(b"".join((self.unsent[-1], data)))
        else:
            self.unsent.append(memoryview(data))
        return self.flush()

    def flush(self) -> bool:
        try:
            while self.unsent:
                rest = self.unsent[0][self.stream.send(self.unsent[0]) :]
                if rest:
                    self.unsent[0] = rest
                else:
                    self.unsent.popleft()
        except BlockingIOError:
            return False
        return True


def pump(
    connections: Sequence[tuple[socket.socket, Conversation]],
    load: Load,
    meter: Callable[[], Meter],
) -> Figures:
    """The figures of `Running.append`. The connections share what is in flight; their sockets are set to non-blocking, and have
    nothing in flight at the end. `meter` is asked for one when the warm-up is over."""
    pumping = _Pumping([_Connection(stream, conversation) for stream, conversation in connections], load)
    with pumping:
        pumping.run_for(load.warm_up_s)
        pumping.latencies.forget()
        before, measured_by = pumping.confirmed, meter()
        pumping.run_for(load.seconds)
        entries = pumping.confirmed - before
        found = measured_by.figures(max(1, entries))
        lowest = pumping.latencies.lowest_per_s()
        pumping.drain()
    return {"entries": float(entries), **cpu_figures(found), **lowest, **pumping.latencies.figures()}


def append_all(stream: socket.socket, conversation: Conversation, entries: int, entry_bytes: int) -> None:
    """So many, a MiB of them in flight, until all are confirmed. For a blocking socket; nothing is measured."""
    at_once = max(1, _FILLED_BYTES // entry_bytes)
    for first in range(0, entries, at_once):
        missing = min(at_once, entries - first)
        stream.sendall(conversation.requests(missing))
        while missing:
            data = stream.recv(_RECEIVE_BYTES)
            if not data:
                raise NotMeasured(f"the server hung up, with {missing} entries in flight")
            confirmed, answer = conversation.receive(data)
            missing -= confirmed
            if answer:
                stream.sendall(answer)


def cpu_figures(found: Figures) -> Figures:
    """A `Meter`'s figures as the peers' are named: the client's CPU time and the servers' apart."""
    return {
        "entries_per_s": found["entries_per_s"],
        "client_cpu_us": found["client_cpu_us"],
        "server_cpu_us": found["total_cpu_us"] - found["client_cpu_us"],
    }


class _Pumping:
    def __init__(self, connections: list[_Connection], load: Load) -> None:
        self.latencies = Latencies()
        self.confirmed = 0
        self._connections = connections
        self._load = load
        self._in_flight = 0
        self._resources = ExitStack()
        self._selector = self._resources.enter_context(selectors.DefaultSelector())
        for each in connections:
            each.stream.setblocking(False)
            self._selector.register(each.stream, selectors.EVENT_READ, each)

    def __enter__(self) -> _Pumping:
        share, more = divmod(self._load.in_flight, len(self._connections))
        for number, each in enumerate(self._connections):
            self._ask(each, share + (number < more))
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def run_for(self, seconds: float) -> None:
        """Sends another entry for each that is confirmed, and returns with as much in flight as before."""
        deadline = clock() + seconds
        before, most = self.confirmed, self.confirmed + self._load.entries_max
        while (clock() < deadline and self.confirmed < most) or self.confirmed == before:
            self._turn(is_ending=False)

    def drain(self) -> None:
        """Until nothing is in flight."""
        while self._in_flight:
            self._turn(is_ending=True)

    def _turn(self, *, is_ending: bool) -> None:
        ready = self._selector.select(SILENCE_S)
        if not ready:
            raise NotMeasured(f"no answer within {SILENCE_S:.0f} s, with {self._in_flight} entries in flight")
        for key, events in ready:
            connection: _Connection = key.data
            if events & selectors.EVENT_WRITE and connection.flush():
                self._selector.modify(connection.stream, selectors.EVENT_READ, connection)
            if events & selectors.EVENT_READ:
                self._receive(connection, is_ending=is_ending)

    def _receive(self, connection: _Connection, *, is_ending: bool) -> None:
        data = connection.stream.recv(_RECEIVE_BYTES)
        if not data:
            raise NotMeasured(f"the server hung up, with {self._in_flight} entries in flight")
        count, answer = connection.conversation.receive(data)
        if count:
            self.latencies.confirmed(count)
            self.confirmed += count
            self._in_flight -= count
        if answer:
            self._send(connection, answer)
        if count and not is_ending:
            self._ask(connection, count)

    def _ask(self, connection: _Connection, count: int) -> None:
        if count:
            self.latencies.sent(count)
            self._in_flight += count
            self._send(connection, connection.conversation.requests(count))

    def _send(self, connection: _Connection, data: bytes) -> None:
        if not connection.send(data):
            self._selector.modify(connection.stream, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)
