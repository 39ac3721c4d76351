"""The machine stops at every change of the disk of one run, many times over: what each of the things left must still have.

One run is enough: where it would stop, copies of what a crash may leave are opened and looked at, and then it goes on."""

from __future__ import annotations

import contextlib
import random

from replog.abc import Doubt
from replog.backends.files.options import FilesTuning
from replog.protocol.mutations import PutBatch
from replog.testing.disk import MemoryDisk, PowerLoss
from replog.testing.storage_conformance import make_batch
from tests.backends.files.workload import (
    CHANGES,
    FRESH_LEDGER,
    State,
    Workload,
    count_kinds,
    frequent_looks,
    open_small,
    stop_at,
)

STEPS = 9
_START_CHANGES_MAX = 25


class WrongAfterCrash(BaseException):
    """What a crash left is not what it must be. Not an Exception, so that the storage doesn't take it for one of its own."""


class Explorer:
    """A run of a workload, and the crashes on its way. `outcomes` of each are looked at, of a `share` of all changes. Of a
    writer that `is_fast` new journal files are allocated, those of others are filled."""

    def __init__(
        self, seed: int, options: FilesTuning, *, outcomes: int, share: float = 1.0, is_fast: bool = False
    ) -> None:
        self._name = f"seed {seed}, journal {options.journal_dir or 'inside'}"
        self._options = options
        self._chance = random.Random(seed)
        self._outcomes = outcomes
        self._share = share
        self.changes = self.crashes = self.found_in_flight = 0
        self.workload = Workload(seed, options)
        self.disk = MemoryDisk(seed)
        self.disk.clock_step_s = 0.0 if is_fast else 1.0
        self.disk.fault = self._crash_here
        self.kinds = count_kinds(self.disk)

    def run(self, steps: int = STEPS) -> None:
        """The whole run, to a clean close. Raises `WrongAfterCrash`, which tells where."""
        self.workload.live(self.disk, steps)
        self.disk = self.disk.after_power_loss(self._chance)
        with contextlib.closing(open_small(self.disk, self._options)) as storage:
            self.workload.check(storage)

    def _crash_here(self, operation: str, path: str) -> None:
        if operation not in CHANGES:
            return
        self.changes += 1
        if self._chance.random() >= self._share:
            return
        for outcome in range(self._outcomes + 2 * self._deceives(operation, path)):
            self.crashes += 1
            try:
                self._crash(is_kill=outcome >= self._outcomes, goes_on=outcome > self._outcomes)
            except Exception as error:
                where = f"{self._name}, change {self.changes}: {operation} {path}, outcome {outcome}"
                raise WrongAfterCrash(f"{where}: {error!r}") from error

    def _deceives(self, operation: str, path: str) -> bool:
        """Where names are not durable yet, a process that is killed deceives the next one the most."""
        return operation == "sync_directory" and self._chance.random() < (0.3 if path.endswith(("st", "logs")) else 0.6)

    def _crash(self, *, is_kill: bool, goes_on: bool) -> None:
        chance = self._chance
        disk = self.disk.after_kill() if is_kill else self._left_of(self.disk)
        for _ in range(0 if goes_on else chance.choice((1, 2) if is_kill else (0, 0, 1, 2))):  # and while it starts
            stop_at(disk, chance.randint(1, _START_CHANGES_MAX))
            with contextlib.suppress(PowerLoss):
                open_small(disk, self._options)
            disk = disk.after_power_loss(chance) if is_kill else self._left_of(disk)
        storage = open_small(disk, self._options)
        found = self.workload.check(storage)
        self.found_in_flight += found != self.workload.expected()[0]
        self._expect(disk.after_power_loss(chance), found)  # what was served once stays
        if goes_on or chance.random() < 0.2:
            self._go_on(disk, found)
        else:
            storage.close()
            self._expect(disk.after_power_loss(chance), found)
            assert disk.open_count == 0
            assert not [path for path in disk.paths() if path.endswith(".tmp")]

    def _left_of(self, disk: MemoryDisk) -> MemoryDisk:
        return disk.after_power_loss(self._chance) if self._chance.random() < 0.7 else disk.after_kill()

    def _expect(self, disk: MemoryDisk, state: State, fresh: int = 0) -> None:
        storage = open_small(disk, self._options)
        assert storage.doubt() == Doubt(), "nothing was lost, and it is doubted"
        assert self.workload.state(storage) == state, "it was there after the crash, and is gone now"
        for at in range(fresh):
            assert storage.read(FRESH_LEDGER + at, 0, 1, 0), "what was committed after the crash is gone"

    def _go_on(self, disk: MemoryDisk, state: State) -> None:
        disk = disk.after_kill()
        storage = open_small(disk, self._options)
        count = self._chance.randint(2, 6)
        for at in range(count):
            storage.commit([PutBatch(make_batch(FRESH_LEDGER + at, 0, 3, size_bytes=self._chance.choice((10, 7000))))])
            if self._chance.random() < 0.4:
                self._expect(disk.after_power_loss(self._chance), state, at + 1)
        with frequent_looks():
            storage.compact(is_major=True)
        assert self.workload.state(storage) == state, "compaction changed what can be read"
        self._expect(self._left_of(disk), state, count)
        storage.close()
        self._expect(self._left_of(disk), state, count)
