"""Bookie processes that announce themselves in a real ZooKeeper: killed and started again, and copies of one directory."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
import trio

import replog
from replog.config.bookie import BookieTuning
from replog.errors import StorageInUseError
from replog.records.bookies import BOOKIES_KEY, decode_address
from replog.registry import Registry
from tests.cli.serving.processes import bookie_process
from tests.servers.zookeeper import ZooKeeper

pytestmark = [pytest.mark.needs_zookeeper, pytest.mark.slow]


@pytest.fixture
def metastore(zookeeper: ZooKeeper, zookeeper_chroot: str) -> str:
    """The server drops whoever it has not heard of for ten seconds: a process starts in less, also on a busy machine."""
    return zookeeper.url(zookeeper_chroot, lease_s=10)


async def announced(metastore: str) -> dict[str, str]:
    """By bookies, where they can be reached first."""
    store = Registry().open_metastore(metastore)
    try:
        found = await store.announced(BOOKIES_KEY)
    finally:
        await store.aclose()
    return {each: str(decode_address(f"{BOOKIES_KEY}/{each}", value).endpoints[-1]) for each, value in found.items()}


def test_a_killed_bookie_is_back_before_its_session_ends(metastore: str, tmp_path: Path) -> None:
    """B4: the lock on its directory shows that its predecessor is gone."""
    with bookie_process(tmp_path, "--metastore", metastore) as first:
        bookie_id, address = first.bookie_id, first.address
        assert trio.run(announced, metastore) == {bookie_id: f"tcp:{address}"}
        first.stop(signal.SIGKILL)
    with bookie_process(tmp_path, "--metastore", metastore) as second:
        assert second.bookie_id == bookie_id
        assert trio.run(announced, metastore) == {bookie_id: f"tcp:{second.address}"}
        assert not [line for line in second.lines if "is announced already" in line["event"]], second.lines
        assert second.stop() == 0
    assert trio.run(announced, metastore) == {}


async def test_copy_of_a_served_directory_is_not_served(metastore: str, tmp_path: Path) -> None:
    options = BookieTuning(listen=("tcp:127.0.0.1:0",), announce_timeout_s=0.7)
    with bookie_process(tmp_path, "--metastore", metastore) as first:
        shutil.copytree(tmp_path / "bookie", tmp_path / "copy")
        copy = replog.BookieConfig(directory=str(tmp_path / "copy"), metastore=metastore, options=options)
        with pytest.raises(StorageInUseError, match="copy of this directory") as raised:
            async with replog.serve_bookie(copy):
                pass
        assert f"tcp:{first.address}" in str(raised.value)
        assert await announced(metastore) == {first.bookie_id: f"tcp:{first.address}"}
        await write(metastore)


async def write(metastore: str) -> None:
    async with replog.connect(metastore, quorum=replog.Quorum(1, 1, 1)) as client:
        async with client.write_log("log") as log:
            await log.append(b"x")
