"""Mutants of what happens when a disk fails once, is full, or cannot be written."""

from tests.mutation.table import SourceMutant


def _each_write(name: str, file: str, old: str, new: str, why: str) -> SourceMutant:
    return SourceMutant(f"disks-{name}", "B1", file, old, new, why, ("tests/disks/test_each_write.py",))


MUTANTS = (
    _each_write(
        "both-meta-pages-judged",
        "runtime/lmdb_file.py",
        "    check_roots(fd, newest)\n",
        "    for each in read_metas(head):\n        check_roots(fd, each)\n",
        "a directory never opens again after one write of a meta page failed",
    ),
    _each_write(
        "failed-page-is-newest-state",
        "backends/lmdb/vouching.py",
        "if number is None or number >= newest.txn_id]",
        "if number is None or number != newest.txn_id]",
        "a storage doubts all its ledgers after one write of a meta page failed",
    ),
    _each_write(
        "full-disk-stops-lmdb",
        "backends/lmdb/transactions.py",
        "                self._map.mend()\n",
        "",
        "one lack of space stops a storage, which then reports MDB_PANIC",
    ),
)
