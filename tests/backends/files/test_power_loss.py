"""B1, B3: what was acknowledged survives any power loss, and what was not is there wholly or not at all."""

import contextlib
import errno
import random
from collections.abc import Callable

import pytest

from replog.errors import StorageFailedError, StorageFullError
from replog.testing.disk import MemoryDisk, PowerLoss
from tests.backends.files.workload import Workload, count_changes, open_small, stop_at

COMMITS = 30


def changes_of_a_run(seed: int) -> int:
    disk = MemoryDisk(seed)
    count = count_changes(disk)
    with contextlib.closing(open_small(disk)) as storage:
        Workload(seed).run(storage, COMMITS)
        statistics = storage.statistics()
    assert statistics["journal_recycled_files"] > 0, "the workload must roll and recycle, else it proves little"
    return count[0]


@pytest.mark.parametrize("seed", [1, 2])
def test_power_lost_at_every_change_of_the_disk(seed: int) -> None:
    changes = changes_of_a_run(seed)
    assert changes > 60
    for change in range(1, changes + 1):
        disk = MemoryDisk(seed)
        stop_at(disk, change)
        workload = Workload(seed)
        with pytest.raises(PowerLoss):
            workload.run(open_small(disk), COMMITS)
        chance = random.Random(change)
        for _ in range(2):  # and again while it starts
            disk = disk.after_power_loss(chance)
            stop_at(disk, chance.randint(1, 8))
            with contextlib.suppress(PowerLoss):
                open_small(disk)
        disk = disk.after_power_loss(chance)
        storage = open_small(disk)
        workload.settle(storage)
        workload.run(storage, 2)
        assert workload.state(storage) == workload.state(workload.acknowledged)


@pytest.mark.parametrize("seed", range(60))
def test_a_long_life_of_crashes(seed: int) -> None:
    """Kills, power losses, failed syncs and full disks one after the other, on one and the same disk."""
    chance = random.Random(seed)
    disk = MemoryDisk(seed)
    workload = Workload(seed)
    for _ in range(12):
        kind = chance.choice(("power", "power", "kill", "sync fails", "full"))
        stop_at(disk, chance.randint(1, 70), _reasons[kind])
        with contextlib.suppress(PowerLoss, StorageFailedError, StorageFullError):
            storage = open_small(disk)
            workload.settle(storage)
            try:
                workload.run(storage, 30)
            except StorageFullError:
                workload.not_written()
                assert workload.state(storage) == workload.state(workload.acknowledged)
        is_kill = kind == "kill" or (kind != "power" and chance.random() < 0.7)
        disk = disk.after_kill() if is_kill else disk.after_power_loss(chance)
    storage = open_small(disk)
    workload.settle(storage)
    assert len(workload.history) > 20


def _sync_fails(what: str) -> BaseException:
    return OSError(errno.EIO, "Input/output error") if what.startswith(("fdatasync", "pwritev")) else PowerLoss(what)


def _full(what: str) -> BaseException:
    return OSError(errno.ENOSPC, "No space left") if what.startswith(("allocate", "pwritev")) else PowerLoss(what)


_reasons: dict[str, Callable[[str], BaseException]] = {
    "power": PowerLoss,
    "kill": PowerLoss,
    "sync fails": _sync_fails,
    "full": _full,
}


def test_what_a_failed_sync_left_readable_is_durable_before_it_is_served() -> None:
    disk = MemoryDisk()
    workload = Workload(3)
    storage = open_small(disk)
    workload.run(storage, 3)

    def fault(operation: str, path: str) -> None:
        if operation == "fdatasync":
            raise OSError(errno.EIO, "Input/output error")

    disk.fault = fault
    with pytest.raises(StorageFailedError, match="could not sync"):
        workload.run(storage, 1)
    disk = disk.after_kill()
    storage = open_small(disk)  # the page cache still has the group, as if nothing had happened
    workload.settle(storage)
    assert len(workload.history) == 4
    for seed in range(20):
        survivor = open_small(disk.after_power_loss(random.Random(seed)))
        assert workload.state(survivor) == workload.state(workload.acknowledged)
