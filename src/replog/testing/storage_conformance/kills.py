"""Processes are killed while they commit: everything that they acknowledged must be there, byte for byte (B1)."""

from __future__ import annotations

import os
import random
import select
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import NoReturn

import attrs

from replog.abc import Doubt, Storage
from replog.protocol.mutations import Mutation, SetMarks
from replog.testing.storage_conformance.background import DEADLINE_S
from replog.testing.storage_conformance.candidate import Candidate, expect
from replog.testing.storage_conformance.model import Model
from replog.testing.storage_conformance.workload import Workload

_COUNTER = 0  # the ledger whose last add confirmed counts commits; the workload leaves it alone
_WATCH_EVERY_S = 0.0002
_COMPACT_EVERY = 12
_DURABLE = "commit: durable when it returns, even if the process is killed right then (B1)"
_HINT = "if it lives in the memory of a process: check_storage(..., survives_processes=False)"
_OPENS = "a storage opens after a kill at whatever moment, and goes on (B3)"
_GOES_ON = "a storage opens, and commits, in whatever process"


def check_kills(candidate: Candidate, kills: int, seed: int) -> None:
    """Processes that open the same directory one after the other, commit, and are killed; then everything is compared.

    Every fourth one is killed while it opens; and instead of every fourth one, another storage is killed while it is created."""
    chance = random.Random(seed)
    line = _Line(candidate, seed)
    opening_s = 0.0
    for life in range(kills):
        words = f"life {life + 1} of {kills}, seed {seed}"
        if life % 4 == 1:
            line.live(words, chance, commits=0, rest_s=1.5 * opening_s)
        elif life % 4 == 3:
            newborn = _Line(candidate.sibling(f"newborn_{life}"), seed)
            newborn.live(words, chance, commits=0, rest_s=1.5 * opening_s)
            newborn.live(words, chance, commits=1, rest_s=0.0)
        else:
            opening_s = line.live(words, chance, commits=chance.randrange(1, 60), rest_s=0.004)


class _Line:
    """The processes on one directory, and what all of them committed."""

    def __init__(self, candidate: Candidate, seed: int) -> None:
        self._candidate = candidate
        self._workload = Workload(seed)
        self._model = Model()
        self._number = 0  # of the last commit that was made
        self._bookie_id = ""

    def live(self, words: str, chance: random.Random, *, commits: int, rest_s: float) -> float:
        """Kill a child within `rest_s` seconds after so many commits, then compare everything. Returns how long opening took."""
        told = _Told(committed=self._number)
        _live_and_die(self._candidate, self._workload, told, commits, rest_s * chance.random())
        expect(not told.failure, _OPENS, f"{told.failure}\n  [{words}]")
        while self._number < told.committed:
            self._model.commit(self._next_commit())
        in_flight = self._next_commit() if told.bookie_id else None
        try:
            storage = self._candidate.open()
        except Exception as error:
            raise AssertionError(
                f"broken contract of Storage: {_OPENS}\n  found: {type(error).__name__}: {error} [{words}]"
            ) from error
        with closing(storage):
            self._compare(storage, told, in_flight, words)
        return told.opening_s

    def _next_commit(self) -> list[Mutation]:
        self._number += 1
        return _commit_of(self._workload, self._number)

    def _compare(self, storage: Storage, told: _Told, in_flight: list[Mutation] | None, words: str) -> None:
        before, self._bookie_id = told.bookie_id or self._bookie_id, storage.bookie_id
        is_kept = not before or before == self._bookie_id
        expect(is_kept, f"the identity never changes (B4) [{words}; {_HINT}]", (before, self._bookie_id))
        doubt = storage.doubt()
        expect(doubt == Doubt(), f"doubt: a kill weakens nothing (B8) [{words}]", doubt)
        why = f"{_DURABLE} [{words}, {told.committed} commits; {_HINT}]"
        self._model.settle(storage, in_flight, why)
        marks = storage.marks(_COUNTER)
        count = 0 if marks is None else marks.last_add_confirmed
        expect(
            count >= told.seen,
            "a reader sees a mutation only when it is durable",
            f"commit {told.seen} was seen before the kill, the last one that is there is {count} [{words}]",
        )


def _commit_of(workload: Workload, number: int) -> list[Mutation]:
    return [*workload.next_commit(), SetMarks(_COUNTER, last_add_confirmed=number)]


# -- the parent ---------------------------------------------------------------------------------------------------


@attrs.define
class _Told:
    """The output of a child before it died."""

    committed: int  # the number of the last commit that returned
    seen: int = 0  # and of the last one that a reader saw
    bookie_id: str = ""
    opening_s: float = 0.0
    failure: str = ""

    def take(self, line: bytes) -> None:
        """Take one line of its output."""
        word, _, rest = line.decode("utf-8", "replace").partition(" ")
        if word == "opened":
            seconds, self.bookie_id = rest.split(" ", 1)
            self.opening_s = float(seconds)
        elif word == "committed":
            self.committed = int(rest)
        elif word == "seen":
            self.seen = int(rest)
        else:
            self.failure = rest.replace("\\n", "\n")


def _live_and_die(candidate: Candidate, workload: Workload, told: _Told, commits: int, rest_s: float) -> None:
    """Run a child that commits, and kill it so many seconds after so many commits."""
    number = told.committed
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns if there are other threads, even idle ones: see `check_storage` about them
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.close(reader)
        _be_the_child(candidate, workload, number, writer)
    os.close(writer)
    rest, is_over = b"", False
    try:
        while told.committed < number + commits and not is_over:
            rest, is_over = _listen(reader, rest, told)
        time.sleep(rest_s)  # not a wait: the moment of the kill
    finally:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        # What it wrote before it died is still in the pipe, and counts.
        while not is_over:
            rest, is_over = _listen(reader, rest, told)
        os.close(reader)
    if not told.failure:
        how = os.waitstatus_to_exitcode(status)
        expect(how == -signal.SIGKILL, _GOES_ON, f"the child died by itself: {how} (an exit status, or minus a signal)")


def _listen(reader: int, rest: bytes, told: _Told) -> tuple[bytes, bool]:
    """Wait for more output and take its lines; return the incomplete last line, and whether the child closed its output."""
    ready, _, _ = select.select([reader], [], [], DEADLINE_S)
    expect(
        bool(ready),
        _GOES_ON,
        f"no commit within {DEADLINE_S:.0f} s in a forked child. It hangs; or a thread of this process held a lock "
        "at the fork: see the docstring of `check_storage`",
    )
    text = os.read(reader, 1 << 16)
    *lines, rest = (rest + text).split(b"\n")
    for line in lines:
        told.take(line)
    return rest, not text


# -- the child ----------------------------------------------------------------------------------------------------


def _be_the_child(candidate: Candidate, workload: Workload, number: int, pipe: int) -> NoReturn:
    """Commit until killed. Never returns, and runs no cleanup, which would be that of the parent."""
    started = time.monotonic()
    try:
        storage = candidate.open()
        opening_s = time.monotonic() - started
        os.write(pipe, f"opened {opening_s:.6f} {storage.bookie_id}\n".encode())
        _commit_for_ever(storage, workload, number, lambda line: os.write(pipe, line.encode() + b"\n"))
    except BaseException:
        os.write(pipe, f"{_failure()}\n".encode())
        raise
    finally:
        os._exit(1)


def _failure() -> str:
    """The exception that is being handled, as one line."""
    return "failed " + traceback.format_exc().replace("\n", "\\n")


def _commit_for_ever(storage: Storage, workload: Workload, number: int, tell: Callable[[str], object]) -> NoReturn:
    threading.Thread(target=_watch, args=(storage, number, tell), daemon=True).start()
    compactor = ThreadPoolExecutor(1)
    compaction: Future[None] | None = None
    while True:
        number += 1
        if number % _COMPACT_EVERY == 0 and (compaction is None or compaction.done()):
            if compaction is not None:
                compaction.result()
            compaction = compactor.submit(storage.compact, is_major=number % (2 * _COMPACT_EVERY) == 0)
        storage.commit(_commit_of(workload, number))
        tell(f"committed {number}")


def _watch(storage: Storage, seen: int, tell: Callable[[str], object]) -> None:
    """Print which commits a reader sees, perhaps before they return."""
    try:
        while True:
            marks = storage.marks(_COUNTER)
            if marks is not None and marks.last_add_confirmed > seen:
                seen = marks.last_add_confirmed
                tell(f"seen {seen}")
            time.sleep(_WATCH_EVERY_S)
    except BaseException:
        tell(_failure())
        raise
