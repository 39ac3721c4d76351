"""The conformance suite of metastores, run as it is."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from replog.abc import Metastore
from replog.testing import check_metastore
from replog_sqlite import SQLiteMetastore


async def test_it_passes_the_conformance_suite(tmp_path: Path) -> None:
    @asynccontextmanager
    async def client() -> AsyncIterator[Metastore]:
        metastore = SQLiteMetastore(tmp_path / "metadata.sqlite")
        try:
            yield metastore
        finally:
            await metastore.aclose()

    await check_metastore(client)
