"""B3: the catalog is the mark, and vouches for files; an earlier one that is put back is refused, or does no harm."""

import contextlib

import pytest

from replog.abc import DropLedger, Mutation, PutBatch, SetMarks
from replog.backends.files.catalog import Catalog, CatalogFile, pack_catalog, unpack_catalog
from replog.backends.memory import MemoryStorage
from replog.errors import StorageDamagedError
from replog.protocol.mutations import Marks
from replog.testing.disk import MemoryDisk
from replog.testing.storage_conformance import make_batch
from tests.backends.files.small_storage import SmallStorage, commits, small_options
from tests.backends.files.small_storage import small_files as small_files

CATALOG = "/st/catalog"


def test_catalog_unpacks_to_its_packed_values() -> None:
    files = [CatalogFile(True, 3, 3, 9000), CatalogFile(False, 1, 7, 1 << 40)]
    ledgers = [(1, Marks(None, 0, -1, -1)), (2, Marks(b"", 5, 6, 7)), (1 << 40, Marks(b"key", (1 << 63) - 2, 8, 9))]
    catalog = Catalog(
        b"0123456789abcdef", 4, 5, 6, 7, 8, files, [(0, 3), (9, (1 << 63) - 1)], ledgers, [(2, (1, 0, 5, 1))]
    )
    packed = pack_catalog(catalog)
    found = unpack_catalog(packed)
    assert found == catalog
    assert list(found.ledgers) == ledgers
    assert unpack_catalog(packed[:-1]) is None
    assert unpack_catalog(packed + b"\0") is None
    assert unpack_catalog(b"") is None


def lives_of_catalogs(*, elsewhere: bool) -> tuple[SmallStorage, list[bytes]]:
    """A life with rolling, dropping, flushing and compaction, and every catalog that there was in it."""
    made = SmallStorage(MemoryDisk(seed=3), small_options(elsewhere=elsewhere), MemoryStorage())
    catalogs: list[bytes] = []

    def note(operation: str, path: str) -> None:
        if operation == "rename" and path == f"{CATALOG}.tmp":
            catalogs.append(bytes(made.disk.content(path)))

    made.disk.fault = note
    storage = made.open(made.disk)
    for part in ((1, 2, 3), (4, 5, 6), (7, 8), (9, 10)):
        last: list[Mutation] = [DropLedger(part[0] - 1), SetMarks(part[0], None, 20)]
        for mutations in (*commits(part), last):
            storage.commit(mutations)
            made.acknowledged.commit(mutations)
        storage.compact(is_major=part[0] != 7)
        if part[0] == 4:
            storage.close()
            storage = made.open(made.disk)
    storage.close()
    made.disk.fault = lambda operation, path: None
    return made, catalogs


@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_earlier_catalog_put_back_is_refused_or_harmless(elsewhere: bool) -> None:
    made, catalogs = lives_of_catalogs(elsewhere=elsewhere)
    assert len(catalogs) > 10
    assert catalogs[-1] == bytes(made.disk.content(CATALOG))
    outcomes = []
    for catalog in catalogs:
        disk = made.disk.after_kill()
        disk.content(CATALOG)[:] = catalog
        try:
            storage = made.open(disk)
        except StorageDamagedError as error:
            assert_is_reported(error)
            outcomes.append("refused")
        else:
            with contextlib.closing(storage):
                assert made.read_all(storage, ()) == []
            outcomes.append("harmless")
        disk.content(CATALOG)[:] = catalogs[-1]  # what was refused is still whole
        if outcomes[-1] == "refused":
            with contextlib.closing(made.open(disk)) as storage:
                assert made.read_all(storage, ()) == []
    assert outcomes[-1] == "harmless"
    assert outcomes.count("refused") > 5


def assert_is_reported(error: StorageDamagedError) -> None:
    assert "/st/catalog is an earlier one" in str(error)


def test_marks_survive_the_loss_of_their_journal() -> None:
    made = SmallStorage(MemoryDisk(seed=3), small_options(elsewhere=False), MemoryStorage())
    storage = made.open(made.disk)
    for ledger_id in range(100, 400):
        storage.commit([SetMarks(ledger_id, b"key", ledger_id, 7)])
    storage.commit([PutBatch(make_batch(1, 0, 2, size_bytes=3000))])
    assert storage.statistics()["removed_files"] >= 3, "nobody needs a journal of marks only"
    with contextlib.closing(made.open(made.disk.after_kill())) as again:
        assert again.ledger_ids() == [1, *range(100, 400)]
        assert all(again.marks(ledger_id) == Marks(b"key", ledger_id, 7) for ledger_id in range(100, 400))
