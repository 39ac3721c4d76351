"""The processes of leaders and of the follower: `python -m replog.demo.processes leader|follower TASK`, with TASK as JSON.

Each writes down what it does and sees in a history, and reports its progress on standard output, as one JSON object a line.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

import attrs
import trio

from replog.api import connect
from replog.config.client import ClientTuning
from replog.errors import FencedError, ReplogError
from replog.hookspecs import EnsembleChanged, Event, LogTakenOver, hookimpl
from replog.log.log_writer import LogWriter
from replog.protocol.model import Position
from replog.protocol.quorum import Quorum
from replog.registry import Registry
from replog.testing import History

LOG_NAME = "demo"
QUORUM = Quorum(ensemble=3, write=3, ack=2)
SILENCE_MAX_S = 2.0  # how long an append may stall for a silent bookie: short, because people wait for it
_LINE_BYTES_MAX = 1 << 16
_PUSHED_AT_ONCE = 64


@attrs.frozen
class Task:
    """The work of a process. A leader appends the lines of the file `input` until it has appended so many `entries`, or
    for so many `seconds`, whichever comes first; without both it never ends."""

    name: str
    metastore: str
    history: str
    input: str = ""
    entries: int | None = None
    seconds: float | None = None


# Options that keep the log busy and few entries in doubt, with deadlines that people can wait for.
CLIENT = ClientTuning(
    in_flight_bytes_max=1 << 20,
    batch_bytes_max=1 << 18,
    add_timeout_s=SILENCE_MAX_S,
    read_timeout_s=SILENCE_MAX_S,
    connect_timeout_s=SILENCE_MAX_S,
)


def as_payload(entry: bytes) -> str:
    """An entry as text for a history, for any bytes."""
    return entry.decode("latin-1")


def _say(event: str, **fields: object) -> None:
    # A line shorter than PIPE_BUF is written as a whole: a kill leaves no half of one.
    line = json.dumps({"event": event, "at_s": time.monotonic(), **fields})
    os.write(sys.stdout.fileno(), line.encode() + b"\n")


class Observer:
    """A plugin: replog calls it when a log was taken over, and when a bookie was replaced."""

    @hookimpl
    def replog_observe(self, event: Event) -> None:
        """Report the event."""
        if isinstance(event, LogTakenOver):
            _say("taken over", ledgers=len(event.recovered))
        elif isinstance(event, EnsembleChanged):
            for old, new in event.replaced.values():
                _say("replaced", old=old, new=new, first_entry_id=event.first_entry_id)


class Appender:
    """Appends lines without waiting for each, and writes down which of them are confirmed."""

    def __init__(self, task: Task, history: History) -> None:
        self._task = task
        self._history = history
        self._pushed = 0
        self._in_flight: deque[tuple[Position, int]] = deque()
        self._started_s = time.monotonic()

    async def run(self, log: LogWriter) -> None:
        """Append until there is enough, and wait until all of it is confirmed."""
        lines = _lines_of(Path(self._task.input))
        # Alone: it shows when the log can be appended to again.
        await self._push(log, next(lines))
        await log.flush()
        self._confirm(log)
        while not self._is_enough():
            for line in islice(lines, _PUSHED_AT_ONCE):
                if not self._is_enough():
                    await self._push(log, line)
            self._confirm(log)
            # `push_nowait` never yields: without this, confirmations would wait until the budget is used up.
            await trio.lowlevel.checkpoint()
        await log.flush()
        self._confirm(log)

    def _is_enough(self) -> bool:
        entries, seconds = self._task.entries, self._task.seconds
        has_all = entries is not None and self._pushed >= entries
        return has_all or (seconds is not None and time.monotonic() - self._started_s >= seconds)

    async def _push(self, log: LogWriter, line: bytes) -> None:
        # No two entries are equal, for any input: so each can be told from every other when the log is read back.
        entry = f"{self._task.name}, {self._pushed + 1}: ".encode() + line
        call = self._history.invoked(as_payload(entry))
        try:
            try:
                position = log.push_nowait(entry)
            except trio.WouldBlock:
                position = await log.push(entry)
        except ReplogError as error:  # then nothing was pushed
            self._history.not_written(call, error)
            raise
        self._pushed += 1
        self._in_flight.append((position, call))

    def _confirm(self, log: LogWriter) -> None:
        last = log.last_add_confirmed
        before = len(self._in_flight)
        while last is not None and self._in_flight and self._in_flight[0][0] <= last:
            position, call = self._in_flight.popleft()
            self._history.confirmed(call, position)
        if len(self._in_flight) < before:
            entries = self._pushed - len(self._in_flight)
            _say("confirmed", entries=entries, in_flight=len(self._in_flight), position=str(last))

    def deposed(self, error: FencedError) -> None:
        """Write down the outcomes: of all that was pushed, only the entries that the error names are in doubt."""
        # The error is the authority: entries that were confirmed since the last look are in `_in_flight` all the same.
        doubts = set(error.positions)
        for position, call in self._in_flight:
            if position in doubts:
                self._history.unknown(call, error)
            else:
                self._history.confirmed(call, position)
        self._history.fenced(error)
        names = [str(position) for position in error.positions] or ["-"]
        _say("fenced", entries=len(doubts), first=names[0], last=names[-1])


def _lines_of(path: Path) -> Iterator[bytes]:
    """The lines of a file, again and again; a line that is too long is several."""
    return cycle(
        line[start : start + _LINE_BYTES_MAX]
        for line in path.read_bytes().splitlines(keepends=True)
        for start in range(0, len(line), _LINE_BYTES_MAX)
    )


async def lead(task: Task) -> None:
    """Take the log over, replay it, and append until there is enough or until deposed. Raises other `ReplogError`."""
    registry = Registry({"demo": Observer()})
    async with connect(task.metastore, options=CLIENT, quorum=QUORUM, registry=registry) as client:
        # A call that reaches the metastore: `connect` alone does nothing, and its time would count as recovery.
        await client.admin.bookies()
        _say("connected")
        with History(task.history, task.name) as history:
            appender = Appender(task, history)
            history.takeover_began()
            try:
                async with client.write_log(LOG_NAME) as log:
                    history.served(log.segment)
                    _say("served")
                    async with client.read_log(LOG_NAME) as reader:  # as an application does, to restore its state
                        _say("replayed", entries=sum([len(batch) async for batch in reader.batches()]))
                    await appender.run(log)
                _say("closed")
            except FencedError as error:
                appender.deposed(error)


async def follow(task: Task) -> None:
    """Read the log along from its first entry, even before there is a log, until killed."""
    entries = 0
    with History(task.history, task.name) as history:
        async with connect(task.metastore, options=CLIENT) as client:
            await client.admin.bookies()
            _say("connected")
            history.reading(None)
            async with client.read_log(LOG_NAME, follow=True) as reader:
                async for batch in reader.batches():
                    for record in batch:
                        history.saw(record.position, as_payload(record.data))
                    entries += len(batch)
                    _say("followed", entries=entries)


if __name__ == "__main__":
    try:
        trio.run({"leader": lead, "follower": follow}[sys.argv[1]], Task(**json.loads(sys.argv[2])))
    except ReplogError as failure:
        sys.exit(str(failure))
