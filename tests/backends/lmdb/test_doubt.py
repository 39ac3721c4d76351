"""B8: what an LMDB storage cannot vouch for it says, and goes on saying; what is intact it serves, whatever page is damaged."""

import contextlib
import errno
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest

from replog.abc import UNBOUNDED, Doubt, DropLedger, PutBatch, SetMarks
from replog.backends.lmdb import records, vouching
from replog.backends.lmdb.options import LMDBStorageTuning
from replog.backends.lmdb.storage import LMDBStorage, open_storage
from replog.errors import (
    StorageError,
    StorageFailedError,
    StorageFullError,
    StorageIdentityError,
    StorageUncertainError,
)
from replog.protocol.mutations import DELETED_TERM, Marks
from replog.runtime import lmdb_file
from replog.runtime.lmdb_file import META_PAGES, check_data_file, read_meta
from replog.runtime.lmdb_pages import Pages, _Counts
from replog.testing.storage_conformance import make_batch

OPTIONS = LMDBStorageTuning(map_bytes=1 << 20)
PAGE = 4096
LEDGERS = range(1, 25)
FENCED = range(100, 140)
DROPPED = 50
BATCHES = [
    make_batch(ledger_id, 3 * number, 3, size_bytes=(30, 300, 3000)[(ledger_id + number) % 3])
    for number in range(12)
    for ledger_id in LEDGERS
]


@contextlib.contextmanager
def opened(path: Path) -> Iterator[LMDBStorage]:
    with contextlib.closing(open_storage(str(path), OPTIONS)) as storage:
        yield storage


def fill(storage: LMDBStorage) -> None:
    for start in range(0, len(BATCHES), 16):
        storage.commit([PutBatch(batch) for batch in BATCHES[start : start + 16]])
    storage.commit([PutBatch(make_batch(DROPPED, 0, 1)), DropLedger(DROPPED + 2)])
    storage.commit([DropLedger(DROPPED)])
    for ledger_id in FENCED:
        storage.commit([SetMarks(ledger_id, b"key", fence_term=2)])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage that was closed."""
    path = tmp_path_factory.mktemp("whole")
    with opened(path) as storage:
        fill(storage)
        storage.compact()
    return path


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "storage"))


def judge(storage: LMDBStorage, batches: int = len(BATCHES), fenced: range = FENCED) -> int:
    """How much of what was acknowledged is not served. None of it may be denied without doubt, or be wrong."""
    missing = 0
    lost_below = storage.doubt().lost_below
    for batch in BATCHES[:batches]:
        for entry_id in batch.entry_ids:
            with contextlib.suppress(StorageUncertainError):
                found = storage.read(batch.ledger_id, entry_id, 1, 0)
                if found == [batch]:
                    continue
                assert found == [], "wrong data"
                assert storage.doubt().lost_below > batch.ledger_id, f"{batch} is denied, and nothing is in doubt"
            missing += 1
    for ledger_id in fenced:
        with contextlib.suppress(StorageUncertainError):
            marks = storage.marks(ledger_id)
            if marks == Marks(b"key", 2):
                continue
            assert marks is None
            assert storage.doubt().lost_below > ledger_id, f"the fence of {ledger_id} is forgotten"
        missing += 1
    with contextlib.suppress(StorageUncertainError):
        assert storage.marks(DROPPED) == Marks(fence_term=DELETED_TERM) or lost_below > DROPPED
    return missing


def judge_in_child(path: Path) -> tuple[bool, bool]:
    """In a process of its own, which must end by itself: whether the storage started, and whether it is in doubt."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        status = 7
        try:
            with opened(path) as storage:
                judge(storage)
                storage.commit([SetMarks(7, fence_term=5), PutBatch(make_batch(8, 1000, 1))])
                status = 1 if storage.doubt().lost_below else 0
        except StorageError:
            status = 2
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
        os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, 1, 2), "it lied, or the process was ended"
    return status != 2, status == 1


# -- nothing was lost ---------------------------------------------------------------------------------------------


def test_storage_vouches_after_a_close_and_after_a_kill(path: Path, tmp_path: Path) -> None:
    with opened(path) as storage:
        assert storage.doubt() == Doubt()
        assert judge(storage) == 0
        storage.commit([SetMarks(200, fence_term=1)])
        killed = shutil.copytree(path, tmp_path / "killed")  # as a kill leaves it
    with opened(Path(killed)) as storage:
        assert storage.doubt() == Doubt()
        assert storage.marks(200) == Marks(None, 1)


def test_empty_commit_moves_no_mark(path: Path) -> None:
    with opened(path) as storage:
        for _ in range(3):
            storage.commit([])
            storage.commit([PutBatch(make_batch(DROPPED, 0, 1))])
    with opened(path) as storage:
        assert storage.doubt() == Doubt()


def test_newer_state_than_the_mark_is_vouched_for(path: Path) -> None:
    """The mark is not synced: after a power loss it is a lower bound."""
    mark = (path / "durable-mark").read_bytes()
    with opened(path) as storage:
        storage.commit([SetMarks(200, fence_term=1)])
    (path / "durable-mark").write_bytes(mark)
    with opened(path) as storage:
        assert storage.doubt() == Doubt()
        assert storage.marks(200) == Marks(None, 1)


def test_damage_to_the_older_meta_page_loses_nothing(path: Path) -> None:
    data = path / "data.mdb"
    older = 1 - check_data_file(str(data)).page
    zero(data, older * PAGE, PAGE)
    with opened(path) as storage:
        assert storage.doubt() == Doubt()
        assert judge(storage) == 0
    assert judge_in_child(path) == (True, False)


# -- something was lost -------------------------------------------------------------------------------------------


def zero(file: Path, offset: int, size: int) -> None:
    with file.open("r+b") as opened_file:
        opened_file.seek(offset)
        opened_file.write(bytes(size))


def check_lost(path: Path) -> int:
    """It doubts all ledgers, until it is told how many there were; it remembers that, and finds the loss only once."""
    with opened(path) as storage:
        assert (storage.doubt().doubted_below, storage.doubt().lost_below) == (UNBOUNDED, UNBOUNDED)
        assert all("data.mdb" in reason for reason in storage.doubt().reasons)
        missing = judge(storage)
        storage.bound_doubt(300)
    for _ in range(2):
        with opened(path) as storage:
            assert (storage.doubt().doubted_below, storage.doubt().lost_below) == (300, 300)
            assert judge(storage) == missing
            storage.commit([SetMarks(7, fence_term=9)])
    return missing


@pytest.mark.parametrize("offset", [0, 10, 16, 20, 24 + 16 + 88, 24 + 16 + 104])
def test_damaged_newest_meta_page_is_a_loss(path: Path, offset: int) -> None:
    """LMDB would fall back to the one before it, silently: one fence is missing."""
    data = path / "data.mdb"
    newest = check_data_file(str(data)).page
    content = bytearray(data.read_bytes())
    content[newest * PAGE + offset] ^= 1 if offset else 2
    data.write_bytes(content)
    check_lost(path)


def test_older_copy_of_the_data_file_is_a_loss(path: Path) -> None:
    copy = (path / "data.mdb").read_bytes()
    with opened(path) as storage:
        storage.commit([SetMarks(200, fence_term=1)])
        storage.commit([SetMarks(201, fence_term=1)])
    (path / "data.mdb").write_bytes(copy)
    assert check_lost(path) == 0
    with opened(path) as storage:
        assert storage.marks(200) is None


def test_truncated_data_file_is_a_loss_and_the_rest_is_served(path: Path) -> None:
    data = path / "data.mdb"
    os.truncate(data, data.stat().st_size * 3 // 4)
    assert 0 < check_lost(path) < len(BATCHES) * 3


def test_truncation_anywhere_is_never_absence(whole: Path, tmp_path: Path) -> None:
    size = (whole / "data.mdb").stat().st_size
    chance = random.Random(1)
    started = 0
    for length in [0, 100, PAGE, 2 * PAGE, 3 * PAGE, size - 1, *(chance.randrange(size) for _ in range(8))]:
        path = shutil.copytree(whole, tmp_path / "torn", dirs_exist_ok=True)
        os.truncate(path / "data.mdb", length)
        is_started, is_in_doubt = judge_in_child(path)
        started += is_started
        assert is_in_doubt or not is_started or length >= size - PAGE
    assert started >= 3


@pytest.mark.parametrize(
    "share", [0, *(pytest.param(each, marks=pytest.mark.long(is_sampled=False)) for each in range(1, 8))]
)
@pytest.mark.sized
def test_zeroed_page_anywhere_is_never_absence(whole: Path, tmp_path: Path, share: int, is_long: bool) -> None:
    pages = (whole / "data.mdb").stat().st_size // PAGE
    doubts = 0
    for page in range(share, pages, (8 if is_long else 16) * max(1, pages // 160)):
        path = shutil.copytree(whole, tmp_path / "torn", dirs_exist_ok=True)
        zero(path / "data.mdb", page * PAGE, PAGE)
        is_started, is_in_doubt = judge_in_child(path)
        assert is_started
        doubts += is_in_doubt
    assert doubts


def test_zeroed_tail_is_never_absence(whole: Path, tmp_path: Path) -> None:
    size = (whole / "data.mdb").stat().st_size
    for kept in (PAGE, 2 * PAGE, 10 * PAGE, size // 2, size - 3 * PAGE):
        path = shutil.copytree(whole, tmp_path / "torn", dirs_exist_ok=True)
        zero(path / "data.mdb", kept, size - kept)
        is_started, is_in_doubt = judge_in_child(path)
        assert is_in_doubt or not is_started or kept > size // 2


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(each, marks=pytest.mark.long(is_sampled=False)) for each in range(1, 8))]
)
@pytest.mark.sized
def test_flipped_bit_anywhere_is_never_absence(whole: Path, tmp_path: Path, seed: int, is_long: bool) -> None:
    """In the roots and in LMDB's pages, too, and none ends the process."""
    content = (whole / "data.mdb").read_bytes()
    used = [at for at in range(len(content)) if content[at]]
    heads = [at for at in used if at % PAGE < 200]
    chance = random.Random(seed)
    of_any, of_heads = (7, 12) if is_long else (4, 6)
    for offset in [*chance.sample(used, of_any), *chance.sample(heads, of_heads), *chance.sample(range(152), 1)]:
        path = shutil.copytree(whole, tmp_path / "torn", dirs_exist_ok=True)
        torn = bytearray(content)
        torn[offset] ^= 1 << chance.randrange(8)
        (path / "data.mdb").write_bytes(torn)
        judge_in_child(path)


def test_damaged_key_of_a_lone_fence_counts_as_loss(path: Path) -> None:
    """Nothing else tells of such a ledger: its checksum is under the key of another one now."""
    with lmdb.open(str(path)) as environment, environment.begin(write=True) as transaction:
        value = transaction.pop(records.id_key(records.LEDGER, 139))
        assert value is not None
        transaction.put(records.id_key(records.LEDGER, 155), value)
    assert check_lost(path) == 1


# -- what can't be known ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["durable-mark", "doubt"])
@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_bytes(b""), lambda file: zero(file, 0, 8192)])
def test_storage_without_its_mark_doubts_and_claims_no_loss(
    path: Path, name: str, damage: Callable[[Path], object]
) -> None:
    damage(path / name)
    with opened(path) as storage:
        assert (storage.doubt().doubted_below, storage.doubt().lost_below) == (UNBOUNDED, 0)
        assert judge(storage) == 0
        storage.bound_doubt(300)
    with opened(path) as storage:
        assert (storage.doubt().doubted_below, storage.doubt().lost_below) == (300, 0)


def test_file_of_another_bookie_is_refused_untouched(path: Path, tmp_path: Path) -> None:
    with opened(tmp_path / "other") as storage:
        storage.commit([SetMarks(1, fence_term=1)])
    shutil.copy(tmp_path / "other" / "data.mdb", path / "data.mdb")
    before = {each.name: each.read_bytes() for each in path.iterdir() if each.name != "lock"}
    with pytest.raises(StorageIdentityError):
        open_storage(str(path), OPTIONS)
    assert {each.name: each.read_bytes() for each in path.iterdir() if each.name != "lock"} == before


# -- at other moments ---------------------------------------------------------------------------------------------


def test_doubt_is_durable_before_anything_is_changed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when the new file is to be made: nothing was changed, and the doubt stays."""
    data = path / "data.mdb"
    meta = check_data_file(str(data))
    zero(data, lose_leaf(data), PAGE)
    before = data.read_bytes()

    def fail(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(vouching, "make_data_file", fail)
    for _ in range(2):
        with pytest.raises(StorageFullError):
            open_storage(str(path), OPTIONS)
    assert data.read_bytes() == before
    assert b'"lost_below": %d' % UNBOUNDED in (path / "doubt").read_bytes()
    monkeypatch.setattr(vouching, "make_data_file", lmdb_file.make_data_file)
    check_lost(path)
    assert check_data_file(str(data)).txn_id != meta.txn_id


def lose_leaf(data: Path) -> int:
    """The offset of a leaf of batches."""
    meta = check_data_file(str(data))
    with data.open("rb") as file:
        pages = Pages(file.fileno(), meta)
        leaves = [child.page for child in pages._leaves(meta.main, _Counts())]
    return leaves[len(leaves) // 2] * PAGE


def test_torn_page_counts_as_loss_once_it_is_found(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk at the opening ends before it; LMDB meets it. The next opening walks all of it, and makes a new file."""
    monkeypatch.setattr(vouching, "PAGES_MAX", 3)
    zero(path / "data.mdb", lose_leaf(path / "data.mdb"), PAGE)

    def meet(_transaction: lmdb.Transaction) -> None:
        raise lmdb.CorruptedError("mdb_page_get: MDB_CORRUPTED: Located page was wrong type")

    with opened(path) as storage:
        assert storage.doubt() == Doubt()
        for _ in range(2):
            with pytest.raises(StorageUncertainError, match=r"data\.mdb is damaged.*wrong type"):
                storage._transactions.ask(meet)
        assert storage.doubt().lost_below == UNBOUNDED
        storage.bound_doubt(300)
        bounded = storage.doubt()
        storage.settle_doubt(bounded, bounded.settled(0))
        assert storage.doubt() == bounded, "what else is lost is known only when all pages were looked at (B8)"
        assert storage.marks(4) is not None
        for _ in range(2):
            with pytest.raises(StorageFailedError, match="damaged page"):
                storage.commit([SetMarks(1000, b"key", 1)])
    with opened(path) as storage:
        assert storage.doubt().lost_below == UNBOUNDED
        storage.bound_doubt(300)
        assert judge(storage)
        storage.scrub()
    with opened(path) as storage:
        assert storage.doubt().lost_below == 300


def test_a_damaged_garbage_key_removes_no_living_ledger(path: Path) -> None:
    with lmdb.open(str(path)) as environment, environment.begin(write=True) as transaction:
        transaction.put(records.id_key(records.GARBAGE, 3), b"")
    with opened(path) as storage:
        storage.compact()
        assert judge(storage) == 0


def test_salvaged_ledger_without_marks_or_series_gets_new_ones(path: Path) -> None:
    """From its batches; others are left as they are, and nothing is made for a deleted ledger."""
    with lmdb.open(str(path)) as environment, environment.begin(write=True) as transaction:
        for key in (records.id_key(records.LEDGER, 4), records.series_key(4, 1), records.series_key(5, 1)):
            assert transaction.delete(key)
    kept = {key: value for key, value in dump(path).items() if key != records.OPENINGS_KEY}
    zero(path / "data.mdb", check_data_file(str(path / "data.mdb")).free.root * PAGE + 100, PAGE - 100)
    with opened(path) as storage:
        assert storage.doubt().lost_below == UNBOUNDED
        assert judge(storage, fenced=FENCED) == 0
        marks = storage.marks(4)
        assert marks == Marks(last_entry_id=35)
        assert storage.read(4, 36, 1, 0) == storage.read(5, 36, 1, 0) == []
    found = dump(path)
    made = {records.id_key(records.LEDGER, 4), records.series_key(4, 1), records.series_key(5, 1)}
    assert {key for key in found if key not in kept} - {records.OPENINGS_KEY} == made
    assert all(found[key] == value for key, value in kept.items())


def dump(path: Path) -> dict[bytes, bytes]:
    with lmdb.open(str(path)) as environment, environment.begin() as transaction:
        return {bytes(key): bytes(value) for key, value in transaction.cursor()}


def test_walk_finds_nothing_in_sound_files(tmp_path: Path) -> None:
    chance = random.Random(4)
    with opened(tmp_path) as storage:
        for number in range(150):
            sizes = [chance.choice((10, 100, 1000, 9000)) for _ in range(chance.randrange(1, 8))]
            storage.commit([PutBatch(make_batch(chance.randrange(40), number, 1, size_bytes=size)) for size in sizes])
            if chance.random() < 0.1:
                storage.commit([DropLedger(chance.randrange(40))])
                storage.compact()
            if number % 10 == 0:
                data = tmp_path / "data.mdb"
                head = data.read_bytes()[: META_PAGES * PAGE]
                meta = max((read_meta(head, page, page * PAGE) for page in (0, 1)), key=lambda each: each.txn_id)
                with data.open("rb") as file:
                    pages = Pages(file.fileno(), meta, vouching.is_sound)
                    pages.check()
                    assert (pages.faults, pages.damaged) == ([], [])
                    count = sum(1 for _ in Pages(file.fileno(), meta).records())
                assert count == meta.main.entries
