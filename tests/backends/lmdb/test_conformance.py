"""The LMDB storage passes the conformance suite of storages, also with a map so small that it grows all the time."""

from pathlib import Path

import pytest

from replog.backends.lmdb import LMDBStorageOptions
from replog.backends.lmdb.options import LMDBStorageTuning
from replog.backends.lmdb.storage import open_storage
from replog.testing import check_storage


@pytest.mark.sized
@pytest.mark.parametrize(
    "options",
    [
        LMDBStorageTuning(map_bytes=1 << 20, read_ahead=False),
        pytest.param(LMDBStorageOptions(), marks=pytest.mark.long(is_sampled=False)),
    ],
)
def test_conformance(tmp_path: Path, options: LMDBStorageOptions, is_long: bool) -> None:
    kills, steps = (16, 300) if is_long else (4, 100)
    check_storage(lambda path: open_storage(str(path), options), tmp_path, kills=kills, steps=steps)
