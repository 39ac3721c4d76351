"""Back-ups in a bucket: with the format and guarantees of a directory, without its locks."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio
from bad_proxy import PASSING, Fault, bad_proxy
from s3_server import ACCESS_KEY, SECRET_KEY, SESSION_TOKEN, Bucket, unsigned

import replog
from replog.backup import saving
from replog.backup.content import open_backup
from replog.backup.saving import BackupReport
from replog.errors import BackupDamagedError, BackupError, ConfigError
from replog.registry import Registry
from replog_objects import backups
from replog_objects.backups import BucketPlace
from replog_objects.options import BackupOptions, Target

FAULTS = [each for each in PASSING if each not in (Fault.SILENCE, Fault.SILENCE_AFTER, Fault.SHORTENED_AFTER)]


def url_of(bucket: Bucket, address: str = "", **options: object) -> str:
    given = {"endpoint": f"http://{address or bucket.server.address}", **options}
    return f"s3://{bucket.name}/backups/daily?" + "&".join(f"{name}={value}" for name, value in given.items())


def check(url: str) -> BackupReport:
    return saving.check(open_backup(url, Registry()))


def names_of(bucket: Bucket) -> list[str]:
    return sorted(each.removeprefix("backups/daily/") for each in bucket.names())


async def write(client: replog.Client, segments: int, begin: int = 0, payload: bytes = b"") -> None:
    async with client.write_log("orders") as log:
        for segment in range(segments):
            for number in range(5):
                await log.append(b"%d %d%b" % (begin + segment, number, payload))
            await log.roll()


async def records_of(client: replog.Client) -> list[tuple[str, bytes]]:
    async with client.read_log("orders") as log:
        return [(str(record.position), record.data) async for record in log]


async def test_log_is_saved_checked_and_restored_as_it_was(bucket: Bucket, tmp_path: Path) -> None:
    url = url_of(bucket)
    async with replog.embed(tmp_path / "wal") as client:
        await write(client, 3)
        first = await client.admin.backup(url)
        assert first.logs[0].new_segments == first.logs[0].last_segment >= 3
        assert first.directory == f"s3://{bucket.name}/backups/daily"
        await write(client, 2, begin=3)
        second = await client.admin.backup(url)
        assert 2 <= second.logs[0].new_segments <= 4, "only what is new"
        before = await records_of(client)
    report = check(url)
    assert report.problems == ()
    assert len([each for each in names_of(bucket) if each.startswith("ledgers/")]) == report.logs[0].last_segment
    async with replog.embed(tmp_path / "restored") as client:
        await client.admin.restore(url)
        assert await records_of(client) == before


async def test_copy_of_the_bucket_is_a_directory(bucket: Bucket, tmp_path: Path) -> None:
    """The same format: the objects, copied into a directory, are a back-up there."""
    async with replog.embed(tmp_path / "wal") as client:
        await write(client, 2)
        await client.admin.backup(url_of(bucket))
        before = await records_of(client)
    (tmp_path / "copy" / "ledgers").mkdir(parents=True)
    for name in names_of(bucket):
        (tmp_path / "copy" / name).write_bytes(bucket.get(f"backups/daily/{name}"))
    async with replog.embed(tmp_path / "restored") as client:
        await client.admin.restore(tmp_path / "copy")
        assert await records_of(client) == before


async def test_one_of_two_at_once_is_refused_and_the_other_is_whole(bucket: Bucket, tmp_path: Path) -> None:
    url, refused = url_of(bucket), list[BackupError]()

    async def save(client: replog.Client) -> None:
        try:
            await client.admin.backup(url)
        except BackupError as error:
            refused.append(error)

    async with replog.embed(tmp_path / "wal") as client:
        await write(client, 3)
        for _ in range(3):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(save, client)
            assert check(url).problems == ()
            await write(client, 1)
    assert len(refused) >= 3
    assert all("another back-up" in str(each) for each in refused)


@pytest.mark.parametrize("seed", range(2))
async def test_faults_of_the_store_cost_nothing(bucket: Bucket, tmp_path: Path, seed: int) -> None:
    with bad_proxy(bucket.server.address) as (proxy, address):
        proxy.at_random(seed, 0.2, FAULTS)
        url = url_of(bucket, address, timeout_s=30)
        async with replog.embed(tmp_path / "wal") as client:
            for number in range(3):
                await write(client, 2, begin=2 * number)
                await client.admin.backup(url)
            before = await records_of(client)
        async with replog.embed(tmp_path / "restored") as client:
            await client.admin.restore(url)
            assert await records_of(client) == before
        assert sum(proxy.faults[each] for each in FAULTS) > 5


async def test_refusal_amid_a_run_is_named_and_keeps_the_earlier_one(bucket: Bucket, tmp_path: Path) -> None:
    with bad_proxy(bucket.server.address) as (proxy, address):
        url, left = url_of(bucket, address), 12

        def expire(method: str, path: str) -> Fault:
            nonlocal left
            left -= 1
            return Fault.NONE if left > 0 else Fault.EXPIRED

        async with replog.embed(tmp_path / "wal") as client:
            await write(client, 2)
            await client.admin.backup(url)
            await write(client, 6)
            proxy.plan = expire
            with pytest.raises(BackupError, match="expired") as raised:
                await client.admin.backup(url)
            proxy.plan = lambda method, path: Fault.NONE
            assert (await client.admin.backup(url)).problems == ()
    assert check(url_of(bucket)).problems == ()
    shown = f"{raised.value} {raised.value.__context__ if not raised.value.__suppress_context__ else ''}"
    assert not [each for each in (ACCESS_KEY, SECRET_KEY, SESSION_TOKEN) if each in shown]


async def test_damage_is_named_object_by_object(bucket: Bucket, tmp_path: Path) -> None:
    url = url_of(bucket)
    async with replog.embed(tmp_path / "wal") as client:
        await write(client, 2)
        await client.admin.backup(url)
        for name in names_of(bucket):
            good = bucket.get(f"backups/daily/{name}")
            if name == "conditions":
                continue
            bad = bytearray(good)
            bad[len(bad) // 2] ^= 1
            bucket.put(f"backups/daily/{name}", bytes(bad))
            if name == "manifest.json":
                with pytest.raises(BackupDamagedError, match=r"manifest\.json"):
                    check(url)
            else:
                assert name in check(url).problems[0]
                bucket.server.request("DELETE", f"/{bucket.name}/backups/daily/{name}")
                (problem,) = check(url).problems
                assert name in problem
                assert (await client.admin.backup(url)).logs[0].new_segments == 1, "what is missing is saved again"
                continue
            bucket.put(f"backups/daily/{name}", good)
        assert check(url).problems == ()


async def test_another_clusters_bucket_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    url = url_of(bucket)
    async with replog.embed(tmp_path / "one") as client:
        await write(client, 2)
        await client.admin.backup(url)
    async with replog.embed(tmp_path / "other") as client:
        await write(client, 2)
        with pytest.raises(BackupError, match="back-up of another cluster"):
            await client.admin.backup(url)
    assert check(url).problems == ()


@unsigned
def test_bucket_without_a_back_up_or_without_conditions_is_refused(bucket: Bucket) -> None:
    with pytest.raises(BackupError, match="no finished back-up"):
        check(url_of(bucket))
    with pytest.raises(BackupError, match="the bucket does not exist"):
        check(url_of(Bucket(bucket.server, "there-is-none")))
    with pytest.raises(ConfigError):
        open_backup("file:///tmp/backup", Registry())
    with bad_proxy(bucket.server.address) as (proxy, address):
        proxy.ignores_conditions_of = ("PUT",)
        with (
            pytest.raises(BackupError, match="ignores conditions"),
            open_backup(url_of(bucket, address), Registry()).locked(),
        ):
            pass
    assert names_of(bucket) == ["conditions"]


SAVE = """
import sys, trio, replog

async def main():
    async with replog.embed(sys.argv[1]) as client:
        print("begins", flush=True)
        print((await client.admin.backup(sys.argv[2])).logs[0].new_segments, flush=True)

trio.run(main)
"""


@pytest.mark.slow
@pytest.mark.crash
async def test_killed_run_leaves_the_earlier_one_and_is_gone_on_with(bucket: Bucket, tmp_path: Path) -> None:
    """Killed at many moments; what a killed run has finished is not saved again, and is named once a later one ends."""
    with bad_proxy(bucket.server.address) as (proxy, address):
        url, wal = url_of(bucket, address), tmp_path / "wal"
        async with replog.embed(wal) as client:
            await write(client, 12)
        for allowed in (4, 8, 12, 18, 25, 33, 10_000):
            reached, left = trio.Event(), allowed
            token = trio.lowlevel.current_trio_token()

            def stall(method: str, path: str, reached: trio.Event = reached, token: object = token) -> Fault:
                nonlocal left
                left -= 1
                if left == 0:
                    trio.from_thread.run_sync(reached.set, trio_token=token)  # type: ignore[arg-type]
                return Fault.SILENCE if left <= 0 else Fault.NONE

            proxy.plan = stall
            process = start([sys.executable, "-c", SAVE, str(wal), url])
            with trio.fail_after(90):
                while not reached.is_set() and process.poll() is None:  # noqa: ASYNC110 - a process
                    await trio.sleep(0.02)
                if allowed < 10_000:
                    process.kill()
                await trio.to_thread.run_sync(process.communicate)
        assert check(url_of(bucket)).problems == ()
        manifest = json.loads(bucket.get("backups/daily/manifest.json").rpartition(b"\n")[0].rpartition(b"\n")[0])
        segments = manifest["logs"]["orders"]["segments"]
        kept = [each for each in names_of(bucket) if each.startswith("ledgers/")]
        assert {f"ledgers/{each[4]}" for each in segments} <= set(kept)
        assert len(segments) >= 12
        assert len(kept) <= len(segments) + 6, "each killed run leaves at most what it was finishing"


def start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.PIPE)


async def test_unneeded_objects_go_after_a_day(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = url_of(bucket)
    async with replog.embed(tmp_path / "wal") as client:
        await write(client, 4)
        await client.admin.backup(url)
        before = set(names_of(bucket))
        await client.trim_log("orders", before="3:0")
        await client.admin.backup(url)
        assert before <= set(names_of(bucket)), "they are younger than a day"
        monkeypatch.setattr(backups, "_REMOVED_AFTER_S", -10.0)
        await client.admin.backup(url)
    assert len([each for each in names_of(bucket) if each.startswith("ledgers/")]) == len(
        re.findall(rb'\.ledger"', bucket.get("backups/daily/manifest.json"))
    )
    assert check(url).problems == ()


@pytest.mark.long(is_sampled=False)
def test_large_files_take_bounded_memory(bucket: Bucket) -> None:
    place = BucketPlace(
        Target("s3", bucket.name, "large"), BackupOptions(endpoint=f"http://{bucket.server.address}", timeout_s=60.0)
    )
    piece, pieces = bytes(1 << 20), 112
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with place.locked():
        file = place.begin("0" * 20 + ".ledger")
        for _ in range(pieces):
            file.write(piece)
        name = file.finish()
    begun_s = time.monotonic()
    read = place.open(name, 4 << 20)
    while read.read(1 << 20):
        pass
    assert time.monotonic() - begun_s < 60
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 96 << 10, f"{grown >> 10} MiB more, of {pieces} written"
