"""B1, B3, B6: what was acknowledged survives any power loss, and what was not is there wholly or not at all."""

import contextlib
import errno
import random
from collections import Counter
from collections.abc import Callable

import pytest

from replog.errors import StorageFailedError, StorageFullError
from replog.testing.disk import MemoryDisk, PowerLoss
from tests.backends.files.exploring import Explorer
from tests.backends.files.workload import (
    ADOPTION,
    ELSEWHERE,
    EVERYTHING,
    INSIDE,
    PROFILES,
    Workload,
    frequent_looks,
    open_small,
    stop_at,
)
from tests.lanes.seeds import seeds


def expect_everything(kinds: Counter[str], profile: str) -> None:
    """The run passed through all that there is, else it proves little."""
    expected = EVERYTHING if profile == "elsewhere" else {**EVERYTHING, **ADOPTION}
    assert not {kind: why for kind, why in expected.items() if kinds[kind] < 3}


@pytest.mark.parametrize(
    ("profile", "is_fast"),
    [
        pytest.param("inside", False, id="inside-filled", marks=pytest.mark.long(is_sampled=False)),
        pytest.param("elsewhere", True, id="elsewhere-allocated", marks=pytest.mark.long(is_sampled=False)),
        pytest.param("inside", True, id="inside-allocated", marks=pytest.mark.long(is_sampled=False)),
        pytest.param("elsewhere", False, id="elsewhere-filled", marks=pytest.mark.long(is_sampled=False)),
    ],
)
def test_power_lost_at_every_change_of_the_disk(profile: str, *, is_fast: bool) -> None:
    explorer = Explorer(3, PROFILES[profile], outcomes=1, is_fast=is_fast)
    explorer.run()
    assert (explorer.kinds["allocate new journal file"] > 10) == is_fast
    assert explorer.crashes > explorer.changes > 400
    assert explorer.found_in_flight > 20, "some of what was in flight must survive too"
    expect_everything(explorer.kinds, profile)


@pytest.mark.sized
@pytest.mark.crash
@pytest.mark.parametrize("profile", ["inside", pytest.param("elsewhere", marks=pytest.mark.long(is_sampled=False))])
def test_storage_opens_after_many_power_losses(profile: str, is_long: bool) -> None:
    kinds: Counter[str] = Counter()
    for seed in range(100, 112 if is_long else 102):
        outcomes, share = (4, 1.0) if is_long else (1, 0.07)
        explorer = Explorer(seed, PROFILES[profile], outcomes=outcomes, share=share, is_fast=seed % 2 == 1)
        explorer.run()
        kinds += explorer.kinds
    expect_everything(kinds, profile)


@pytest.mark.parametrize("seed", seeds(30, few=12))
def test_a_long_life_of_crashes(seed: int) -> None:
    """Kills, power losses, failed syncs and full disks one after the other, on one and the same disk."""
    options = (INSIDE, ELSEWHERE)[seed % 2]
    chance = random.Random(seed)
    disk = MemoryDisk(seed)
    disk.clock_step_s = float(seed % 3 > 0)
    workload = Workload(seed, options)
    for _ in range(12):
        kind = chance.choice(("power", "power", "kill", "sync fails", "full"))
        stop_at(disk, chance.randint(1, 160), _reasons[kind])
        with contextlib.suppress(PowerLoss, StorageFailedError, StorageFullError), frequent_looks():
            storage = open_small(disk, options)
            workload.settle(storage)
            try:
                for is_major in (False, True, True):
                    workload.run(storage, 10)
                    storage.compact(is_major=is_major)
            except StorageFullError:
                workload.not_written()
                assert workload.state(storage) == workload.state(workload.acknowledged)
        is_kill = kind == "kill" or (kind != "power" and chance.random() < 0.7)
        disk = disk.after_kill() if is_kill else disk.after_power_loss(chance)
    storage = open_small(disk, options)
    workload.settle(storage)
    assert len(workload.history) > 20


def _sync_fails(what: str) -> BaseException:
    is_content = what.startswith(("fdatasync", "pwritev", "sync_directory"))
    return OSError(errno.EIO, "Input/output error") if is_content else PowerLoss(what)


def _full(what: str) -> BaseException:
    return OSError(errno.ENOSPC, "No space left") if what.startswith(("allocate", "pwritev")) else PowerLoss(what)


_reasons: dict[str, Callable[[str], BaseException]] = {
    "power": PowerLoss,
    "kill": PowerLoss,
    "sync fails": _sync_fails,
    "full": _full,
}


def test_group_after_failed_sync_is_durable_before_served() -> None:
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
