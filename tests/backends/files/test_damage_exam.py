"""The files storage sits the exam of damage: flipped bytes and truncations anywhere are never wrong data, never absence."""

from pathlib import Path

import pytest

from replog.backends.files import FilesOptions, open_storage
from replog.testing import check_storage_damage

OPTIONS = FilesOptions(
    journal_file_bytes=64 << 10, spare_files=1, entry_log_bytes=128 << 10, ledger_cache_bytes=1 << 20
)


@pytest.mark.sized
@pytest.mark.crash
def test_exam(tmp_path: Path, is_long: bool) -> None:
    for seed in range(6 if is_long else 1):
        directory = tmp_path / str(seed)
        directory.mkdir()
        check_storage_damage(
            lambda path: open_storage(str(path), OPTIONS), directory, sample=16 if is_long else 2, seed=seed
        )
