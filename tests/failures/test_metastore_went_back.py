"""Bookies on real disks, whose metastore is emptied or goes back while they run, or between two runs (B6a)."""

from __future__ import annotations

import logging
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path

import attrs
import pytest
import trio
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

import replog
from replog.bookie.serving import ServedBookie
from replog.config.bookie import BookieTuning
from replog.config.client import ClientTuning
from replog.errors import LedgerNotFoundError, MetastoreDoubtedError, NotEnoughBookiesError, StorageIdentityError
from tests.cli.logs import finish
from tests.kit import read_ledger, read_log, until
from tests.servers.zookeeper import ZooKeeper

QUICK = ClientTuning(recovery_timeout_s=10.0, metastore_timeout_s=5.0)


async def written(client: replog.Client, count: int) -> list[int]:
    ids = []
    for _ in range(count):
        async with client.create_ledger() as writer:
            await writer.append(b"%d" % writer.ledger_id)
        ids.append(writer.ledger_id)
    return ids


async def all_read(client: replog.Client, ids: Sequence[int]) -> None:
    for ledger_id in ids:
        assert await read_ledger(client, ledger_id) == [b"%d" % ledger_id]


@asynccontextmanager
async def three_bookies(directory: Path, url: str) -> AsyncIterator[list[ServedBookie]]:
    options = BookieTuning(garbage_collection_interval_s=0.2)
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                replog.serve_bookie(
                    replog.BookieConfig(directory=str(directory / f"bookie-{number}"), metastore=url, options=options)
                )
            )
            for number in range(3)
        ]


@asynccontextmanager
async def counters_at_rest(bookies: Sequence[ServedBookie]) -> AsyncIterator[None]:
    """None of these bookies raises its counter, in its cookie or its storage, while the context is open."""
    async with AsyncExitStack() as stack:
        for bookie in bookies:
            await stack.enter_async_context(bookie._server.guard._raising)
        yield


def saved(client: KazooClient, path: str) -> dict[str, bytes]:
    """The persistent nodes from this path on."""
    value, stat = client.get(path)
    found = {} if stat.ephemeralOwner else {path: value}
    for word in client.get_children(path):
        found.update(saved(client, f"{path}/{word}"))
    return found


@pytest.mark.real
async def test_deleted_zookeeper_nodes_cost_nothing(
    zookeeper: ZooKeeper, zookeeper_url: str, zookeeper_chroot: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`deleteall` of the chroot; then an older copy; then the newest again."""
    admin = KazooClient(zookeeper.address)
    await trio.to_thread.run_sync(admin.start)
    root = f"/{zookeeper_chroot.strip('/')}"

    def put_back(nodes: dict[str, bytes]) -> None:
        for child in admin.get_children(root) if admin.exists(root) else ():
            with suppress(NoNodeError):  # a session has ended
                admin.delete(f"{root}/{child}", recursive=True)
        for path in sorted(nodes):
            admin.ensure_path(path)
            admin.set(path, nodes[path])

    async with (
        three_bookies(tmp_path, zookeeper_url) as bookies,
        replog.connect(zookeeper_url, options=QUICK) as client,
    ):
        ids = await written(client, 10)
        older = await trio.to_thread.run_sync(saved, admin, root)
        ids += await written(client, 10)
        async with counters_at_rest(bookies):  # one that is raised after the copy makes the newest copy look old
            newest = await trio.to_thread.run_sync(saved, admin, root)
            await trio.to_thread.run_sync(put_back, {})
        for nodes in ({}, older):
            await trio.to_thread.run_sync(put_back, nodes)
            failures = [each.statistics()["garbage_collection_failures"] for each in bookies]
            await until(
                lambda failures=failures: all(  # type: ignore[misc]
                    each.statistics()["garbage_collection_failures"] >= before + 2
                    for each, before in zip(bookies, failures, strict=True)
                ),
                within_s=60,
            )
            assert all(each.statistics()["metastore_doubted"] for each in bookies)
        await trio.to_thread.run_sync(put_back, newest)
        await until(lambda: not any(each.statistics()["metastore_doubted"] for each in bookies), within_s=60)
        await all_read(client, ids)
    assert any("doubts its metastore" in each.getMessage() for each in caplog.records if each.levelno == logging.ERROR)
    with closing(admin):
        await trio.to_thread.run_sync(admin.stop)


@pytest.fixture
def wal(tmp_path: Path) -> Path:
    return tmp_path / "wal"


@attrs.frozen
class Written:
    ids: list[int]  # those that the older metadata name
    later: list[int]


async def with_older_metadata(wal: Path) -> Written:
    """An embedded log, and copies of its metadata from two moments: `older` and `newest` beside it."""
    async with replog.embed(wal, bookies=3) as client:
        ids = await written(client, 5)
        async with client.write_log("log") as log:
            await log.append(b"a")
    shutil.copytree(wal / "metadata", wal.parent / "older")
    async with replog.embed(wal, bookies=3) as client:
        later = await written(client, 5)
        async with client.write_log("log") as log:
            await log.append(b"b")
    shutil.copytree(wal / "metadata", wal.parent / "newest")
    return Written(ids, later)


def replaced(wal: Path, by: str) -> None:
    shutil.rmtree(wal / "metadata")
    shutil.copytree(wal.parent / by, wal / "metadata")


@pytest.mark.real
async def test_embedded_log_with_older_metadata_drops_nothing(wal: Path) -> None:
    found = await with_older_metadata(wal)
    replaced(wal, "older")
    async with replog.embed(wal, options=QUICK) as client:
        for bookie in client.bookies:
            with pytest.raises(MetastoreDoubtedError):
                await bookie.collect_garbage()
        await all_read(client, found.ids)
        with pytest.raises(NotEnoughBookiesError, match="had been"):
            async with client.create_ledger():
                pass
    replaced(wal, "newest")
    async with replog.embed(wal) as client:
        await all_read(client, [*found.ids, *found.later])
        assert await read_log(client) == [b"a", b"b"]
        assert min(await written(client, 1)) > found.later[-1]


async def confirmed(wal: Path) -> str:
    """What the operator's command says."""
    arguments = ("bookies", "collect-garbage", "--after-restore", "--dir", wal)
    status, said, complaints = await trio.to_thread.run_sync(lambda: finish(*arguments))
    assert status == 0, complaints
    return said.decode()


@pytest.mark.real
async def test_operator_confirms_older_metadata_of_an_embedded_log(wal: Path) -> None:
    found = await with_older_metadata(wal)
    replaced(wal, "older")
    assert "deleted ledgers dropped" in await confirmed(wal)
    async with replog.embed(wal) as client:
        await all_read(client, found.ids)
        with pytest.raises(LedgerNotFoundError):
            await read_ledger(client, found.later[0])
        async with client.write_log("log") as log:
            await log.append(b"c")
        assert await read_log(client) == [b"a", b"c"]
        assert min(await written(client, 1)) > found.later[-1]


@pytest.mark.real
async def test_operator_confirms_metadata_without_any_bookie(wal: Path) -> None:
    await with_older_metadata(wal)
    shutil.rmtree(wal / "metadata")
    with pytest.raises(StorageIdentityError, match="has never heard of it"):
        async with replog.embed(wal):
            pytest.fail("it opens")
    await confirmed(wal)
    async with replog.embed(wal) as client:
        assert await client.ledgers() == []
        await written(client, 2)
