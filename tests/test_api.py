"""`embed`, `connect`, `serve_bookie`: wiring, real directories, real processes, leaving (B4, B5, M3)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

import replog
from replog.api import open_elsewhere
from replog.backends import memory
from replog.config import BookieOptions, ClientOptions
from replog.errors import (
    ConfigError,
    EntryNotFoundError,
    EntryUnreadableError,
    NotEnoughBookiesError,
    StorageError,
    StorageIdentityError,
    StorageInUseError,
)
from replog.metastores.memory import MemoryMetastore
from replog.registry import Registry
from replog.testing import Fault, FaultyMetastore
from tests.forks import Forked
from tests.kit import ONE, read_ledger, read_log

HOLDER = """
import sys, trio, replog
async def main():
    async with replog.embed(sys.argv[1]) as client, client.write_log("log") as log:
        await log.append(b"confirmed")
        print("ready", flush=True)
        await trio.sleep(60)
trio.run(main)
"""


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose name leaves room for the name of a socket."""
    with tempfile.TemporaryDirectory(prefix="replog-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def left_threads(before: set[threading.Thread]) -> list[str]:
    """Threads of ours that were not there before; trio keeps idle ones of its own for a while."""
    return [each.name for each in set(threading.enumerate()) - before if not each.name.startswith("Trio thread")]


# -- embed ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bookies", [1, 2, 3, 4])
async def test_an_embedded_log_survives_leaving_and_coming_back(bookies: int, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    for turn in range(2):
        async with replog.embed(tmp_path, bookies=bookies if turn == 0 else None) as client:
            assert len(client.bookies) == bookies
            assert client.default_quorum.ensemble == min(bookies, 3)
            assert await client.logs() == (["log"] if turn else [])
            async with client.write_log("log") as log:
                await log.extend([b"%d/%d" % (turn, number) for number in range(100)])
            assert len(await read_log(client)) == 100 * (turn + 1)
            assert set(client.statistics()) == {"client", *(each._server.bookie_id for each in client.bookies)}
    assert left_threads(before) == []


async def test_directory_of_another_storage_names_the_right_one(tmp_path: Path) -> None:
    async with replog.embed(tmp_path, storage="lmdb"):
        pass
    with pytest.raises(StorageIdentityError, match=r"'replog lmdb storage'.*open it with the storage that it names"):
        async with replog.embed(tmp_path):
            pass


async def test_each_of_several_directories_gets_a_bookie(tmp_path: Path) -> None:
    disks = [tmp_path / f"disk{number}" for number in range(3)]
    async with replog.embed(disks) as client:
        async with client.write_log("log") as log:
            await log.append(b"0")
    assert all((disk / "bookie-0").is_dir() for disk in disks)
    async with replog.embed([str(disk) for disk in disks]) as client:
        assert await read_log(client) == [b"0"]
    with pytest.raises(StorageIdentityError, match="Nothing was touched"):
        async with replog.embed(list(reversed(disks))):  # the metadata stands beside the first
            pass
    async with replog.embed(disks) as client:
        assert await read_log(client) == [b"0"]


async def test_a_lost_metadata_directory_raises_and_deletes_nothing(tmp_path: Path) -> None:
    async with replog.embed(tmp_path) as client, client.write_log("log") as log:
        await log.append(b"0")
    (tmp_path / "metadata").rename(tmp_path / "elsewhere")
    for _ in range(2):
        with pytest.raises(StorageIdentityError, match="metastore"):
            async with replog.embed(tmp_path):
                pass
    for found in (tmp_path / "metadata").iterdir():
        found.unlink()
    (tmp_path / "metadata").rmdir()
    (tmp_path / "elsewhere").rename(tmp_path / "metadata")
    async with replog.embed(tmp_path) as client:
        assert await read_log(client) == [b"0"]


async def test_impossible_numbers_of_bookies_are_refused(tmp_path: Path) -> None:
    async with replog.embed(tmp_path, bookies=2):
        pass
    with pytest.raises(ConfigError, match="has 2 bookies, and 1"):
        async with replog.embed(tmp_path, bookies=1):
            pass
    async with replog.embed(tmp_path, bookies=3) as client:  # one more
        assert len(client.bookies) == 3
    for wrong in (0, -1, 1 << 31, True, 1.5, "3"):
        with pytest.raises(ConfigError, match="bookies"):
            async with replog.embed(tmp_path, bookies=wrong):  # type: ignore[arg-type]
                pass
    for directories in ([], [tmp_path / "a", tmp_path / "a"]):
        with pytest.raises(ConfigError):
            async with replog.embed(directories):
                pass
    with pytest.raises(ConfigError):
        async with replog.embed([tmp_path / "a", tmp_path / "b"], bookies=3):
            pass
    assert not (tmp_path / "a").exists()


async def test_storages_and_metastores_are_named_by_urls(tmp_path: Path) -> None:
    async with replog.embed(tmp_path, storage="files?journal_file_bytes=4MiB") as client:
        async with client.write_log("log") as log:
            await log.append(b"0")
    name = str(tmp_path)
    try:
        for _ in range(2):
            async with replog.embed(tmp_path / "m", storage="memory", metastore=f"memory:{name}") as client:
                async with client.write_log("log") as log:
                    await log.append(b"0")
        assert not (tmp_path / "m").exists()
    finally:
        MemoryMetastore.discard(name)
        memory.forget(str(tmp_path / "m" / "bookie-0"))


@pytest.mark.parametrize(
    "storage",
    ["nothing", "files?journal_bytes=1", "files?journal_file_bytes=many", "memory?a=b", "files:/elsewhere", "", "?"],
)
async def test_a_wrong_storage_is_refused_before_anything_is_made(storage: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        async with replog.embed(tmp_path / "wal", storage=storage, bookies=2):
            pass
    assert not (tmp_path / "wal").exists()


async def test_the_storage_may_not_be_named_twice(tmp_path: Path) -> None:
    options = BookieOptions(storage="memory")
    with pytest.raises(ConfigError, match="twice"):
        async with replog.embed(tmp_path, storage="files", bookie_options=options):
            pass


@pytest.mark.parametrize("metastore", ["nothing:x", "lmdb:x?option=1", "", "zookeeper://a,b/c?option=1"])
async def test_metastore_fault_is_described(metastore: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        async with replog.connect(metastore):
            pass
    if metastore:
        with pytest.raises(ConfigError):
            async with replog.embed(tmp_path / "wal", metastore=metastore):
                pass


async def test_unknown_placement_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="random"):
        async with replog.embed(tmp_path, placement="nothing"):
            pass


# -- other processes ------------------------------------------------------------------------------------------------


def start(program: str, directory: Path, ready: str) -> Forked:
    """A process that runs this program, and has said that it is ready."""
    process = Forked([sys.executable, "-c", program, str(directory)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == ready
    return process


def hold(directory: Path) -> Forked:
    """A process that has the directory open, and a log in it."""
    return start(HOLDER, directory, "ready\n")


def end(process: Forked) -> None:
    """Kills the process, and waits until it is gone."""
    process.kill()
    assert process.stdout is not None
    process.stdout.close()
    process.wait()


async def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    process = await trio.to_thread.run_sync(hold, tmp_path)
    try:
        for _ in range(2):
            with pytest.raises(StorageInUseError) as caught:
                async with replog.embed(tmp_path):
                    pass
            assert str(tmp_path) in str(caught.value)
            assert caught.value.hint
            assert str(process.pid) in str(caught.value)
        process.send_signal(signal.SIGKILL)
        await trio.to_thread.run_sync(process.wait)
        async with replog.embed(tmp_path) as client:
            async with client.write_log("log") as log:
                await log.append(b"after")
            assert await read_log(client) == [b"confirmed", b"after"]
    finally:
        await trio.to_thread.run_sync(end, process)


def hold_and_listen(directory: Path) -> Forked:
    """The same, where other processes reach it by a socket."""
    listening = f"sys.argv[1], bookie_options=replog.BookieOptions(listen=('unix:{directory}/here.sock',))"
    assert HOLDER.count("embed(sys.argv[1]") == 1
    return start(HOLDER.replace("embed(sys.argv[1]", f"embed({listening}"), directory, "ready\n")


@pytest.mark.parametrize("is_elsewhere", [False, True])
async def test_refusal_names_the_socket_of_the_owning_process(is_elsewhere: bool, short_path: Path) -> None:
    directory = short_path / "wal"
    process = await trio.to_thread.run_sync(hold_and_listen, directory)
    try:
        metadata = f"lmdb:{directory}/metadata"
        with pytest.raises(StorageInUseError) as caught:
            async with replog.embed(directory, metastore=metadata if is_elsewhere else None):
                pass
        assert str(process.pid) in str(caught.value)
        assert f"serves it at unix:{directory}/here.sock: use replog.connect" in caught.value.hint
        assert (f"replog.connect('{metadata}')" in caught.value.hint) is not is_elsewhere
        one = replog.Quorum(1, 1, 1)
        async with replog.connect(metadata, quorum=one) as client, client.write_log("log") as log:
            await log.append(b"by the socket")
            assert await read_log(client) == [b"confirmed", b"by the socket"]
    finally:
        await trio.to_thread.run_sync(end, process)


async def test_refusal_names_no_socket_of_other_bookies(short_path: Path) -> None:
    """They share a metastore: whose directory it is tells its lock."""

    def listening(name: str) -> BookieOptions:
        return BookieOptions(listen=(f"unix:{short_path}/{name}.sock", "tcp:127.0.0.1:0"))

    async with AsyncExitStack() as stack:
        metastore = MemoryMetastore()
        for name in "abc":
            embedded = replog.embed(short_path / name, metastore=metastore, bookie_options=listening(name))
            await stack.enter_async_context(embedded)
        for name in "abc":
            with pytest.raises(StorageInUseError) as caught:
                async with replog.embed(short_path / name, metastore=metastore):
                    pass
            assert f"serves it at unix:{short_path}/{name}.sock, tcp:127.0.0.1:" in caught.value.hint
            assert caught.value.hint.count(".sock") == 1


async def test_refusal_says_how_to_reach_a_process_without_a_socket(tmp_path: Path) -> None:
    process = await trio.to_thread.run_sync(hold, tmp_path)
    try:
        with pytest.raises(StorageInUseError) as caught:
            async with replog.embed(tmp_path):
                pass
        assert f"listen=('unix:{tmp_path}/bookie.sock',)" in caught.value.hint
        assert f"replog.connect('lmdb:{tmp_path}/metadata')" in caught.value.hint
    finally:
        await trio.to_thread.run_sync(end, process)


async def test_refusal_makes_nothing_where_the_metadata_would_be(tmp_path: Path) -> None:
    """Its metadata is elsewhere: what the caller named by mistake is not made, and the refusal is the plain one."""
    options = replog.BookieOptions(storage="files")
    name = str(tmp_path)
    try:
        async with replog.embed(tmp_path / "wal", metastore=f"memory:{name}", bookie_options=options):
            with pytest.raises(StorageInUseError, match="Close it there first"):
                async with replog.embed(tmp_path / "wal"):
                    pass
        assert not (tmp_path / "wal" / "metadata").exists()
    finally:
        MemoryMetastore.discard(name)


async def test_refusal_does_not_wait_long_for_a_metastore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that hangs, or fails, costs the hint and nothing else."""
    monkeypatch.setattr(open_elsewhere, "_PATIENCE_S", 0.05)
    for fault in (Fault.UNAVAILABLE, None):
        inner = MemoryMetastore()
        async with replog.embed(tmp_path / "wal", metastore=inner):
            faulty = FaultyMetastore(inner, lambda *_, fault=fault: fault, delay_s=0.0 if fault else 3600.0)
            with trio.fail_after(60), pytest.raises(StorageInUseError, match="Close it there first"):
                async with replog.embed(tmp_path / "wal", metastore=faulty):
                    pass
        shutil.rmtree(tmp_path / "wal")


async def test_the_same_process_cannot_embed_a_directory_twice_either(tmp_path: Path) -> None:
    async with replog.embed(tmp_path) as client, client.write_log("log") as log:
        await log.append(b"0")
        with pytest.raises(StorageInUseError):
            async with replog.embed(tmp_path):
                pass
        await log.append(b"1")
        assert await read_log(client) == [b"0", b"1"]


def end_in_a_fork() -> int:
    """A child process that ends at once; its exit status."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)[1]


async def test_ending_fork_disturbs_no_other(tmp_path: Path) -> None:
    async with replog.embed(tmp_path) as client, client.write_log("log") as log:
        await log.append(b"0")
        assert end_in_a_fork() == 0
        await log.append(b"1")
        with pytest.raises(StorageInUseError):
            await trio.to_thread.run_sync(lambda: trio.run(embed_once, tmp_path))
        assert await read_log(client) == [b"0", b"1"]


async def embed_once(directory: Path) -> None:
    async with replog.embed(directory):
        pass


# -- directories that are not what they should be -------------------------------------------------------------------


async def test_a_damaged_journal_is_named_and_the_rest_is_served(tmp_path: Path) -> None:
    """B3, B8: the log opens, says what it cannot vouch for, and what is damaged is never called absent."""
    async with replog.embed(tmp_path) as client, client.write_log("log") as log:
        for number in range(50):
            await log.append(b"%d" % number * 100)
    journal = max((tmp_path / "bookie-0").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else -1)
    whole = journal.read_bytes()
    place = whole.index(b"1010101010")
    journal.write_bytes(whole[:place] + b"?" + whole[place + 1 :])
    async with replog.embed(tmp_path) as client:
        doubt = client.bookies[0]._server.storage.doubt()
        assert doubt.lost_below > 0
        assert any(journal.name in reason for reason in doubt.reasons)
        # Once the bookie has healed, it is sure: the ledger is closed, and nobody has the entry.
        with pytest.raises((EntryUnreadableError, EntryNotFoundError), match="entry 10"):
            await read_log(client)


async def test_a_directory_of_another_version_is_refused(tmp_path: Path) -> None:
    async with replog.embed(tmp_path):
        pass
    (described,) = (tmp_path / "bookie-0").glob("*.json")
    text = described.read_text()
    described.write_text(text.replace('"version": 1', '"version": 99'))
    assert described.read_text() != text
    with pytest.raises(StorageIdentityError):
        async with replog.embed(tmp_path):
            pass
    described.write_text(text)
    async with replog.embed(tmp_path):
        pass


async def test_file_or_unwritable_path_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError):
        async with replog.embed(tmp_path / "file"):
            pass
    with pytest.raises(StorageError):
        async with replog.embed("/proc/nowhere"):
            pass


# -- leaving --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", ["client", "writer", "log", "reader"])
async def test_an_exception_of_the_application_comes_out_as_it_is(depth: str, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    mine = KeyError("mine")
    with pytest.raises(KeyError) as caught:
        async with replog.embed(tmp_path, bookies=3) as client:
            if depth == "client":
                raise mine
            if depth == "writer":
                async with client.create_ledger() as writer:
                    writer.push_nowait(b"x")
                    raise mine
            async with client.write_log("log") as log:
                await log.append(b"x")
                if depth == "log":
                    raise mine
                async with client.read_log("log", follow=True) as reader:
                    async for _ in reader:
                        raise mine
    assert caught.value is mine
    assert left_threads(before) == []


@pytest.mark.parametrize("after_s", [0.0, 0.002, 0.01, 0.03, 0.08])
async def test_cancellation_from_outside_leaves_nothing_running(after_s: float, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with trio.move_on_after(10) as outer, trio.CancelScope() as scope:
        scope.deadline = trio.current_time() + after_s
        async with replog.embed(tmp_path, bookies=2) as client:
            async with client.write_log("log") as log, client.read_log("log", follow=True) as reader:
                async with trio.open_nursery() as nursery:

                    async def write() -> None:
                        while True:
                            await log.append(b"x")

                    nursery.start_soon(write)
                    async for _ in reader:
                        pass
    assert not outer.cancelled_caught
    assert scope.cancelled_caught
    assert left_threads(before) == []
    async with replog.embed(tmp_path, bookies=2) as client:
        for name in await client.logs():
            await read_log(client, name)


async def test_leaving_takes_no_time(tmp_path: Path) -> None:
    async with replog.embed(tmp_path) as client, client.write_log("log") as log:
        await log.append(b"x")
        started = time.monotonic()
    assert time.monotonic() - started < 5


# -- connect and serve_bookie ---------------------------------------------------------------------------------------


async def test_bookies_inside_an_app_are_reached_through_the_metastore(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    metastore = f"lmdb:{tmp_path / 'metadata'}"
    configs = [replog.BookieConfig(directory=str(tmp_path / name), metastore=metastore) for name in ("a", "b", "c")]
    async with AsyncExitStack() as stack:
        bookies = [await stack.enter_async_context(replog.serve_bookie(config)) for config in configs]
        assert len({bookie.bookie_id for bookie in bookies}) == 3
        async with replog.connect(metastore) as client, replog.connect(metastore) as other:
            async with client.write_log("log") as log:
                await log.append(b"0")
                await log.roll()
                await log.append(b"1")
            assert await read_log(other) == [b"0", b"1"]
    assert left_threads(before) == []


async def test_without_bookies_a_client_says_how_many_it_needs() -> None:
    async with replog.connect(MemoryMetastore()) as client:
        with pytest.raises(NotEnoughBookiesError, match="only 0"):
            async with client.create_ledger():
                pass
        assert await client.logs() == []


async def test_embedded_bookies_are_reached_by_sockets_if_asked_for(tmp_path: Path) -> None:
    elsewhere = Registry(disabled=["memory-transport"])  # as another process
    with tempfile.TemporaryDirectory(prefix="replog-") as short:
        options = BookieOptions(listen=(f"unix:{short}/",))
        async with replog.embed(tmp_path, bookies=3, bookie_options=options) as client:
            names = sorted(f"{each._server.bookie_id}.sock" for each in client.bookies)
            assert sorted(os.listdir(short)) == names
            async with replog.connect(f"lmdb:{tmp_path / 'metadata'}", registry=elsewhere) as other:
                async with other.write_log("log") as log:
                    await log.append(b"from elsewhere")
                assert await read_log(client) == await read_log(other) == [b"from elsewhere"]
                statistics = [client.statistics()[each._server.bookie_id] for each in client.bookies]
                assert [each["unix_connections"] for each in statistics] == [1, 1, 1]
        assert os.listdir(short) == []


async def test_a_client_takes_the_next_address_when_one_is_absent(tmp_path: Path) -> None:
    elsewhere = Registry(disabled=["memory-transport"])  # as on another machine, which has other files
    with tempfile.TemporaryDirectory(prefix="replog-") as short:
        options = BookieOptions(listen=(f"unix:{short}/bookie.sock", "tcp:127.0.0.1:0"))
        async with replog.embed(tmp_path, bookie_options=options) as client:
            os.unlink(f"{short}/bookie.sock")
            async with replog.connect(f"lmdb:{tmp_path / 'metadata'}", quorum=ONE, registry=elsewhere) as other:
                async with other.write_log("log") as log:
                    await log.append(b"by TCP")
            statistics = client.statistics()[client.bookies[0]._server.bookie_id]
            assert (statistics["unix_accepted_connections"], statistics["tcp_accepted_connections"]) == (0, 1)


async def test_bookies_of_another_process_cannot_be_reached_in_memory(tmp_path: Path) -> None:
    process = await trio.to_thread.run_sync(hold, tmp_path)
    try:
        async with replog.connect(f"lmdb:{tmp_path / 'metadata'}", quorum=ONE) as client:
            assert await client.logs() == ["log"]
            with pytest.raises(NotEnoughBookiesError, match="not reachable"):
                async with client.create_ledger():
                    pass
    finally:
        await trio.to_thread.run_sync(end, process)


async def test_a_killed_leader_of_another_process_is_succeeded(tmp_path: Path) -> None:
    """M3: the election is the metastore's, and sees the death of a process."""
    async with replog.embed(tmp_path, options=ClientOptions()) as client:
        metastore = client._opened.ledgers.records.metastore
        leader = await trio.to_thread.run_sync(start, LEADER, tmp_path / "metadata", "leading\n")
        try:
            with trio.move_on_after(0.3) as scope:
                async with client.lead_log("log"):
                    pytest.fail("two lead")
            assert scope.cancelled_caught
            assert await metastore.children("elections")
            leader.kill()
            await trio.to_thread.run_sync(leader.wait)
            with trio.fail_after(15):
                async with client.lead_log("log") as log:
                    await log.append(b"0")
        finally:
            await trio.to_thread.run_sync(end, leader)


LEADER = """
import sys, trio
from replog.log.election import elected
from types import SimpleNamespace
from replog.runtime.entropy import current_entropy
from replog.registry import Registry
async def main():
    metastore = Registry().open_metastore("lmdb:" + sys.argv[1])
    ledgers = SimpleNamespace(records=SimpleNamespace(metastore=metastore), entropy=current_entropy())
    async with elected("log", ledgers):
        print("leading", flush=True)
        await trio.sleep(60)
trio.run(main)
"""


async def test_two_clients_of_one_metastore_object_share_a_ledger(tmp_path: Path) -> None:
    async with replog.embed(tmp_path) as client:
        metastore = client._opened.ledgers.records.metastore
        async with replog.connect(metastore, quorum=ONE) as other:
            async with client.create_ledger() as writer:
                await writer.append(b"0")
            assert await read_ledger(other, writer.ledger_id) == [b"0"]
        assert await client.ledgers() == [writer.ledger_id]  # it stays open


async def test_records_of_ledgers_and_logs_can_be_looked_at(tmp_path: Path) -> None:
    async with replog.embed(tmp_path) as client:
        async with client.lead_log(
            "log", password=b"secret", options=replog.LogOptions(custom={"made": "here"})
        ) as log:
            await log.append(b"one")
            await log.roll()
            record = await client.log_metadata("log")
            assert [segment.number for segment in record.segments] == [1, 2]
            assert record.segments[-1].ledger_id == log.ledger_id
            assert await client.log_segments("log") == list(record.segments)
            assert await client.log_segments("log", first=2, end=9) == list(record.segments[1:])
            ledger = await client.ledger_metadata(log.ledger_id)
            assert (ledger.state.value, ledger.custom["made"], ledger.last_entry_id) == ("open", "here", None)
        assert (await client.ledger_metadata(log.ledger_id)).last_entry_id == -1
        with pytest.raises(replog.errors.LogNotFoundError):
            await client.log_metadata("another")
        with pytest.raises(replog.errors.LogNotFoundError):
            await client.log_segments("another")
        with pytest.raises(replog.errors.LedgerNotFoundError):
            await client.ledger_metadata(4711)
