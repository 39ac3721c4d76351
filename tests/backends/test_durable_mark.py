"""The durable mark and the doubt (B8): no damage to either file may pass for a storage that vouches."""

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import attrs
import pytest

from replog.abc import UNBOUNDED, Doubt
from replog.backends.durable_mark import (
    DOUBT_FILE,
    MARK_FILE,
    REASON_CHARACTERS_MAX,
    REASONS_MAX,
    SLOT_OFFSETS,
    DoubtRecord,
    DurableMark,
    Slot,
    make_mark,
    pack_doubt,
    pack_mark,
    unpack_doubt,
    unpack_mark,
)
from replog.errors import StorageFailedError, StorageFullError
from replog.testing.disk import MemoryDisk, PowerLoss
from tests.backends.files.golden import as_hex

IDENTITY, OTHER = bytes(range(16)), bytes(range(1, 17))
DIRECTORY = "/bookie"
MARK, DOUBT = f"{DIRECTORY}/{MARK_FILE}", f"{DIRECTORY}/{DOUBT_FILE}"


def made(seed: int = 0) -> MemoryDisk:
    disk = MemoryDisk(seed)
    disk.make_directory(DIRECTORY)
    disk.sync_directory("/")
    make_mark(disk, DIRECTORY, IDENTITY)
    return disk


def opened(disk: MemoryDisk, identity: bytes = IDENTITY) -> DurableMark:
    return DurableMark(disk, DIRECTORY, identity)


def in_doubt(below: int) -> MemoryDisk:
    """A disk whose storage lost something, was told up to which ledger, and went on to position 9."""
    disk = made()
    mark = opened(disk)
    mark.raise_doubt(["a file is gone"], is_lost=True, position=8, accounted=8, names=["7.journal"])
    mark.bound(below)
    mark.advance(9)
    mark.close()
    return disk


def test_new_mark_vouches() -> None:
    mark = opened(made())
    assert (mark.position, mark.doubt, mark.cannot_vouch, mark.accounted) == (0, Doubt(), (), 0)


def test_mark_is_exact_after_a_kill() -> None:
    disk = made()
    mark = opened(disk)
    for position in range(1, 9):
        mark.advance(position)
        assert opened(disk.after_kill()).position == position


def test_mark_is_a_lower_bound_after_a_power_loss() -> None:
    found = set()
    for seed in range(200):
        disk = made(seed)
        mark = opened(disk)
        for position in range(1, 6):
            mark.advance(position)
        later = opened(disk.after_power_loss(random.Random(seed)))
        assert later.cannot_vouch == ()
        found.add(later.position)
    assert found > {0, 5}


@pytest.mark.parametrize("commits", [1, 2, 3, 98, 99])
def test_torn_write_leaves_the_mark_before(commits: int) -> None:
    """After any number of commits: what the write of the next one leaves of its slot, even nothing, the other slot is whole."""
    disk = made()
    mark = opened(disk)
    for position in range(1, commits + 1):
        mark.advance(position)
    before = bytes(disk.content(MARK))
    mark.advance(commits + 1)
    after = bytes(disk.content(MARK))
    changed = [place for place in range(len(after)) if before[place : place + 1] != after[place : place + 1]]
    first, last = changed[0], changed[-1] + 1
    for torn in (bytes(last - first), before[first : first + 20] + after[first + 20 : last], b"\xff" * (last - first)):
        slot = unpack_mark(after[:first] + torn + after[last:])
        assert slot is not None
        assert slot.position == commits


def test_older_copy_of_a_file_never_ends_a_doubt() -> None:
    """Of each moment of a life with losses each file is put back alone: what is doubted, or lost, now is so then."""
    disk = made()
    mark = opened(disk)
    moments: list[tuple[bytes, bytes, Doubt]] = []

    def look() -> None:
        moments.append((bytes(disk.content(MARK)), bytes(disk.content(DOUBT)), mark.doubt))
        marks, doubts, now = moments[-1]
        for older_mark, older_doubt, _ in moments:
            for contents in ((older_mark, doubts), (marks, older_doubt)):
                again = made()
                for name, data in zip((MARK_FILE, DOUBT_FILE), contents, strict=True):
                    again.content(f"{DIRECTORY}/{name}")[:] = data
                found = opened(again).doubt
                assert found.doubted_below >= now.doubted_below
                assert found.lost_below >= now.lost_below

    look()
    for position, below, is_lost in ((5, 10, False), (20, 40, True), (50, 60, True)):
        mark.advance(position)
        look()
        mark.raise_doubt([f"at {position}"], is_lost=is_lost, position=position - 1)
        look()
        mark.bound(below)
        look()
        mark.advance(position + 1)
        look()
        mark.settle(mark.doubt, mark.doubt.settled(below // 2, frozenset()))
        look()


def test_synced_mark_survives_a_power_loss() -> None:
    disk = made()
    mark = opened(disk)
    mark.advance(5)
    mark.sync()
    mark.advance(6)
    assert {opened(disk.after_power_loss(random.Random(seed))).position for seed in range(20)} == {5, 6}


def test_doubt_persists_and_is_bounded_once() -> None:
    mark = opened(in_doubt(40))
    assert mark.doubt == Doubt(40, 40, ("a file is gone",))
    assert (mark.position, mark.accounted, mark.accounted_names) == (9, 8, ("7.journal",))
    mark.bound(90)
    assert mark.doubt.doubted_below == 40


def test_settled_doubt_is_gone_durably() -> None:
    """B8: the bookie has fenced those ledgers, and vouches again."""
    disk = in_doubt(40)
    mark = opened(disk)
    mark.settle(Doubt(41, 40), Doubt())
    assert mark.doubt.doubted_below == 40, "another doubt than the one that was looked into"
    mark.settle(mark.doubt, mark.doubt.settled(12, {30}))
    assert opened(disk).doubt == mark.doubt == Doubt(12, 12, ("a file is gone",), 40, frozenset({30}))
    mark.settle(mark.doubt, mark.doubt.settled(0, {3}))
    again = opened(disk)
    assert again.doubt == Doubt(fences_lost_below=40, fenced_again=frozenset({3, 30}))
    assert (again.accounted, again.accounted_names) == (8, ("7.journal",)), "the same gap is not found again"


def test_new_doubt_raises_a_bounded_one() -> None:
    disk = in_doubt(40)
    mark = opened(disk)
    mark.raise_doubt(["once more"], is_lost=False, position=9)
    assert opened(disk).doubt == Doubt(UNBOUNDED, 40, ("a file is gone", "once more"))
    mark.bound(50)
    assert opened(disk).doubt == Doubt(50, 40, ("a file is gone", "once more"))


def test_new_loss_may_include_restored_fences() -> None:
    """B8: but never lowers the bound below which fences were lost."""
    disk = in_doubt(40)
    mark = opened(disk)
    mark.settle(mark.doubt, mark.doubt.settled(0, {3}))
    mark.raise_doubt(["once more"], is_lost=True, position=9)
    mark.bound(50)
    assert opened(disk).doubt == mark.doubt == Doubt(50, 50, ("once more",), 40)
    mark.settle(mark.doubt, mark.doubt.settled(0))
    assert opened(disk).doubt == Doubt(fences_lost_below=50)


@pytest.mark.parametrize(
    ("doubt", "taken"),
    [
        (Doubt(), {0, 39, 40, 50}),
        (Doubt(40, 40), {40, 50}),
        (Doubt(0, 0, (), 40, frozenset({39})), {39, 40, 50}),
        (Doubt(50, 0, (), 40, frozenset({39})), {50}),
    ],
)
def test_adds_are_taken_where_no_fence_was_lost(doubt: Doubt, taken: set[int]) -> None:
    """B8."""
    assert {each for each in (0, 39, 40, 50) if doubt.takes_adds(each)} == taken


def test_mark_may_be_set_back() -> None:
    disk = made()
    mark = opened(disk)
    mark.advance(100)
    mark.raise_doubt(["an older file was put there"], is_lost=True, position=30)
    for survivor in (disk.after_kill(), disk.after_power_loss(random.Random(1))):
        assert opened(survivor).position == 30
    mark.advance(31)
    assert opened(disk.after_kill()).position == 31


def test_reasons_stay_few_and_short() -> None:
    disk = made()
    mark = opened(disk)
    for number in range(3 * REASONS_MAX):
        mark.raise_doubt([f"{number}: " + "x" * 10_000, "always"], is_lost=True, position=0)
    reasons = opened(disk).doubt.reasons
    assert len(reasons) == REASONS_MAX
    assert max(map(len, reasons)) == REASON_CHARACTERS_MAX
    assert reasons[0].startswith("0:")
    assert reasons[-1].startswith(f"{3 * REASONS_MAX - 1}:")


@pytest.mark.parametrize("name", [MARK_FILE, DOUBT_FILE])
@pytest.mark.parametrize("below", [0, 40])
def test_damaged_file_never_means_no_doubt(name: str, below: int) -> None:
    """B8: each flipped bit, each cut, and zeros: the mark stays what it is, or the storage cannot vouch."""
    whole = in_doubt(below) if below else made()
    size = len(whole.content(f"{DIRECTORY}/{name}"))
    meaningful = range(size) if name == DOUBT_FILE else [*range(64), *range(SLOT_OFFSETS[1], SLOT_OFFSETS[1] + 64)]
    damages: list[Callable[[bytearray], None]] = []
    for place in meaningful:
        damages.append(lambda data, place=place: data.__setitem__(place, data[place] ^ 1 << place % 8))  # type: ignore[misc]
        damages.append(lambda data, place=place: data.__delitem__(slice(place, None)))  # type: ignore[misc]
    damages.append(lambda data: data.__setitem__(slice(None), bytes(len(data))))
    for damage in damages:
        disk = whole.after_kill()
        damage(disk.content(f"{DIRECTORY}/{name}"))
        mark = opened(disk)
        if mark.cannot_vouch:
            assert mark.doubt.doubted_below == UNBOUNDED
        else:
            assert name == MARK_FILE, "the other slot counts"
            assert mark.doubt.doubted_below == below
            assert mark.position in (8, 9) if below else mark.position == 0
        assert mark.doubt.lost_below == below


@pytest.mark.parametrize("name", [MARK_FILE, DOUBT_FILE])
def test_storage_cannot_vouch_when_a_file_is_missing(name: str) -> None:
    disk = in_doubt(40)
    disk.unlink(f"{DIRECTORY}/{name}")
    mark = opened(disk)
    assert len(mark.cannot_vouch) == 1
    assert f"{name} is missing" in mark.cannot_vouch[0]
    assert (mark.doubt.doubted_below, mark.doubt.lost_below) == (UNBOUNDED, 40)
    mark.raise_doubt(mark.cannot_vouch, is_lost=False, position=9)
    mark.advance(10)
    mark = opened(disk.after_kill())
    assert mark.cannot_vouch == ()
    assert mark.position == 10
    assert (mark.doubt.doubted_below, mark.doubt.lost_below) == (UNBOUNDED, 40)


def test_storage_cannot_vouch_by_another_bookies_files() -> None:
    mark = opened(in_doubt(40), OTHER)
    assert [f"bookie-{IDENTITY.hex()}" in reason for reason in mark.cannot_vouch] == [True, True]
    assert mark.doubt == Doubt(UNBOUNDED, 0)
    mark.raise_doubt(mark.cannot_vouch, is_lost=False, position=1)
    mark.advance(2)
    assert mark.position == 2


def test_crash_while_doubt_is_raised_keeps_old_or_new() -> None:
    """B8: a crash before every change: either the loss is found again, or the doubt is there."""
    outcomes = set()
    for steps in range(40):
        disk = made()
        mark = opened(disk)
        mark.advance(7)
        mark.sync()
        left = steps

        def stop(operation: str, path: str) -> None:
            nonlocal left
            if not left:
                raise PowerLoss
            left -= 1

        disk.fault = stop
        with suppress(PowerLoss):
            mark.raise_doubt(["gone"], is_lost=True, position=5, accounted=5)
        for survivor in (disk.after_kill(), *(disk.after_power_loss(random.Random(seed)) for seed in range(5))):
            later = opened(survivor)
            assert later.cannot_vouch == ()
            is_found_again = later.position == 7
            is_doubted = later.doubt.lost_below == UNBOUNDED
            assert is_found_again or is_doubted
            outcomes.add((is_found_again, is_doubted))
    assert outcomes == {(True, False), (True, True), (False, True)}


def test_full_disk_leaves_the_doubt_as_it_was() -> None:
    disk = made()
    mark = opened(disk)
    mark.raise_doubt(["gone"], is_lost=True, position=0)
    disk.capacity_bytes = disk.size_bytes()
    with pytest.raises(StorageFullError):
        mark.bound(30)
    assert mark.doubt.is_unbounded
    assert opened(disk.after_kill()).doubt.is_unbounded
    mark.advance(1)  # overwrites what is there


def test_failed_write_of_the_mark_stops_the_storage() -> None:
    disk = made()
    mark = opened(disk)

    def fail(operation: str, path: str) -> None:
        raise OSError(number, "as it says")

    disk.fault = fail
    number = 28
    mark.advance(1)
    assert mark.position == 0, "a lower bound"
    number = 5
    with pytest.raises(StorageFailedError, match=MARK_FILE):
        mark.advance(1)


def test_a_lack_of_descriptors_is_not_a_damaged_mark() -> None:
    disk = in_doubt(40)

    def fail(operation: str, path: str) -> None:
        if operation == "pread" and path == MARK:
            raise OSError(number, "as it says")

    disk.fault = fail
    number = 5
    assert "can't be read" in opened(disk).cannot_vouch[0]
    number = 24
    with pytest.raises(StorageFailedError):
        opened(disk)


def test_mark_writes_in_pieces() -> None:
    disk = made()
    mark = opened(disk)
    disk.write_bytes_max = 7
    mark.advance(3)
    assert opened(disk.after_kill()).position == 3


def golden(name: str) -> bytes:
    return (Path(__file__).parents[1] / "formats" / name).read_bytes()


SLOT = Slot(7, 1000, bytes.fromhex("01010101010141018101010101010101"), 30, 20, 5)
RECORD = DoubtRecord(
    SLOT.identity,
    Doubt(30, 20, ("000000000001.journal is damaged at 4096",), 25, frozenset({24, 7})),
    999,
    ("000000000002.log",),
)


def test_the_same_bytes_are_written_and_read() -> None:
    assert as_hex(pack_mark(SLOT)) == golden("durable-mark-v1.hex").decode()
    assert unpack_mark(pack_mark(SLOT)) == attrs.evolve(SLOT, generation=8)
    assert pack_doubt(RECORD) == golden("doubt-v1.txt")
    assert unpack_doubt(golden("doubt-v1.txt")) == RECORD
