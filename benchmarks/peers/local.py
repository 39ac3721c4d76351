"""What the systems within one process share: a load is one call after the other, and a crash is that of a child.

python -m benchmarks.peers.local MODULE write DIRECTORY     # appends until it is killed
python -m benchmarks.peers.local MODULE reopen DIRECTORY    # tells how long it took until an entry was confirmed
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from benchmarks.figures import Figures, Meter, clock
from benchmarks.peers.children import environment, held_bytes
from benchmarks.peers.pump import cpu_figures
from benchmarks.peers.system import Latencies, Load, NotMeasured
from tests.servers.processes import Server, ServerFailedError

MIB = 1 << 20
WRITTEN = "written"
CONFIRMED = "confirmed after s:"
_DIFFERENT_BYTES = 4 * MIB  # of random entries, of which a load is made
_HISTORY_BYTES = 64 * MIB  # written by who is killed
_HISTORY_CALL_ENTRIES, HISTORY_ENTRY_BYTES = 100, 1024


class Store(Protocol):
    """A log of entries, open in this process."""

    def append(self, entries: list[bytes]) -> None:
        """All of them in one transaction; they are on the disk when this returns."""

    def read(self) -> int:
        """Reads all of them, from the first to the last, as `bytes`; returns how many they are."""

    def clear(self) -> None:
        """Empties it, in the way that costs the next load least."""

    def close(self) -> None:
        """Ends it."""


class Module(Protocol):
    """What a module has for its children: they open its store."""

    open_store: Callable[[Path], Store]


class LocalRunning:
    """A store of a module that has `open_store`, as a system that runs."""

    process_ids = ()

    def __init__(self, module: str, directory: Path) -> None:
        self._module = module
        self._directory = directory
        self._open: Callable[[Path], Store] = importlib.import_module(module).open_store
        self._store = self._open(directory)

    def append(self, load: Load) -> Figures:
        """As `Running.append`: one call after the other."""
        check_is_local(load)
        self._store.clear()
        entries, latencies = different(load.entry_bytes, load.entries_per_call), Latencies()
        self._append_for(load.warm_up_s, entries, latencies)
        latencies.forget()
        meter = Meter()
        appended = self._append_for(load.seconds, entries, latencies)
        return {"entries": float(appended), **cpu_figures(meter.figures(appended)), **latencies.figures()}

    def _append_for(self, seconds: float, entries: list[bytes], latencies: Latencies) -> int:
        append, count = self._store.append, len(entries)
        appended, deadline = 0, clock() + seconds
        while not appended or clock() < deadline:
            latencies.sent(count)
            append(entries)
            latencies.confirmed(count)
            appended += count
        return appended

    def scan(self, entry_bytes: int, entries: int) -> Figures:
        """As `Running.scan`."""
        self._store.clear()
        for part in parts(entry_bytes, entries):
            self._store.append(part)
        meter = Meter()
        found = self._store.read()
        if found != entries:
            raise NotMeasured(f"{entries} entries were appended, and {found} read")
        return cpu_figures(meter.figures(entries))

    def tail(self, entry_bytes: int, entries: int) -> Figures:
        """There is no form of it."""
        raise NotMeasured("nobody is told of what is appended: a reader would have to look again and again")

    def take_over(self, entry_bytes: int) -> Figures:
        """There is no form of it."""
        raise NotMeasured("on one node there is nobody who could take over")

    def restart(self) -> Figures:
        """As `Running.restart`, without the start of a process: from opening, in a process that has loaded its modules. Who was
        killed had appended 64 MiB more, by calls of 100 KiB."""
        self._store.close()
        try:
            return restart([__name__, self._module], self._directory)
        finally:
            self._store = self._open(self._directory)

    def close(self) -> None:
        """Ends the store."""
        self._store.close()


def check_is_local(load: Load) -> None:
    """One call at a time: what more could be in flight would be transactions side by side."""
    if load.in_flight > load.entries_per_call:
        raise NotMeasured("one writer has one transaction at a time: ask for more entries in a call")


def different(entry_bytes: int, entries: int) -> list[bytes]:
    """So many entries of random bytes; the same ones again if they would take too much memory."""
    made = [os.urandom(entry_bytes) for _ in range(max(1, min(entries, _DIFFERENT_BYTES // entry_bytes)))]
    return list(itertools.islice(itertools.cycle(made), entries))


def parts(entry_bytes: int, entries: int) -> list[list[bytes]]:
    """So many entries, in calls of a thousand."""
    made = different(entry_bytes, 1000)
    return [made[: min(1000, entries - start)] for start in range(0, entries, 1000)]


# -- crashing ---------------------------------------------------------------------------------------------------------


def restart(program: Sequence[str], directory: Path) -> Figures:
    """Has a child append to the store, kills it while it does, and has another one open it. Nobody else may have it open.
    `program` is a module and its first arguments; `write` or `reopen` and the directory follow."""
    writer = _child(program, "write", directory)
    try:
        writer.launch()
        writer.wait_until(lambda: WRITTEN in writer.log(), WRITTEN)
        writer.kill()
        held = held_bytes(directory)
        reader = _child(program, "reopen", directory)
        try:
            reader.launch()
            reader.wait_until(lambda: reader.log().endswith("\n"), CONFIRMED)
            return {"restart_s": float(reader.log().removeprefix(CONFIRMED)), "held_bytes": float(held)}
        finally:
            reader.kill()
    except ServerFailedError as error:
        raise NotMeasured(str(error)) from error
    finally:
        writer.kill()


def _child(program: Sequence[str], what: str, directory: Path) -> Server:
    command = [sys.executable, "-m", *program, what, str(directory)]
    child = Server(what, command, directory, environment())
    child.log_path.unlink(missing_ok=True)
    return child


def history() -> list[list[bytes]]:
    """What who is killed has appended before, by calls."""
    entries = different(HISTORY_ENTRY_BYTES, _HISTORY_CALL_ENTRIES)
    return [entries] * (_HISTORY_BYTES // HISTORY_ENTRY_BYTES // len(entries))


def write_until_killed(append: Callable[[list[bytes]], None]) -> None:
    """Says when the history is there, and goes on."""
    for entries in history():
        append(entries)
    print(WRITTEN, flush=True)
    while True:
        append(entries[:1])


def _main(module: Module, what: str, directory: Path) -> None:
    started_s = clock()
    store = module.open_store(directory)
    if what == "write":
        write_until_killed(store.append)
    store.append(different(HISTORY_ENTRY_BYTES, 1))
    print(CONFIRMED, clock() - started_s, flush=True)
    sys.stdin.read()  # until our parent has read it, and ends us


if __name__ == "__main__":
    _main(importlib.import_module(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
