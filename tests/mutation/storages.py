"""Mutants of the storages. Orders of syncs and renames are broken in `tests/backends/files/mutants.py`."""

from tests.mutation.table import SourceMutant


def _lmdb(name: str, rule: str, file: str, old: str, new: str, why: str) -> SourceMutant:
    tests = ("tests/backends/lmdb/test_storage.py", "tests/backends/lmdb", "tests/backends/test_ranges.py")
    return SourceMutant(f"lmdb-{name}", rule, f"backends/{file}", old, new, why, tests)


def _files(name: str, rule: str, file: str, old: str, new: str, why: str, *, equivalent: str = "") -> SourceMutant:
    tests = (
        "tests/backends/files/test_scrubbing.py",
        "tests/backends/files/test_compaction.py",
        "tests/backends/files/test_torn_tail.py",
        "tests/backends/files/test_damage.py",
        "tests/backends/files/test_faults.py",
        "tests/backends/files/test_storage.py",
        "tests/backends/files/test_index.py",
        "tests/backends/files/test_mark.py",
        "tests/backends/files",
    )
    return SourceMutant(f"files-{name}", rule, f"backends/files/{file}", old, new, why, tests, equivalent)


MUTANTS = (
    _lmdb(
        "damage-is-absence",
        "R4",
        "lmdb/snapshot.py",
        '            raise self._lost(entry_id, "it was stored, and is not there")\n',
        "            return False\n",
        "an entry that was stored and is lost is denied",
    ),
    _lmdb(
        "checksum-unseen",
        "R4",
        "lmdb/records.py",
        "if len(value) < CHECKSUM_BYTES or _CHECKSUM.unpack_from(value)[0] != _checksum(key, content):",
        "if len(value) < CHECKSUM_BYTES:",
        "damaged values are believed",
    ),
    _lmdb(
        "key-not-covered",
        "R4",
        "lmdb/records.py",
        'return int(crc32c(b"".join((key, content[-4:], before))))',
        'return int(crc32c(b"".join((content[-4:], before))))',
        "a value that stands under another key is believed",
    ),
    _lmdb(
        "fence-falls",
        "T1",
        "lmdb/writing.py",
        "max(marks.fence_term, wanted.fence_term or 0),",
        "wanted.fence_term or marks.fence_term,",
        "a lower term lowers the fence",
    ),
    _lmdb(
        "key-replaced",
        "B7",
        "lmdb/writing.py",
        "wanted.key if marks.key is None else marks.key,",
        "wanted.key or marks.key,",
        "a second key replaces a ledger's",
    ),
    _lmdb(
        "last-entry-forgotten",
        "T3",
        "lmdb/writing.py",
        "max(marks.last_entry_id, batch.last_entry_id),",
        "marks.last_entry_id,",
        "after a restart, an add that comes twice is not compared with what is stored",
    ),
    _lmdb(
        "deleted-comes-back",
        "L5",
        "lmdb/writing.py",
        "if ledger_id in self._deleted or ledger_id in self.dropped:",
        "if False:",
        "a late add brings a deleted ledger back",
    ),
    _lmdb(
        "tombstone-lost",
        "L5",
        "lmdb/writing.py",
        "        self._delete_for_ever(ledger_id)\n",
        "",
        "after a restart a deleted ledger is unknown, and has no fence",
    ),
    _lmdb(
        "deleted-is-unfenced",
        "L5",
        "lmdb/storage.py",
        "            return Marks(fence_term=DELETED_TERM)\n",
        "            return None\n",
        "a deleted ledger has no fence",
    ),
    _lmdb(
        "failure-goes-on",
        "B1",
        "lmdb/transactions.py",
        (
            "            self._lifecycle.failed(error)\n"
            "            raise StorageFailedError(\n"
            '                f"could not write to {self._path}: {_described(error)}",'
        ),
        (
            "            raise StorageFailedError(\n"
            '                f"could not write to {self._path}: {_described(error)}",'
        ),
        "a storage whose commit failed goes on",
    ),
    _lmdb(
        "missing-marks-are-none",
        "R3",
        "lmdb/writing.py",
        "not has_series(transaction, ledger_id) or transaction.get(id_key(GARBAGE, ledger_id)) is not None",
        "True",
        "a ledger whose fence was damaged is taken for one that was never fenced",
    ),
    _lmdb(
        "ranges-swallow-neighbours",
        "B6",
        "ranges.py",
        "if start and self._lasts[start - 1] >= first - 1:",
        "if start and self._lasts[start - 1] >= first - 2:",
        "a ledger between two deleted ones is deleted",
    ),
    _lmdb(
        "stride-forgotten",
        "W1",
        "lmdb/records.py",
        "first <= entry_id <= last and (entry_id - first) % stride == 0 for first, last, stride in self.ranges",
        "first <= entry_id <= last for first, last, stride in self.ranges",
        "entries of other rotations are reported as damaged, not as absent",
    ),
    _files(
        "checksum-unseen",
        "R4",
        "fetching.py",
        "if len(data) == location.size and payload_checksum(data) == location.checksum:\n        try:",
        "if len(data) == location.size:\n        try:",
        "damaged batches are given out",
    ),
    _files(
        "copies-damage",
        "B6",
        "fetching.py",
        "if len(data) != location.size or payload_checksum(data) != location.checksum:",
        "if len(data) != location.size:",
        "compaction copies damage, under a checksum that matches it",
    ),
    _files(
        "io-error-is-would-block",
        "R4",
        "fetching.py",
        'raise DamagedBatch(location, f"it cannot be read: {error}") from error',
        'return b""',
        "an I/O error is reported as a mismatch",
    ),
    _files(
        "header-checksum-unseen",
        "B3",
        "record.py",
        'if crc32c(data[at:end], seed) != int.from_bytes(data[end : end + 4], "little"):',
        "if False:",
        "replay goes on over a torn record",
    ),
    _files(
        "marks-lose-key",
        "B7",
        "record.py",
        "key = None if key_length < 0 else bytes(payload[_MARKS.size : _MARKS.size + key_length])",
        "key = None",
        "after a restart anybody may write a ledger",
    ),
    _files(
        "same-epoch-after-torn-write",
        "B3",
        "journal.py",
        "        if not file.is_pristine:\n            new_epoch",
        "        if False:\n            new_epoch",
        "what a failed write left is replayed together with what came after it",
    ),
    _files(
        "sync-error-ignored",
        "B1",
        "journal.py",
        "        if problem is not None:\n            raise StorageFailedError(",
        "        if problem is not None and file.fd < 0:\n            raise StorageFailedError(",
        "a failed sync is taken for a success",
    ),
    _files(
        "compaction-takes-older-copy",
        "B6",
        "compaction.py",
        "yield (*page.identity(at), -section.file.age, at, section)",
        "yield (*page.identity(at), section.file.age, at, section)",
        "of two copies the older one is kept",
    ),
    _files(
        "compaction-skips-first",
        "B6",
        "compaction.py",
        "        previous = None\n        for first, last, stride",
        "        previous = (0, 0, 1)\n        for first, last, stride",
        "compaction loses the batch that holds only entry 0",
    ),
    _files(
        "damaged-file-compacted",
        "B6",
        "damages.py",
        "        location.file.is_damaged = True\n",
        "",
        "a file with unreadable batches is compacted again and again, and maintenance never ends",
    ),
    _files(
        "dead-is-what-has-no-index",
        "B6",
        "checkpoint.py",
        "return [file for file in [*journals, *contents.entry_logs.values()] if not file.sections]",
        "return [file for file in [*journals, *contents.entry_logs.values()] if not file.live_bytes]",
        "a file is taken for dead by its live bytes, and not by its sections",
        equivalent=(
            "Equivalent: no section is empty, one of which all was dropped is removed, and a file's live bytes are the sum "
            "of its sections': they are 0 when none is left."
        ),
    ),
    _files(
        "last-ledger-forgotten",
        "B6",
        "checkpoint.py",
        "return [file for file in [*journals, *contents.entry_logs.values()] if not file.sections]",
        "return [file for file in [*journals, *contents.entry_logs.values()] if len(file.sections) < 2]",
        "files are removed that one ledger still needs",
    ),
)
