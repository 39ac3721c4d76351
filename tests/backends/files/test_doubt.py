"""B3, B8: a storage that finds less than it had made durable serves what is intact, and is in doubt; no other is.

The journal of a killed process, one file or several, is damaged in every way at every place of its last groups, with its
durable mark as it was at the end, or as a power loss may have left it. Either everything acknowledged is served, or the
storage knows that something is lost; what the mark does not know may be a torn tail, and stays silent."""

import contextlib
import errno
import itertools
import random
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from replog.abc import UNBOUNDED, Doubt, PutBatch, SetMarks
from replog.backends.durable_mark import DurableMark
from replog.backends.files import storage as storage_module
from replog.backends.files.checkpoint import Checkpointer
from replog.backends.files.journal import Journal as FilesJournal
from replog.backends.files.maintenance import Maintenance
from replog.backends.files.record import PAGE_BYTES, RecordType, pack_record_header, payload_checksum
from replog.backends.files.replay import Replay
from replog.backends.files.storage import FilesStorage
from replog.errors import StorageDamagedError, StorageFailedError
from replog.testing.disk import MemoryDisk, PowerLoss
from replog.testing.storage_conformance import make_batch
from tests.backends.files.small_storage import small_files as small_files
from tests.backends.files.workload import CHANGES, FIRST_FILE, open_small, position_of, stop_at
from tests.simulator.mutation import Mutant, Patch

MARK = "/st/durable-mark"
GROUPS = 6


def put(group: int) -> list[PutBatch | SetMarks]:
    """Group n stores entry n of ledger 1, and raises the fence of ledger 2."""
    return [PutBatch(make_batch(1, group, 1)), SetMarks(2, b"key", group)]


class Journal:
    """A killed storage of some groups, where each begins and ends, and the mark after each."""

    def __init__(self, *, lives: int = 1) -> None:
        self.disk = MemoryDisk()
        self.ends = [PAGE_BYTES]
        self.marks = []
        for life in range(lives):
            self.disk = self.disk.after_kill()
            storage = open_small(self.disk)
            if not life:
                self.marks.append(bytes(self.disk.content(MARK)))
            for group in range(1 + life * GROUPS // lives, 1 + (life + 1) * GROUPS // lives):
                storage.commit(put(group))
                self.ends.append(position_of(storage))
                self.marks.append(bytes(self.disk.content(MARK)))
        self.disk = self.disk.after_kill()

    def damaged(self, damage: Callable[[bytearray], None], marked: int) -> MemoryDisk:
        disk = self.disk.after_kill()
        damage(disk.content(FIRST_FILE))
        disk.content(MARK)[:] = self.marks[marked]
        return disk


def served(storage: FilesStorage) -> list[int]:
    return [group for group in range(1, GROUPS + 1) if storage.read(1, group, 1, 0)]


def flips(journal: Journal, groups: int) -> Iterator[tuple[int, Callable[[bytearray], None]]]:
    """A flipped bit at each seventh byte of the last groups, and which group that is."""
    for group in range(GROUPS - groups, GROUPS):
        for offset in range(journal.ends[group], journal.ends[group + 1], 7):
            yield group + 1, lambda data, at=offset: data.__setitem__(at, data[at] ^ 1 << at % 8)  # type: ignore[misc]


def losses(journal: Journal) -> Iterator[tuple[int, Callable[[bytearray], None]]]:
    """Each seventh truncation and zeroed tail in the last three groups, and which group is the last one that is whole."""
    for group in range(GROUPS - 3, GROUPS):
        for length in range(journal.ends[group], journal.ends[group + 1], 7):
            yield group, lambda data, at=length: data.__delitem__(slice(at, None))  # type: ignore[misc]
            yield group, lambda data, at=length: data.__setitem__(slice(at, None), bytes(len(data) - at))  # type: ignore[misc]


@pytest.mark.parametrize("lives", [1, GROUPS])
@pytest.mark.parametrize("marked", [0, GROUPS - 2, GROUPS])
def test_storage_is_in_doubt_when_it_ends_before_its_mark(lives: int, marked: int) -> None:
    """Truncated anywhere in the last three groups, or zeroed from there on."""
    journal = Journal(lives=lives)
    outcomes = set()
    for whole, damage in losses(journal):
        with contextlib.closing(open_small(journal.damaged(damage, marked))) as storage:
            assert served(storage) == list(range(1, whole + 1))
            doubt = storage.doubt()
            assert (doubt.lost_below == UNBOUNDED) == (whole < marked)
            assert (doubt == Doubt()) == (whole >= marked)
            assert all(FIRST_FILE in reason for reason in doubt.reasons)
            outcomes.add(doubt == Doubt())
    assert outcomes == {0: {True}, GROUPS - 2: {True, False}, GROUPS: {False}}[marked]


@pytest.mark.parametrize("lives", [1, GROUPS])
@pytest.mark.parametrize("marked", [0, GROUPS])
def test_storage_serves_entries_around_a_flipped_bit(lives: int, marked: int) -> None:
    """A later group proves that the damaged one was durable, whatever the mark says."""
    journal = Journal(lives=lives)
    everything = list(range(1, GROUPS + 1))
    for group, damage in flips(journal, 3):
        with contextlib.closing(open_small(journal.damaged(damage, marked))) as storage:
            is_torn = group == GROUPS and not marked
            is_trusted = lives == 1 or marked
            around = [each for each in everything if each != group and (each < group or is_trusted)]
            assert served(storage) == around, "without the mark nobody knows the epoch of later processes"
            assert (storage.doubt() == Doubt()) == is_torn
            assert is_torn or storage.doubt().lost_below == UNBOUNDED
            assert storage.marks(2).fence_term == max(around)  # type: ignore[union-attr]


def test_loss_is_found_once_and_stays_known() -> None:
    """Damage, restart, restart again: the doubt persists, bounded as it was, with and without commits between."""
    journal = Journal()
    for group, damage in [*losses(journal)][::5] + [*flips(journal, 3)][::5]:
        for commits in (0, 2):
            disk = journal.damaged(damage, GROUPS)
            storage = open_small(disk)
            found = storage.doubt()
            assert found.is_unbounded
            before = served(storage)
            storage.bound_doubt(50)
            number = storage._journal.current.number
            for at in range(commits):
                storage.commit([PutBatch(make_batch(60 + at, 0))])
            for _ in range(3):
                disk = disk.after_kill()
                with contextlib.closing(open_small(disk)) as storage:
                    assert storage.doubt() == Doubt(50, 50, found.reasons), group
                    assert storage._journal.current.number == number, "it goes on where it went on"
                    assert served(storage) == before
                    assert [bool(storage.read(60 + at, 0, 1, 0)) for at in range(2)] == [True] * commits + [False] * (
                        2 - commits
                    )


def test_second_loss_raises_the_bounded_doubt() -> None:
    journal = Journal()
    disk = journal.damaged(lambda data: data.__delitem__(slice(journal.ends[-2], None)), GROUPS)
    storage = open_small(disk)
    storage.bound_doubt(50)
    storage.commit([PutBatch(make_batch(60, 0))])
    current = storage._journal.current
    disk = disk.after_kill()
    disk.content(current.path)[current.position - 1] ^= 1
    with contextlib.closing(open_small(disk)) as storage:
        assert storage.doubt().lost_below == UNBOUNDED
        assert len(storage.doubt().reasons) == 2
        assert current.path in storage.doubt().reasons[1]


def test_crash_at_every_change_of_a_start_in_doubt() -> None:
    """B8: the doubt is durable before anything else is changed, so no crash makes the loss unseen."""
    journal = Journal()
    spoil = journal.damaged(lambda data: data.__setitem__(journal.ends[3], 0), GROUPS)
    chance = random.Random(1)
    is_over, change = False, 0
    while not is_over:
        change += 1
        disk = spoil.after_kill()
        stop_at(disk, change)
        with contextlib.suppress(PowerLoss):
            open_small(disk)
            is_over = True
        for survivor in (disk.after_kill(), disk.after_power_loss(chance), disk.after_power_loss(chance)):
            for _ in range(2):
                storage = open_small(survivor)
                assert storage.doubt().lost_below == UNBOUNDED, change
                assert len(storage.doubt().reasons) == 1, change
                assert served(storage) == [1, 2, 3, 5, 6], change
                survivor = survivor.after_kill()
    assert change > 10


def test_doubt_is_durable_before_anything_else_is_changed() -> None:
    journal = Journal()
    disk = journal.damaged(lambda data: data.__setitem__(journal.ends[3], 0), GROUPS)
    changes: list[str] = []
    disk.fault = lambda operation, path: changes.append(path) if operation in CHANGES else None
    open_small(disk).close()
    paths = [path for path in changes if path not in ("/st/lock", "/st", "/")]
    assert paths[0].startswith("/st/doubt")
    assert all(path.startswith(("/st/doubt", "/st/durable-mark")) for path in paths[: paths.index(MARK) + 1])


def test_damaged_place_is_not_overwritten() -> None:
    """Whoever finds out what happened to it finds it as it was."""
    journal = Journal()
    disk = journal.damaged(lambda data: data.__setitem__(journal.ends[5], 0), GROUPS)
    before = bytes(disk.content(FIRST_FILE))
    storage = open_small(disk)
    storage.commit([PutBatch(make_batch(60, 0))])
    is_untouched = bytes(disk.content(FIRST_FILE)) == before  # pytest would take minutes to tell all differences
    assert is_untouched


def test_loss_is_accounted_for_without_a_new_catalog() -> None:
    """As on a full disk: the next start passes over the same damage, in silence."""
    journal = Journal()
    disk = journal.damaged(lambda data: data.__setitem__(journal.ends[3], 0), GROUPS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Maintenance, "adopt", lambda maintenance: None)
        patch.setattr(Checkpointer, "is_worthwhile", lambda checkpointer: False)
        storage = open_small(disk)
        doubt = storage.doubt()
        storage.bound_doubt(50)
        storage.commit([PutBatch(make_batch(60, 0))])
        for _ in range(3):
            disk = disk.after_kill()
            storage = open_small(disk)
            assert storage.doubt() == Doubt(50, 50, doubt.reasons)
            assert served(storage) == [1, 2, 3, 5, 6]
            assert storage.read(60, 0, 1, 0)


def rolled(monkeypatch: pytest.MonkeyPatch) -> tuple[MemoryDisk, list[str], int]:
    """A killed storage whose journal is to be replayed from several files; their paths; and the number of its groups."""
    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "is_worthwhile", lambda checkpointer: False)  # the mark of the catalog stays
        disk = MemoryDisk()
        storage = open_small(disk)
        groups = 0
        while len(storage._journal.sealed) < 4:
            groups += 1
            storage.commit([PutBatch(make_batch(1, groups, 1, size_bytes=9000))])
    return disk.after_kill(), [file.path for file in storage._journal.files.values()], groups


def entries(storage: FilesStorage, groups: int) -> list[int]:
    return [at for at in range(1, groups + 1) if storage.read(1, at, 1, 0)]


def zero(disk: MemoryDisk, path: str, other: str) -> None:
    disk.content(path)[:] = bytes(len(disk.content(path)))


def copy_over(disk: MemoryDisk, path: str, other: str) -> None:
    disk.content(path)[:] = bytes(disk.content(other))


SPOILERS: list[Callable[[MemoryDisk, str, str], None]] = [
    lambda disk, path, other: disk.unlink(path),
    zero,
    lambda disk, path, other: disk.content(path).clear(),
    copy_over,
]


def test_missing_zeroed_and_swapped_files_leave_others_served(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, paths, groups = rolled(monkeypatch)
    assert len(paths) == 5
    for spoil, at in itertools.product(SPOILERS, range(len(paths))):
        what, names = (spoil, at), [paths[at], paths[max(0, at - 1)]]
        survivor = disk.after_kill()
        spoil(survivor, paths[at], paths[at - 1])
        storage = open_small(survivor)
        doubt = storage.doubt()
        assert doubt.lost_below == UNBOUNDED, what
        assert any(name in doubt.reasons[0] for name in names), (what, doubt.reasons)
        left = entries(storage, groups)
        assert 0.6 * groups < len(left) < groups, (what, left)
        storage.commit([PutBatch(make_batch(1, groups + 1))])
        for _ in range(2):
            survivor = survivor.after_kill()
            storage = open_small(survivor)
            assert storage.doubt() == doubt, what
            assert entries(storage, groups) == left
            assert storage.read(1, groups + 1, 1, 0)


def test_every_journal_file_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, paths, groups = rolled(monkeypatch)
    for path in paths:
        disk.unlink(path)
    for _ in range(2):
        storage = open_small(disk)
        assert storage.doubt().lost_below == UNBOUNDED
        assert entries(storage, groups) == []
        disk = disk.after_kill()


def test_damaged_header_page_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sequences tell what the file holds, and the mark that nobody forged it."""
    disk, paths, groups = rolled(monkeypatch)
    for path in paths:
        survivor = disk.after_kill()
        survivor.content(path)[:PAGE_BYTES] = bytes(PAGE_BYTES)
        for _ in range(3):
            storage = open_small(survivor)
            assert storage.doubt() == Doubt()
            assert entries(storage, groups) == list(range(1, groups + 1))
            storage.commit([PutBatch(make_batch(2, 0))])
            survivor = survivor.after_kill()


def test_new_group_never_joins_stale_groups_behind_it() -> None:
    """Groups 5 and 6 can't be read at one start, and can at the next: they are not what comes after the new group."""
    journal = Journal()
    disk = journal.disk.after_kill()
    whole = bytes(disk.content(FIRST_FILE))
    del disk.content(FIRST_FILE)[journal.ends[4] :]
    storage = open_small(disk)
    assert storage.doubt().lost_below == UNBOUNDED
    storage.commit([SetMarks(2, None, 99), PutBatch(make_batch(1, 50, 1))])
    disk = disk.after_kill()
    disk.content(FIRST_FILE)[:] = whole
    storage = open_small(disk)
    assert served(storage) in ([1, 2, 3, 4], [1, 2, 3, 4, 5, 6])
    assert storage.read(1, 50, 1, 0)
    assert storage.marks(2).fence_term == 99  # type: ignore[union-attr]


def forged_group(storage: FilesStorage, sequence: int) -> bytes:
    """A whole group with an entry of this number, as a client may write it: it knows everything but the epoch."""
    batch = make_batch(1, sequence, 1)
    seed, checksum = storage._journal.current.seed, payload_checksum(batch.data)
    return pack_record_header(seed, RecordType.BATCH, batch.data, 0, True, 12345, sequence, checksum) + batch.data


def test_payload_is_never_taken_for_a_group_of_a_torn_tail() -> None:
    """A payload holds a whole group of the next sequence; the power fails while it is written, and its header is lost."""
    disk = MemoryDisk()
    storage = open_small(disk)
    for group in range(1, 6):
        storage.commit(put(group))
    start, mark, forged = position_of(storage), bytes(disk.content(MARK)), forged_group(storage, 6)
    storage.commit([PutBatch(make_batch(3, 0, 1, size_bytes=4000))])
    disk = disk.after_kill()
    content = disk.content(FIRST_FILE)
    content[start : start + 40] = bytes(40)
    content[start + 1000 : start + 1000 + len(forged)] = forged
    disk.content(MARK)[:] = mark
    with contextlib.closing(open_small(disk)) as storage:
        assert served(storage) == [1, 2, 3, 4, 5]
        assert storage.doubt() == Doubt()


def test_payload_is_never_taken_for_the_group_around_it() -> None:
    disk = MemoryDisk()
    storage = open_small(disk)
    storage.commit(put(1))
    start, forged = position_of(storage), forged_group(storage, 2)
    storage.commit([PutBatch(make_batch(3, 0, 1, size_bytes=4000))])
    disk = disk.after_kill()
    disk.content(FIRST_FILE)[start + 1000 : start + 1000 + len(forged)] = forged  # not as it was: the group is damaged
    with contextlib.closing(open_small(disk)) as storage:
        assert served(storage) == [1]
        assert storage.doubt().lost_below == UNBOUNDED


def test_kill_between_sync_and_mark_loses_nothing() -> None:
    """At each change of a commit: the group is there or not, and nothing is doubted."""
    journal = Journal()
    for change in range(1, 6):
        disk = journal.disk.after_kill()
        storage = open_small(disk)
        stop_at(disk, change)
        with contextlib.suppress(PowerLoss):
            storage.commit(put(GROUPS + 1))
        for survivor in (disk.after_kill(), disk.after_power_loss(random.Random(change))):
            storage = open_small(survivor)
            assert storage.doubt() == Doubt()
            assert served(storage) == list(range(1, GROUPS + 1))


def test_served_group_is_marked_after_a_kill() -> None:
    """The process died before it wrote the mark; the next one served the group, so that losing it is a loss."""
    journal = Journal()
    disk = journal.damaged(lambda data: None, GROUPS - 1)
    assert GROUPS in served(open_small(disk))
    disk = disk.after_kill()
    disk.content(FIRST_FILE)[journal.ends[-1] - 1] ^= 1
    assert open_small(disk).doubt().lost_below == UNBOUNDED


@pytest.mark.parametrize("name", ["durable-mark", "doubt"])
def test_storage_without_its_mark_or_doubt_serves_all_in_doubt(name: str) -> None:
    journal = Journal()
    disk = journal.disk.after_kill()
    disk.unlink(f"/st/{name}")
    for _ in range(2):
        storage = open_small(disk)
        assert served(storage) == list(range(1, GROUPS + 1))
        assert (storage.doubt().doubted_below, storage.doubt().lost_below) == (UNBOUNDED, 0)
        assert f"{name} is missing" in storage.doubt().reasons[0]
        assert len(storage.doubt().reasons) == 1
        disk = disk.after_kill()


def test_unreadable_pages_are_passed_over() -> None:
    """EIO at one page, for good: what is on others is served."""
    journal = Journal()
    disk = journal.disk.after_kill()
    bad = range(journal.ends[2] // 512 * 512, journal.ends[2] // 512 * 512 + 512)
    pread = disk.pread

    def failing(fd: int, size: int, offset: int) -> bytes:
        path, _ = disk._open[fd]
        if path == FIRST_FILE and offset < bad.stop and bad.start < offset + size:
            raise OSError(errno.EIO, "Input/output error")
        return pread(fd, size, offset)

    disk.pread = failing  # type: ignore[method-assign]
    storage = open_small(disk)
    assert storage.doubt().lost_below == UNBOUNDED
    assert any(f"{FIRST_FILE} can't be read at 4096" in reason for reason in storage.doubt().reasons)
    storage.commit(put(60))


def test_too_few_descriptors_do_not_damage_the_mark() -> None:
    journal = Journal()
    disk = journal.disk.after_kill()
    disk.content(FIRST_FILE).extend(bytes(1 << 20))

    def fault(operation: str, path: str) -> None:
        if operation == "pread" and path == FIRST_FILE:
            raise OSError(errno.EIO, "Input/output error")

    disk.fault = fault
    with pytest.raises(StorageFailedError, match=FIRST_FILE):
        open_small(disk)
    disk.fault = lambda operation, path: None
    assert open_small(disk).doubt() == Doubt()


def test_full_disk_gives_its_reserve_for_the_doubt() -> None:
    journal = Journal()
    disk = journal.damaged(lambda data: data.__setitem__(journal.ends[3], 0), GROUPS)
    disk.capacity_bytes = disk.size_bytes()
    storage = open_small(disk)
    assert storage.doubt().lost_below == UNBOUNDED


def test_an_earlier_catalog_is_refused_until_the_last_is_back() -> None:
    disk = MemoryDisk()
    storage = open_small(disk)
    storage.commit(put(1))
    earlier = bytes(disk.content("/st/catalog"))
    storage.close()
    later = bytes(disk.content("/st/catalog"))
    assert earlier != later
    disk.content("/st/catalog")[:] = earlier
    with pytest.raises(StorageDamagedError, match="/st/catalog is an earlier one"):
        open_small(disk)
    disk.content("/st/catalog")[:] = later
    assert open_small(disk).doubt() == Doubt()


def test_catalog_file_is_served_again_when_it_returns() -> None:
    """A missing log file stays in the catalog, whatever happens meanwhile; the doubt stays too."""
    disk = MemoryDisk()
    storage = open_small(disk)
    groups = 0
    while len(storage._contents.journals) < 4:
        groups += 1
        storage.commit([PutBatch(make_batch(1, groups, 1, size_bytes=9000))])
    storage.close()
    path = min(path for path in disk.paths() if path.endswith(".journal"))
    away = bytes(disk.content(path))
    disk.unlink(path)
    storage = open_small(disk)
    doubt = storage.doubt()
    assert doubt.lost_below == UNBOUNDED
    assert f"{path} is missing" in doubt.reasons[0]
    left = entries(storage, groups)
    assert 0 < len(left) < groups
    for at in range(8):
        storage.commit([PutBatch(make_batch(2, at, 1, size_bytes=9000))])
    storage.compact(is_major=True)
    storage.close()
    storage = open_small(disk)
    assert (storage.doubt(), entries(storage, groups)) == (doubt, left)
    storage.close()
    fd = disk.open(path, create=True)
    disk.pwritev(fd, (away,), 0)
    disk.fdatasync(fd)
    disk.close(fd)
    storage = open_small(disk)
    assert (storage.doubt(), entries(storage, groups)) == (doubt, list(range(1, groups + 1)))


# -- orders and conditions that matter, each of them broken once ------------------------------------------------------


def of_opening(old: str, new: str) -> Patch:
    return Patch(cast(type, storage_module), "open_directory", old, new)


MUTANTS: dict[str, tuple[Patch, Callable[[], None]]] = {
    "not-marked": (
        Patch(FilesJournal, "_synced", "self.mark.advance(sequence)", "pass"),
        lambda: test_storage_is_in_doubt_when_it_ends_before_its_mark(1, GROUPS),
    ),
    "not-marked-at-start": (
        of_opening("if mark.position < replay.sequence:", "if False:"),
        test_served_group_is_marked_after_a_kill,
    ),
    "doubted-too-late": (
        of_opening(
            "is_doubted = _doubt(disk, path, mark, replay, adopted, known)",
            "_settle_all(disk, journal, replay)\n        is_doubted = _doubt(disk, path, mark, replay, adopted, known)",
        ),
        test_doubt_is_durable_before_anything_else_is_changed,
    ),
    "doubt-not-written": (
        Patch(
            DurableMark,
            "raise_doubt",
            "self._write_doubt(DoubtRecord(self._identity, doubt, accounted, names))",
            "pass",
        ),
        test_crash_at_every_change_of_a_start_in_doubt,
    ),
    "not-accounted": (
        Patch(DurableMark, "raise_doubt", "max(self.accounted, accounted)", "self.accounted"),
        test_loss_is_accounted_for_without_a_new_catalog,
    ),
    "gaps-pass": (
        Patch(Replay, "_replay_file", "self._note_gap(file, start, group.sequence)", "pass"),
        lambda: test_storage_serves_entries_around_a_flipped_bit(1, 0),
    ),
    "any-epoch-counts": (
        Patch(Replay, "_find_group", "if is_trusted and not header.position:", "if not header.position:"),
        test_payload_is_never_taken_for_a_group_of_a_torn_tail,
    ),
    "looks-into-payloads": (
        Patch(Replay, "_find_group", "(header.length if is_trusted else 0)", "0"),
        test_payload_is_never_taken_for_the_group_around_it,
    ),
    "goes-on-behind-damage": (
        Patch(Replay, "_note_loss", "self._has_gaps = True", "pass"),
        test_damaged_place_is_not_overwritten,
    ),
    "sequence-begins-again": (
        Patch(
            cast(type, FilesStorage),
            "_assemble",
            "journal.sequence = replay.reached",
            "journal.sequence = replay.sequence",
        ),
        test_second_loss_raises_the_bounded_doubt,
    ),
    "earlier-catalog-counts": (
        of_opening("_check_generation(path, catalog, mark)", "pass"),
        test_an_earlier_catalog_is_refused_until_the_last_is_back,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_broken_doubt_is_found(name: str) -> None:
    patch, check = MUTANTS[name]
    with Mutant(name, "B8", "", (patch,), 1).applied(), pytest.raises((AssertionError, pytest.fail.Exception)):
        check()
