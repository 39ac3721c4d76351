"""The storage in memory: its conformance suite, and what its names mean."""

from pathlib import Path

import pytest

from replog.abc import PutBatch, SetMarks, Storage
from replog.backends import memory
from replog.errors import StorageInUseError
from replog.testing import check_storage
from replog.testing.storage_conformance import make_batch


def test_conformance(tmp_path: Path) -> None:
    opened = set()

    def open_storage(path: Path) -> Storage:
        opened.add(str(path))
        return memory.open_storage(str(path))

    check_storage(open_storage, tmp_path, survives_processes=False)
    assert list(tmp_path.iterdir()) == []
    for name in opened:
        memory.forget(name)


def test_storage_without_name_is_new_each_time() -> None:
    one, other = memory.open_storage(), memory.open_storage()
    one.commit([SetMarks(1, fence_term=1)])
    assert other.ledger_ids() == []
    assert one.bookie_id != other.bookie_id


def test_name_opens_the_same_content_until_forget() -> None:
    storage = memory.open_storage("a name")
    storage.commit([PutBatch(make_batch(1, 0))])
    with pytest.raises(StorageInUseError, match="'a name' is open already"):
        memory.open_storage("a name")
    storage.close()
    again = memory.open_storage("a name")
    assert again.ledger_ids() == [1]
    again.close()
    memory.forget("a name")
    assert memory.open_storage("a name").ledger_ids() == []
    memory.forget("a name")
    memory.forget("never heard of")
