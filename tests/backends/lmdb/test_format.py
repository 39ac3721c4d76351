"""The keys and values in the environment (version 1): what was written once is read for ever.

The golden files were written by the first version; a difference means a new version, with a number of its own.
"""

import contextlib
from pathlib import Path

import lmdb
import pytest

from replog.abc import DropLedger, Marks, PutBatch, SetMarks
from replog.backends.lmdb import records
from replog.backends.lmdb.records import RANGES_MAX, DamagedError, Series
from replog.backends.lmdb.storage import open_storage
from replog.errors import StorageUncertainError
from replog.protocol.digest import Digest, DigestType
from replog.protocol.mutations import DELETED_TERM
from replog.protocol.proofs import prove
from replog.testing.storage_conformance import make_batch

FORMATS = Path(__file__).parents[2] / "formats"
GOLDEN_RECORDS = FORMATS / "lmdb-storage-v1-records.hex"
GOLDEN_FORMAT_FILE = FORMATS / "lmdb-storage-v1-storage.json"
BOOKIE_ID = "bookie-0102030405060708090a0b0c0d0e0f10"

FIRST, SECOND = make_batch(7, 0, 2), make_batch(7, 2, 1, stride=3, stamp=2, digest_type=DigestType.HMAC_SHA256)
THIRD = make_batch(7, 9, 1)
PROOF = prove(Digest(DigestType.CRC32C, 7, b""), 7, 1, 0)


def dump(directory: Path) -> str:
    """Each record as a line: key and value."""
    with lmdb.open(str(directory)) as environment, environment.begin() as transaction:
        return "".join(f"{bytes(key).hex()} {bytes(value).hex()}\n" for key, value in transaction.cursor())


def make(directory: Path, text: str) -> None:
    directory.mkdir()
    with lmdb.open(str(directory)) as environment, environment.begin(write=True) as transaction:
        for line in text.splitlines():
            key, _, value = line.partition(" ")
            transaction.put(bytes.fromhex(key), bytes.fromhex(value))
    (directory / "storage.json").write_bytes(GOLDEN_FORMAT_FILE.read_bytes())


def write_storage(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replog.backends.lmdb.opening.new_bookie_id", lambda disk, expected, path: BOOKIE_ID)
    with contextlib.closing(open_storage(str(directory))) as storage:
        storage.commit(
            [PutBatch(FIRST), PutBatch(THIRD), SetMarks(7, b"key", 3, 0, PROOF), SetMarks(8, None, 5, revision=6)]
        )
        storage._maintenance.stop()  # so that what is left of ledger 10 stays
        storage.commit([PutBatch(make_batch(10, 0, 1))])
        storage.commit([DropLedger(9), DropLedger(10), PutBatch(SECOND)])
        storage.commit([PutBatch(make_batch(11, 0, 2))])
        storage.drop(11, 1, 0, 5)


def test_the_same_bytes_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_storage(tmp_path, monkeypatch)
    assert dump(tmp_path) == GOLDEN_RECORDS.read_text()
    assert (tmp_path / "storage.json").read_text() == GOLDEN_FORMAT_FILE.read_text()


def test_the_golden_bytes_are_read(tmp_path: Path) -> None:
    make(tmp_path / "storage", GOLDEN_RECORDS.read_text())
    with contextlib.closing(open_storage(str(tmp_path / "storage"))) as storage:
        assert storage.bookie_id == BOOKIE_ID
        assert storage.ledger_ids() == [7, 8, 11]
        assert storage.read(7, 0, 1, 10_000) == [FIRST, THIRD]
        assert storage.read(7, 2, 2, 10_000) == [SECOND]
        assert storage.marks(7) == Marks(b"key", 3, 0, 9, PROOF)
        assert storage.marks(8) == Marks(None, 5, revision=6)
        with pytest.raises(StorageUncertainError, match="dropped"):
            storage.read(11, 5, 1, 1)
        for ledger_id in (9, 10):
            assert storage.marks(ledger_id) == Marks(fence_term=DELETED_TERM)
        storage.compact()
    assert make_batch(10, 0, 1).data.hex() not in dump(tmp_path / "storage")


# -- values -------------------------------------------------------------------------------------------------------


def test_values_come_back() -> None:
    for marks in (
        Marks(),
        Marks(b"", 1, 2, 3),
        Marks(None, 1, 2, 3, b"proof"),
        Marks(b"key", 1, 2, 3, b"proof"),
        Marks(b"key", DELETED_TERM, -1, (1 << 63) - 1),
        Marks(b"key", 1, 2, 3, b"proof", 7),
    ):
        assert records.unpack_marks(records.pack_marks(marks)) == marks
    series = Series(5, False, [(0, 9, 1), (3, (1 << 63) - 1, 1 << 31)])
    again = Series.unpack(series.pack())
    assert (again.span_max, again.is_whole, again.ranges) == (5, False, series.ranges)


def test_every_flipped_bit_of_a_value_or_its_key_is_seen() -> None:
    batch = make_batch(1, 0, 1, size_bytes=30)
    key = records.batch_key(batch)
    value = records.seal(key, batch.data)
    assert records.unseal_batch(key, value) == batch
    for text, other in ((bytearray(value), key), (bytearray(key), value)):
        for bit in range(8 * len(text)):
            text[bit // 8] ^= 1 << bit % 8
            with pytest.raises(DamagedError):
                records.unseal_batch(*((bytes(text), other) if other is value else (key, bytes(text))))
            text[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DamagedError):
        records.unseal(key, b"abc")


def test_batches_of_one_length_have_different_checksums() -> None:
    batches = [make_batch(1, first, 1, size_bytes=100) for first in range(50)]
    assert len({records.seal(b"key", batch.data)[:4] for batch in batches}) == 50


# -- series -------------------------------------------------------------------------------------------------------


def test_series_joins_adjacent_ranges_in_any_order() -> None:
    series = Series()
    for first in (0, 30, 10, 20, 10):
        series.add(first, first + 9, 1)
    assert series.ranges == [(0, 39, 1)]
    assert series.span_max == 9
    for first in (101, 100, 102, 110, 111, 103):  # two residues of five, and a stranger
        series.add(first, first + 5, 5)
    held = {entry_id for entry_id in range(200) if series.holds(entry_id)}
    assert held == {*range(40), *(first + at for first in (100, 101, 102, 103, 110, 111) for at in (0, 5))}
    assert series.is_whole


def test_series_forgets_lowest_ranges_when_too_many() -> None:
    series = Series()
    for first in range(0, 10 * (RANGES_MAX + 5), 10):
        series.add(first, first + 3, 1)
    assert not series.is_whole
    assert len(series.ranges) == RANGES_MAX
    assert not series.holds(0)
    assert series.holds(10 * (RANGES_MAX + 4))
    assert len(series.pack()) < 2000


def test_holes_beyond_the_series_are_absent(tmp_path: Path) -> None:
    with contextlib.closing(open_storage(str(tmp_path))) as storage:
        batches = [make_batch(1, first, 4) for first in range(0, 10 * (RANGES_MAX + 20), 10)]
        storage.commit([PutBatch(batch) for batch in batches])
        for batch in batches:
            assert storage.read(1, batch.last_entry_id, 1, 0) == [batch]
            assert storage.read(1, batch.last_entry_id + 1, 1, 0) == []
