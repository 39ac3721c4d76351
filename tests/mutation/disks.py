"""Mutants of what happens when a disk fails once, is full, or cannot be written."""

from tests.mutation.table import SourceMutant


def _each_write(name: str, file: str, old: str, new: str, why: str) -> SourceMutant:
    return SourceMutant(f"disks-{name}", "B1", file, old, new, why, ("tests/disks/test_each_write.py",))


def _full(
    name: str, file: str, old: str, new: str, why: str, *, tests: str = "tests/disks/test_full_disk.py"
) -> SourceMutant:
    return SourceMutant(f"disks-{name}", "B5", file, old, new, why, (tests,))


def _look(
    name: str, file: str, old: str, new: str, why: str, tests: str = "tests/disks/test_each_look.py"
) -> SourceMutant:
    return SourceMutant(f"disks-{name}", "B4", file, old, new, why, (tests,))


def _refusing(name: str, file: str, old: str, new: str, why: str) -> SourceMutant:
    return _full(name, file, old, new, why, tests="tests/disks/test_refusing_bookie.py")


MUTANTS = (
    _full(
        "holes-in-readers",
        "runtime/lmdb_map.py",
        "            make_readers_file(self.path)\n",
        "",
        "on a full disk, LMDB writes into a hole of its table of readers, and the process ends with SIGBUS",
    ),
    _full(
        "readers-grow-under-others",
        "runtime/lmdb_file.py",
        "found.st_size if _has_readers(fd) else max(found.st_size, size_bytes)",
        "max(found.st_size, size_bytes)",
        "other processes follow readers beyond the end of the table that they have mapped",
    ),
    _full(
        "full-metastore-is-uncertain",
        "metastores/lmdb_commits.py",
        "(is_full(failure, path) and",
        "(False and",
        "who writes to a full metastore asks again and again what became of the change, for half a minute",
        tests="tests/metastores/test_lmdb_disk.py",
    ),
    _full(
        "lasting-failures-repeated",
        "client/ledger_records.py",
        "if not isinstance(error, TransientError):",
        "if not isinstance(error, TransientError | MetastoreError):",
        "a full disk is told only at the deadline",
        tests="tests/client/test_records.py",
    ),
    _look(
        "metastore-file-absent-on-error",
        "metastores/lmdb_directory.py",
        "if not exists(data) or",
        "if not os.path.exists(data) or",
        "a look that fails replaces a metastore by an empty one",
    ),
    _look(
        "storage-file-absent-on-error",
        "backends/lmdb/opening.py",
        "        return exists(data)\n",
        "        return __import__('os').path.exists(data)\n",
        "a file that cannot be looked at is called missing, and its bookie given up",
    ),
    _look(
        "bookies-absent-on-error",
        "bookie/embedding.py",
        """        existing = len(names_like(parent, f"{_BOOKIE_DIRECTORY}[0-9]*"))\n""",
        """        existing = len(list(parent.glob(f"{_BOOKIE_DIRECTORY}[0-9]*")))\n""",
        "one bookie is embedded in place of three",
        "tests/test_bad_disks.py",
    ),
    _full(
        "dead-readers-keep-pages",
        "runtime/lmdb_map.py",
        "        if self.clear_stale_readers():\n            return True\n",
        "        self.clear_stale_readers()\n",
        "a metastore at its maximum stays full after the process has died that kept its pages",
        tests="tests/metastores/test_lmdb_processes.py",
    ),
    _refusing(
        "commit-before-meta-is-uncertain",
        "metastores/lmdb_commits.py",
        "if not may_be_written or",
        "if",
        "a metastore whose disk is read-only is asked again and again what became of each change",
    ),
    _refusing(
        "refusing-bookies-left-alone",
        "client/new_ensembles.py",
        "                        membership.try_again(*membership.refusing)\n",
        "",
        "a takeover waits for a bookie that refused as if it were away, and says so",
    ),
    _refusing(
        "full-bookie-not-asked-again",
        "client/writer_background.py",
        "            self._retry_at = trio.current_time()\n",
        "",
        "a writer is told of a full disk only when the bookie would be retried anyway",
    ),
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
