"""Archives in a bucket: read as bookies were, through faults too, and named when something is missing."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from bad_proxy import PASSING, Fault, bad_proxy
from s3_server import ACCESS_KEY, SECRET_KEY, SESSION_TOKEN, Bucket, unsigned

import replog
from replog.abc import Archive
from replog.client import archive_reading
from replog.errors import ArchiveError, ArchiveUnreadableError, ConfigError
from replog.protocol import archiving
from replog_objects.archives import BucketArchive
from replog_objects.options import ArchiveOptions, Target

FAULTS = [each for each in PASSING if each not in (Fault.SILENCE, Fault.SILENCE_AFTER)]
NAME = "ledgers/0000000000000000007/9c02/one"


def url_of(bucket: Bucket, address: str = "", **options: object) -> str:
    given = {"endpoint": f"http://{address or bucket.server.address}", **options}
    return f"s3://{bucket.name}/archive?" + "&".join(f"{name}={value}" for name, value in given.items())


def archive_of(bucket: Bucket, address: str = "", **options: float) -> Archive:
    endpoint = f"http://{address or bucket.server.address}"
    return BucketArchive(Target("s3", bucket.name, "archive"), ArchiveOptions(endpoint=endpoint, **options))  # type: ignore[arg-type]


async def write(client: replog.Client, segments: int = 3, entries: int = 20, size: int = 1000) -> list[bytes]:
    data = [b"%d " % each + secrets.token_bytes(size) for each in range(segments * entries)]
    async with client.write_log("orders") as log:
        for start in range(0, len(data), entries):
            for each in data[start : start + entries]:
                await log.append(each)
            await log.roll()
    return data


async def entries_of(client: replog.Client) -> list[bytes]:
    async with client.read_log("orders") as log:
        return [record.data async for record in log]


async def release(client: replog.Client) -> None:
    """Has the embedded bookies drop what is archived."""
    for each in client.bookies:
        await each.collect_garbage()


@asynccontextmanager
async def archived(bucket: Bucket, wal: Path, url: str = "") -> AsyncIterator[tuple[replog.Client, list[bytes]]]:
    """A client of a log whose closed segments are in the bucket, and nowhere else."""
    async with replog.embed(wal) as client:
        data = await write(client)
        await client.admin.add_archive(url or url_of(bucket))
        assert (await client.admin.archive_log("orders")).fragments == 3
        await release(client)
        yield client, data


def names_of(bucket: Bucket) -> list[str]:
    return sorted(each for each in bucket.names() if each.startswith("archive/ledgers/"))


def test_objects_are_created_once_read_listed_and_deleted(bucket: Bucket) -> None:
    store = archive_of(bucket)
    assert store.put(NAME, [b"0123456789"])
    assert not store.put(NAME, [b"another"])
    assert store.read(NAME, 2, 3) == b"234"
    assert store.read(NAME, 8, 100) == b"89"
    assert store.read("ledgers/none", 0, 1) is None
    assert [(each.name, each.size_bytes) for each in store.objects("ledgers/")] == [(NAME, 10)]
    assert list(store.objects("ledgers/0000000000000000008/")) == []
    store.delete([NAME, "ledgers/none"])
    assert list(store.objects("")) == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_put_survives_each_passing_fault(bucket: Bucket, fault: Fault) -> None:
    with bad_proxy(bucket.server.address) as (proxy, address):
        store = archive_of(bucket, address, timeout_s=20.0)
        proxy.next_one(fault, "PUT")
        store.put(NAME, [b"0123456789"])
        proxy.next_one(Fault.NONE, "PUT", 0)
        assert store.read(NAME, 0, 10) == b"0123456789"
        assert proxy.faults[fault]


async def test_log_is_read_from_the_bucket_and_recalled(bucket: Bucket, tmp_path: Path) -> None:
    async with archived(bucket, tmp_path / "wal") as (client, data):
        assert len(names_of(bucket)) == 3
        assert await entries_of(client) == data
        assert (await client.admin.audit_archives()).problems == ()
        assert (await client.admin.recall_log("orders")).fragments == 3
        for name in names_of(bucket):
            bucket.server.request("DELETE", f"/{bucket.name}/{name}")
        assert await entries_of(client) == data


@pytest.mark.parametrize("seed", range(2))
async def test_faults_cost_no_entry(bucket: Bucket, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """500, 503, resets, answers that are lost, cut or short."""
    monkeypatch.setattr(archiving, "OBJECT_BYTES_MAX", 4000)
    monkeypatch.setattr(archive_reading, "BLOCK_BYTES", 2000)
    with bad_proxy(bucket.server.address) as (proxy, address):
        proxy.at_random(seed, 0.1, FAULTS)
        async with archived(bucket, tmp_path / "wal", url_of(bucket, address, timeout_s=60)) as (client, data):
            assert await entries_of(client) == data
            assert (await client.admin.audit_archives()).problems == ()
        assert sum(proxy.faults[each] for each in FAULTS) > 3


async def test_cold_random_entry_costs_three_requests(bucket: Bucket, tmp_path: Path) -> None:
    with bad_proxy(bucket.server.address) as (proxy, address):
        async with archived(bucket, tmp_path / "wal", url_of(bucket, address)) as (client, data):
            ledger_id = (await client.log_metadata("orders")).segments[1].ledger_id
        async with replog.embed(tmp_path / "wal") as client, client.open_ledger(ledger_id) as reader:
            await client._opened.ledgers.context.archive_reader.archives.opened(  # type: ignore[union-attr]
                (await client.admin.archives())[0].archive_id
            )
            proxy.counts.clear()
            assert await reader.read(7, 7) == [data[27]]
            assert proxy.counts.total() <= 3, proxy.counts
            proxy.counts.clear()
            assert await reader.read(9, 9) == [data[29]]
            assert proxy.counts.total() == 1, "the listing and the index are remembered"


async def test_first_entry_of_a_cold_log_costs_four_requests(bucket: Bucket, tmp_path: Path) -> None:
    """The cookie, the listing, the index and the first block: blocks that are read ahead come beside."""
    with bad_proxy(bucket.server.address) as (proxy, address):
        async with archived(bucket, tmp_path / "wal", url_of(bucket, address)) as (_, data):
            pass
        async with replog.embed(tmp_path / "wal") as client, client.read_log("orders") as reader:
            proxy.counts.clear()
            assert (await reader.receive()).data == data[0]
            assert proxy.counts == {"GET": 3, "LIST": 1}


async def test_expired_credentials_are_named_and_never_shown(bucket: Bucket, tmp_path: Path) -> None:
    with bad_proxy(bucket.server.address) as (proxy, address):
        async with archived(bucket, tmp_path / "wal", url_of(bucket, address)) as (client, data):
            proxy.plan = lambda _method, _path: Fault.EXPIRED
            with pytest.raises(ArchiveUnreadableError, match="credentials have expired: renew them") as raised:
                await entries_of(client)
            assert f"archive s3://{bucket.name}/archive: " in str(raised.value)
            (record,) = await client.admin.archives()
            for shown in (str(raised.value), repr(raised.value), repr(record)):
                for secret in (ACCESS_KEY, SECRET_KEY, SESSION_TOKEN):
                    assert secret not in shown
            proxy.plan = lambda _method, _path: Fault.NONE
            assert await entries_of(client) == data


async def test_wiped_bucket_and_another_clusters_are_refused(bucket: Bucket, tmp_path: Path) -> None:
    async with archived(bucket, tmp_path / "wal") as (_, data):
        pass
    async with replog.embed(tmp_path / "other") as other:
        with pytest.raises(ArchiveError, match="cookie of another archive, or of another cluster"):
            await other.admin.add_archive(url_of(bucket))
        assert await other.admin.archives() == []
    cookie = bucket.get("archive/cookie")
    bucket.server.request("DELETE", f"/{bucket.name}/archive/cookie")
    async with replog.embed(tmp_path / "wal") as client:
        with pytest.raises(ArchiveUnreadableError, match="has no cookie: it was emptied"):
            await entries_of(client)
        bucket.put("archive/cookie", cookie)
        assert await entries_of(client) == data


async def test_flipped_byte_and_missing_object_are_named(bucket: Bucket, tmp_path: Path) -> None:
    async with archived(bucket, tmp_path / "wal") as (_, data):
        name = names_of(bucket)[0]
    body = bucket.get(name)
    for damage in ("flipped", "deleted"):
        if damage == "flipped":
            bucket.put(name, body[:100] + bytes([body[100] ^ 1]) + body[101:])
        else:
            bucket.server.request("DELETE", f"/{bucket.name}/{name}")
        async with replog.embed(tmp_path / "wal") as client:
            with pytest.raises(ArchiveUnreadableError, match=r"ledgers/\d+|no object of copy"):
                await entries_of(client)
            (problem,) = (await client.admin.audit_archives()).problems
            assert (problem.first_entry_id, problem.last_entry_id) == (0, 19)
        bucket.put(name, body)
    async with replog.embed(tmp_path / "wal") as client:
        assert await entries_of(client) == data


@unsigned
async def test_store_without_conditions_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    with bad_proxy(bucket.server.address) as (proxy, address):
        proxy.ignores_conditions_of = ("PUT",)
        async with replog.embed(tmp_path / "wal") as client:
            with pytest.raises(ArchiveError, match="replaces objects that exist"):
                await client.admin.add_archive(url_of(bucket, address))


async def test_url_with_a_user_is_refused(tmp_path: Path) -> None:
    async with replog.embed(tmp_path / "wal") as client:
        with pytest.raises(ConfigError, match="a bucket's URL has no user") as raised:
            await client.admin.add_archive("s3://key:secret@bucket/archive")
        assert not re.search("key:secret", str(raised.value))
