"""Processes that are killed while they commit: what they acknowledged is there, byte for byte (B1)."""

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
from typing import NoReturn

import attrs

from replog.abc import Storage
from replog.protocol.mutations import Mutation, SetMarks
from replog.testing.storage_exam.background import DEADLINE_S
from replog.testing.storage_exam.candidate import Candidate, expect
from replog.testing.storage_exam.model import Model
from replog.testing.storage_exam.workload import Workload

_COUNTER = 0  # the ledger whose last add confirmed counts commits; the workload leaves it alone
_WATCH_EVERY_S = 0.0002
_COMPACT_EVERY = 12
_DURABLE = "commit: durable when it returns, also if the process is killed right then (B1)"
_HINT = "if it lives in the memory of a process: check_storage(..., survives_processes=False)"


@attrs.define
class _Told:
    """What a child said before it died."""

    bookie_id: str = ""
    committed: int = 0  # numbers of commits: the last one that returned, the last one that a reader saw
    seen: int = 0
    failure: str = ""

    def take(self, line: bytes) -> None:
        word, _, rest = line.decode("utf-8", "replace").partition(" ")
        if word == "opened":
            self.bookie_id = rest
        elif word == "committed":
            self.committed = int(rest)
        elif word == "seen":
            self.seen = int(rest)
        else:
            self.failure = rest.replace("\\n", "\n")


def check_kills(candidate: Candidate, kills: int, seed: int) -> None:
    """One life after the other on the same directory: open, commit, be killed; then everything is compared."""
    chance = random.Random(seed)
    workload, model = Workload(seed), Model()
    number, bookie_id = 0, ""
    for life in range(kills):
        waits = life % 4 != 1  # else it dies soon after its birth, while it opens
        told = _live_and_die(candidate, workload, number, chance, chance.randrange(1, 60) if waits else 0)
        expect(not told.failure, "a storage opens after a kill, and goes on (B3)", told.failure)
        while number < told.committed:
            number += 1
            model.commit(_commit_of(workload, number))
        in_flight = None
        if told.bookie_id:
            number += 1
            in_flight = _commit_of(workload, number)
        told_where = (
            f"{_DURABLE} [life {life + 1} of {kills}, seed {seed}, killed after {told.committed} commits; {_HINT}]"
        )
        bookie_id = _examine(candidate, model, in_flight, told, told_where, told.bookie_id or bookie_id)


def _examine(
    candidate: Candidate, model: Model, in_flight: list[Mutation] | None, told: _Told, why: str, bookie_id: str
) -> str:
    with candidate.opened() as storage:
        kept = storage.bookie_id
        expect(kept == (bookie_id or kept), f"the identity is kept for ever (B4); {_HINT}", (bookie_id, kept))
        model.settle(storage, in_flight, why)
        marks = storage.marks(_COUNTER)
        count = 0 if marks is None else marks.last_add_confirmed
        expect(
            count >= told.seen,
            "a reader sees a mutation only when it is durable",
            f"commit {told.seen} was seen before the kill, the last one that is there is {count}",
        )
    return kept


def _commit_of(workload: Workload, number: int) -> list[Mutation]:
    return [*workload.next_commit(), SetMarks(_COUNTER, last_add_confirmed=number)]


# -- the parent ---------------------------------------------------------------------------------------------------


def _live_and_die(candidate: Candidate, workload: Workload, number: int, chance: random.Random, commits: int) -> _Told:
    """A child that commits, killed soon after this many commits; the next one has the number after this."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of other threads, were they idle: see `check_storage` about them
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.close(reader)
        _be_the_child(candidate, workload, number, writer)
    os.close(writer)
    told, rest = _Told(committed=number), b""
    try:
        while commits and told.committed < number + commits and not told.failure:
            rest, is_over = _listen(reader, rest, told)
            expect(not is_over, "a storage opens, and commits, in whatever process", "the child died by itself")
        time.sleep(chance.random() * (0.004 if commits else 0.02))  # not a wait: the moment of the kill
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        is_over = False
        while not is_over:
            rest, is_over = _listen(reader, rest, told)
        os.close(reader)
    return told


def _listen(reader: int, rest: bytes, told: _Told) -> tuple[bytes, bool]:
    """What else the child said: an unfinished line, and whether it said its last."""
    ready, _, _ = select.select([reader], [], [], DEADLINE_S)
    expect(
        bool(ready),
        "a storage opens, and commits, in whatever process",
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
    """Commits until it is killed. Never returns, and runs no clean-up: all of that is the parent's."""
    try:
        _commit_for_ever(candidate.open(), workload, number, lambda line: os.write(pipe, line.encode() + b"\n"))
    except BaseException:
        os.write(pipe, b"failed " + traceback.format_exc().replace("\n", "\\n").encode() + b"\n")
        raise
    finally:
        os._exit(1)


def _commit_for_ever(storage: Storage, workload: Workload, number: int, tell: Callable[[str], object]) -> NoReturn:
    tell(f"opened {storage.bookie_id}")
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
    """Tells which commits a reader sees, perhaps before they return."""
    while True:
        marks = storage.marks(_COUNTER)
        if marks is not None and marks.last_add_confirmed > seen:
            seen = marks.last_add_confirmed
            tell(f"seen {seen}")
        time.sleep(_WATCH_EVERY_S)
