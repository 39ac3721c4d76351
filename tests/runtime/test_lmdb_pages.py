"""Pages of LMDB files are walked before a file is mapped: LMDB ends the process for a damaged one. More: tests/backends/lmdb."""

from __future__ import annotations

import shutil
from pathlib import Path

import lmdb
import pytest

from replog.errors import MetastoreCorruptError
from replog.metastores.lmdb import LMDBMetastore
from replog.runtime import lmdb_pages
from replog.runtime.lmdb_file import DATA_FILE, DataFileDamagedError, Meta, check_data_file
from replog.runtime.lmdb_pages import Pages, check_pages


async def filled(path: Path) -> Meta:
    """A metastore of some forty pages; some of them are free."""
    metastore = LMDBMetastore(str(path))
    versions = [await metastore.create(f"logs/{number:03}", b"v" * 900) for number in range(120)]
    for number in range(0, 120, 7):
        await metastore.put(f"logs/{number:03}", b"w", versions[number])
    await metastore.aclose()
    return check_data_file(str(path / DATA_FILE))


def used(data: Path, meta: Meta) -> set[int]:
    with data.open("rb") as file:
        pages = Pages(file.fileno(), meta)
        pages.check()
        assert pages.faults == []
        return pages._used


async def test_each_page_with_the_content_of_another_is_found(tmp_path: Path) -> None:
    meta = await filled(tmp_path / "m")
    data, whole = tmp_path / "m" / DATA_FILE, (tmp_path / "m" / DATA_FILE).read_bytes()
    size, pages = meta.page_bytes, sorted(used(data, meta))
    assert len(pages) > 20
    check_pages(str(data), 1000)
    for page, other in zip(pages, [*pages[1:], pages[0]], strict=True):
        damaged = bytearray(whole)
        damaged[page * size : (page + 1) * size] = whole[other * size : (other + 1) * size]
        data.write_bytes(damaged)
        with pytest.raises(DataFileDamagedError, match=f"page {page}, at {page * size}: "):
            check_pages(str(data), 1000)


async def test_metastore_cut_at_its_end_is_refused_by_name(tmp_path: Path) -> None:
    meta = await filled(tmp_path / "whole")
    last = max(used(tmp_path / "whole" / DATA_FILE, meta))
    for page in range(3, last + 1, 5):
        shutil.copytree(tmp_path / "whole", tmp_path / f"{page}")
        with (tmp_path / f"{page}" / DATA_FILE).open("r+b") as file:
            file.truncate(page * meta.page_bytes)
        metastore = LMDBMetastore(str(tmp_path / f"{page}"))
        with pytest.raises(MetastoreCorruptError, match=r"data.mdb is damaged .*Nothing was changed"):
            await metastore.get("logs/001")
        await metastore.aclose()


async def test_file_in_use_by_others_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They write over the pages of the state before the last one while these are walked."""
    await filled(tmp_path)

    class Slow(Pages):
        def check(self, pages_max: int | None = None) -> None:
            with lmdb.open(str(tmp_path), lock=False) as environment, environment.begin(write=True) as transaction:
                transaction.put(b"another", b"one")
            self.faults.append("page 7, at 28672: it is another by now")

    monkeypatch.setattr(lmdb_pages, "Pages", Slow)
    check_pages(str(tmp_path / DATA_FILE), 1000)


@pytest.mark.parametrize("pages", [1, 2])
async def test_metastore_cut_within_its_last_large_value_is_refused(tmp_path: Path, pages: int) -> None:
    """LMDB would make the file as long as before, and the value end in zeros."""
    metastore = LMDBMetastore(str(tmp_path))
    for number in range(6):
        await metastore.create(f"logs/{number}", bytes([number + 1]) * 9000)
    await metastore.aclose()
    data = tmp_path / DATA_FILE
    meta = check_data_file(str(data))
    last = max(used(data, meta))
    with data.open("r+b") as file:
        file.truncate((last + 1 - pages) * meta.page_bytes)
    again = LMDBMetastore(str(tmp_path))
    with pytest.raises(MetastoreCorruptError, match=r"data.mdb is damaged"):
        await again.get("logs/5")
    await again.aclose()
