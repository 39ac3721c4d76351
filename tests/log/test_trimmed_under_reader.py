"""A log is trimmed under a reader, and its bookies are faster than the ledger's record: trimmed, not lost."""

from pathlib import Path

import pytest

import replog
from replog.metastores.memory import MemoryMetastore
from replog.records.encoding import encode
from replog.records.logs import decode_log
from replog.records.paths import log_key_path


async def test_entries_dropped_by_bookies_were_trimmed(tmp_path: Path) -> None:
    metastore = MemoryMetastore()
    async with (
        replog.embed(tmp_path, storage="memory", metastore=metastore) as client,
        client.write_log("events") as log,
    ):
        await log.extend([b"one", b"two"])
        first_ledger = log.ledger_id
        await log.roll()
        await log.append(b"three")
        async with client.read_log("events", after="1:0") as reader:
            key = log_key_path("events")
            found = await metastore.get(key)
            trimmed = decode_log(key, found.value).trimmed_before(2)
            await metastore.put(key, encode(trimmed), found.version)
            await client.bookies[0]._server.drop(first_ledger)
            with pytest.raises(replog.errors.TrimmedError) as caught:
                await reader.receive()
            assert caught.value.first_available == replog.Position(2, 0)
