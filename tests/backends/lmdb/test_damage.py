"""R4: damage is "unknown", never "absent" and never wrong data; it is listed, and mended when the batch is put again."""

import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path

import lmdb
import pytest

from replog.abc import UNBOUNDED, Damage, DropLedger, PutBatch, SetMarks
from replog.backends.lmdb import records
from replog.backends.lmdb.options import LMDBStorageTuning
from replog.backends.lmdb.storage import open_storage
from replog.errors import StorageError, StorageUncertainError
from replog.protocol.digest import DigestType
from replog.protocol.mutations import DELETED_TERM, Marks
from replog.testing.storage_conformance import make_batch
from tests.forks import run

OPTIONS = LMDBStorageTuning(map_bytes=1 << 20)
BATCHES = [
    make_batch(1, 0, 3, size_bytes=40),
    make_batch(1, 3, 3, size_bytes=4000),
    make_batch(1, 6, 2, digest_type=DigestType.HMAC_SHA256),
    make_batch(1, 8, 3, stride=3),
]


def fill(path: Path) -> None:
    with contextlib.closing(open_storage(str(path), OPTIONS)) as storage:
        storage.commit([*map(PutBatch, BATCHES), SetMarks(1, b"key", 3)])


def rewrite(path: Path, key: bytes, value: bytes | None, new_key: bytes | None = None) -> None:
    """Changes a record behind the storage's back."""
    with lmdb.open(str(path)) as environment, environment.begin(write=True) as transaction:
        assert transaction.pop(key) is not None
        if value is not None:
            transaction.put(new_key or key, value)


@pytest.mark.parametrize("at", range(len(BATCHES)))
def test_flipped_byte_in_a_batch_is_listed_until_repaired(tmp_path: Path, at: int) -> None:
    fill(tmp_path)
    batch = BATCHES[at]
    key = records.batch_key(batch)
    whole = records.seal(key, batch.data)
    damage = Damage(1, 1, batch.first_entry_id, batch.last_entry_id, "its bytes don't match their checksum")
    for offset in (0, 3, 4, 30, 80, len(whole) - 5, len(whole) - 1):
        torn = bytearray(whole)
        torn[offset] ^= 0x10
        rewrite(tmp_path, key, bytes(torn))
        with contextlib.closing(open_storage(str(tmp_path), OPTIONS)) as storage:
            assert storage.damage() == []
            if offset % 2:
                storage.scrub()
                assert storage.damage() == [damage]
            for entry_id in batch.entry_ids:
                with pytest.raises(StorageUncertainError, match=f"ledger 1, entries {batch.first_entry_id} to"):
                    storage.read(1, entry_id, 1, 1 << 20)
            assert storage.damage() == [damage]
            assert storage.read(1, 0, 1, 1 << 20) == BATCHES[:at] if at else True, "up to the damaged one"
            storage.commit([PutBatch(batch)])
            assert storage.damage() == []
            assert storage.read(1, 0, 1, 1 << 20) == BATCHES
            storage.scrub()
            assert storage.damage() == []
            assert storage.statistics()["damaged_batches_found"] == 1


def test_damage_is_found_in_the_background(tmp_path: Path) -> None:
    fill(tmp_path)
    key = records.batch_key(BATCHES[1])
    rewrite(tmp_path, key, records.seal(key, BATCHES[1].data)[:-1])
    options = LMDBStorageTuning(map_bytes=1 << 20, scrub_interval_s=0.05, scrub_bytes_per_s=0)
    with contextlib.closing(open_storage(str(tmp_path), options)) as storage:
        deadline = time.monotonic() + 30
        while not storage.damage() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [damage.first_entry_id for damage in storage.damage()] == [3]


def test_garbage_of_a_deleted_ledger_is_not_damage(tmp_path: Path) -> None:
    fill(tmp_path)
    key = records.batch_key(BATCHES[1])
    with contextlib.closing(open_storage(str(tmp_path), OPTIONS)) as storage:
        storage._maintenance.stop()
        storage.commit([DropLedger(1)])
    rewrite(tmp_path, key, b"torn")
    with contextlib.closing(open_storage(str(tmp_path), OPTIONS)) as storage:
        storage.scrub()
        assert storage.damage() == []
        storage.compact()
        assert storage.statistics()["deleted_ledgers_to_remove"] == 0


CONFORMANCE = """
# Damage to LMDB's own pages may stop the storage, and so the suite. Nothing is removed in the background, so that the file's
# layout, and so what is damaged, does not depend on who comes first.
import sys
from pathlib import Path
import lmdb
from replog.backends.lmdb import maintenance
from replog.backends.lmdb.storage import open_storage
from replog.backends.lmdb.options import LMDBStorageTuning
from replog.errors import StorageFailedError
from replog.testing import check_storage_damage

options = LMDBStorageTuning(map_bytes=1 << 20)
maintenance.Maintenance.start = lambda self: None
try:
    check_storage_damage(lambda path: open_storage(str(path), options), Path(sys.argv[1]), sample=8, seed=int(sys.argv[2]))
except (StorageFailedError, AssertionError) as error:
    cause = error
    while isinstance(cause, AssertionError) and cause.__cause__:
        cause = cause.__cause__
    if not isinstance(cause, StorageFailedError) or not isinstance(cause.__cause__, lmdb.Error):
        raise
"""


@pytest.mark.parametrize("seed", [7, pytest.param(8, marks=pytest.mark.long(is_sampled=False))])
def test_conformance_of_damage(tmp_path: Path, seed: int) -> None:
    """In a process of its own: damage to LMDB's own pages may end it, or stop the storage, and so the suite. But nothing
    that is wrong or denied."""
    done = run([sys.executable, "-c", CONFORMANCE, str(tmp_path), str(seed)], timeout=240)
    assert done.returncode <= 0, done.stderr


def test_read_is_uncertain_when_a_batch_vanished(tmp_path: Path) -> None:
    fill(tmp_path)
    rewrite(tmp_path, records.batch_key(BATCHES[1]), None)
    with contextlib.closing(open_storage(str(tmp_path), OPTIONS)) as storage:
        with pytest.raises(StorageUncertainError, match="it was stored, and is not there"):
            storage.read(1, 4, 1, 0)
        assert storage.read(1, 20, 1, 0) == []
        storage.scrub()
        missing = Damage(1, 1, 3, 5, "entries were stored, and are not there")
        assert missing in storage.damage()
        storage.commit([PutBatch(BATCHES[1])])
        assert storage.damage() == []


@pytest.mark.parametrize(
    "bit", [0x01, *(pytest.param(bit, marks=pytest.mark.long(is_sampled=False)) for bit in (0x10, 0x80))]
)
@pytest.mark.parametrize("offset", range(1, records.BATCH_KEY_BYTES))
def test_flipped_bit_in_a_batch_key_is_never_absence(tmp_path: Path, offset: int, bit: int) -> None:
    """Nor is what others hold, or what never was, told of as damaged."""
    fill(tmp_path)
    batch = BATCHES[1]
    key = records.batch_key(batch)
    torn = bytearray(key)
    torn[offset] ^= bit
    rewrite(tmp_path, key, records.seal(key, batch.data), bytes(torn))
    for is_scrubbed_first in (True, False):
        with contextlib.closing(open_storage(str(tmp_path), OPTIONS)) as storage:
            if is_scrubbed_first:
                storage.scrub()
            for entry_id in batch.entry_ids:
                with pytest.raises(StorageUncertainError):
                    storage.read(1, entry_id, 1, 0)
            for other in (BATCHES[0], *BATCHES[2:]):
                for entry_id in other.entry_ids:
                    assert storage.read(1, entry_id, 1, 0) == [other]
            assert storage.read(1, 20, 1, 0) == storage.read(1, 1 << 41, 1, 0) == []
            listed = [each for each in storage.damage() if (each.ledger_id, each.stamp) == (1, 1)]
            found = {at for each in listed for at in range(each.first_entry_id, each.last_entry_id + 1)}
            assert found == set(batch.entry_ids)
            storage.scrub()
            storage.commit([PutBatch(batch)])
            assert [each for each in storage.damage() if (each.ledger_id, each.stamp) == (1, 1)] == []
            for other in BATCHES:
                for entry_id in other.entry_ids:
                    assert storage.read(1, entry_id, 1, 0) == [other]
        rewrite(tmp_path, key, None)


def test_scrub_ends_when_a_batch_claims_too_many_entries(tmp_path: Path) -> None:
    """What it did hold is there otherwise, and what it claims beyond that never was."""
    fill(tmp_path)
    whole = make_batch(2, 0, 3)
    with contextlib.closing(open_storage(str(tmp_path), OPTIONS)) as storage:
        storage.commit([PutBatch(whole), PutBatch(make_batch(2, 0, 1)), PutBatch(make_batch(2, 1, 2))])
    key = records.batch_key(whole)
    torn = bytearray(key)
    torn[-10] ^= 0x10  # of the last entry's id
    rewrite(tmp_path, key, records.seal(key, whole.data), bytes(torn))
    with contextlib.closing(open_storage(str(tmp_path), OPTIONS)) as storage:
        storage.scrub()
        assert storage.damage() == []
        assert storage.read(2, 0, 1, 0) == [make_batch(2, 0, 1)]
        assert storage.read(2, 3, 1, 0) == []


def test_scrub_finds_a_series_without_batches(tmp_path: Path) -> None:
    fill(tmp_path)
    for batch in BATCHES:
        rewrite(tmp_path, records.batch_key(batch), None)
    with contextlib.closing(open_storage(str(tmp_path), OPTIONS)) as storage:
        storage.scrub()
        listed = [(each.first_entry_id, each.last_entry_id) for each in storage.damage()]
        assert listed == [(0, 7), (8, 14)]
        left = [[(3, 7), (8, 14)], [(6, 7), (8, 14)], [(8, 14)], []]
        for batch, rest in zip(BATCHES, left, strict=True):
            storage.commit([PutBatch(batch)])
            assert [(each.first_entry_id, each.last_entry_id) for each in storage.damage()] == rest
        assert storage.read(1, 0, 1, 1 << 20) == BATCHES


def test_series_is_written_again_when_damaged(tmp_path: Path) -> None:
    fill(tmp_path)
    key = records.series_key(1, 1)
    for value in (b"torn", None):
        rewrite(tmp_path, key, value)
        with contextlib.closing(open_storage(str(tmp_path), OPTIONS)) as storage:
            assert storage.read(1, 4, 1, 0) == [BATCHES[1]], "found without it"
            storage.scrub()
            (damage,) = storage.damage()
            assert damage.description.startswith("the record of what is stored is")
            for entry_id in (damage.first_entry_id, 20):
                with pytest.raises(StorageUncertainError):
                    storage.read(1, entry_id, 1, 0)
            more = make_batch(1, 15, 1)
            storage.commit([PutBatch(more)])
            assert storage.read(1, 20, 1, 0) == []
            assert storage.read(1, 11, 1, 0) == [BATCHES[3]]
            storage.scrub()
            assert storage.damage() == []


def test_damaged_marks_are_unknown_and_never_written_over(tmp_path: Path) -> None:
    fill(tmp_path)
    key = records.id_key(records.LEDGER, 1)
    rewrite(tmp_path, key, bytes(40))
    with contextlib.closing(open_storage(str(tmp_path), OPTIONS)) as storage:
        with pytest.raises(StorageUncertainError, match="it is unknown whether it is fenced"):
            storage.marks(1)
        assert storage.read(1, 0, 1, 0) == BATCHES[:1]
        with pytest.raises(StorageError, match="it is unknown whether it is fenced"):
            storage.commit([SetMarks(1, None, 2)])


def test_marks_are_uncertain_when_their_key_is_damaged(tmp_path: Path) -> None:
    """Else a fence would be forgotten (R3)."""
    fill(tmp_path)
    key = records.id_key(records.LEDGER, 1)
    with contextlib.closing(open_storage(str(tmp_path), OPTIONS)) as storage:
        storage.commit([SetMarks(1, fence_term=3)])
        content = records.pack_marks(Marks(b"key", 3, 3, 14))
    rewrite(tmp_path, key, records.seal(key, content), records.id_key(records.LEDGER, 1 | 1 << 40))
    with contextlib.closing(open_storage(str(tmp_path), OPTIONS)) as storage:
        with pytest.raises(StorageUncertainError, match="it is unknown whether it is fenced"):
            storage.marks(1)
        assert storage.read(1, 0, 1, 0) == BATCHES[:1]
        assert storage.marks(2) is None
    for mutation in (SetMarks(1, None, 2), PutBatch(BATCHES[1])):
        with contextlib.closing(open_storage(str(tmp_path), OPTIONS)) as storage:
            with pytest.raises(StorageError, match="it is unknown whether it is fenced"):
                storage.commit([mutation])
    with contextlib.closing(open_storage(str(tmp_path), OPTIONS)) as storage:
        storage.commit([DropLedger(1)])
        assert storage.marks(1) == Marks(fence_term=DELETED_TERM)
        storage.compact()
        assert storage.statistics()["deleted_ledgers_to_remove"] == 0
    with lmdb.open(str(tmp_path)) as environment, environment.begin() as transaction:
        assert not [key for key, _ in transaction.cursor() if key[:1] == records.BATCH]


def test_damaged_record_of_deleted_ledgers_raises_the_doubt(tmp_path: Path) -> None:
    """What it deleted may come back: nobody knows which ledgers those were."""
    with contextlib.closing(open_storage(str(tmp_path), OPTIONS)) as storage:
        storage.commit([DropLedger(5), DropLedger(9)])
    rewrite(tmp_path, records.id_key(records.DELETED, 5), b"torn")
    with contextlib.closing(open_storage(str(tmp_path), OPTIONS)) as storage:
        assert storage.doubt().lost_below == UNBOUNDED
        assert any("deleted ledgers from 5 on" in reason for reason in storage.doubt().reasons)
        storage.bound_doubt(10)
        storage.commit([DropLedger(6), DropLedger(8)])
        assert storage.marks(9) == Marks(fence_term=DELETED_TERM)
    with contextlib.closing(open_storage(str(tmp_path), OPTIONS)) as storage:
        assert storage.doubt().lost_below == 10, "it was accounted for"


def judge(path: Path) -> int:
    """0 if all is right, 1 if something is in doubt or refused, 7 if something is wrong or denied."""
    try:
        storage = open_storage(str(path), OPTIONS)
    except StorageError:
        return 1
    status = 0
    for batch in BATCHES:
        for entry_id in batch.entry_ids:
            try:
                if storage.read(1, entry_id, 1, 0) != [batch]:
                    return 7
            except StorageError:
                status = 1
    return status


@pytest.mark.sized
def test_flipped_byte_behind_the_roots_is_never_absence(tmp_path: Path, is_long: bool) -> None:
    """LMDB's own pages have no checksums: damage to them may end the process, but not lie. (The two roots may.)"""
    fill(tmp_path)
    data = tmp_path / "data.mdb"
    content = data.read_bytes()
    chance = random.Random(3)
    used = [at for at in range(8192, len(content)) if content[at]]
    counts: dict[int, int] = {}
    for offset in chance.sample(used, 150 if is_long else 25):
        torn = bytearray(content)
        torn[offset] ^= 1 << chance.randrange(8)
        data.write_bytes(torn)
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            os.close(2)
            os._exit(judge(tmp_path))
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        counts[status] = counts.get(status, 0) + 1
        assert status in (0, 1) or status < 0, f"byte {offset} was flipped: wrong or denied"
        assert status != -signal.SIGALRM
    assert counts[0] >= 1
    assert counts[1] > 3
