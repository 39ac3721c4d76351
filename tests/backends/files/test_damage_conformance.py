"""Flipped bytes and truncations anywhere in a files storage are never wrong data, never absence: its conformance suite."""

from pathlib import Path

import pytest

from replog.backends.files.options import FilesTuning
from replog.backends.files.storage import open_storage
from replog.testing import check_storage_damage

OPTIONS = FilesTuning(journal_file_bytes=64 << 10, spare_files=1, entry_log_bytes=128 << 10, ledger_cache_bytes=1 << 20)


@pytest.mark.sized
@pytest.mark.crash
def test_conformance(tmp_path: Path, is_long: bool) -> None:
    for seed in range(6 if is_long else 1):
        directory = tmp_path / str(seed)
        directory.mkdir()
        check_storage_damage(
            lambda path: open_storage(str(path), OPTIONS), directory, sample=16 if is_long else 2, seed=seed
        )
