"""The metastore in a directory: its conformance suite, its files, its limits, its forks."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import lmdb
import pytest
import trio
import trio.testing

from replog.abc import Metastore
from replog.errors import (
    ConfigError,
    KeyExistsError,
    KeyNotFoundError,
    MetastoreCorruptError,
    MetastoreError,
    MetastoreUncertainError,
)
from replog.metastores import lmdb as module
from replog.metastores.lmdb import LMDBMetastore, LMDBTuning
from replog.metastores.lmdb_jobs import Job
from replog.registry import Registry
from replog.testing import check_metastore, check_metastore_outage


@asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[LMDBMetastore]:
    metastore = LMDBMetastore(path, LMDBTuning(**options))
    try:
        yield metastore
    finally:
        await metastore.aclose()


def writer_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("replog metastore")]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Any:
    yield
    assert writer_threads() == []
    assert module._environments == {}


async def test_it_passes_the_conformance_suite(tmp_path: Path) -> None:
    def client() -> AbstractAsyncContextManager[Metastore]:
        return opened(tmp_path / "store")

    await check_metastore(client)
    with lmdb.open(str(tmp_path / "store")) as environment, environment.begin() as transaction:
        left = [bytes(key) for key, _ in transaction.cursor()]
    assert left == [b"\0format", b"\0version"], "the conformance suite, or the metastore, left something behind"


async def test_it_passes_the_conformance_suite_of_outages(tmp_path: Path) -> None:
    (tmp_path / "file").touch()  # where the directory should be
    await check_metastore_outage(lambda: opened(tmp_path / "file" / "store"))
    await check_metastore_outage(lambda: opened(tmp_path / "absent", create=False))


async def test_the_registry_opens_it_by_url(tmp_path: Path) -> None:
    url = f"lmdb:{tmp_path}/new?map_bytes_max=2MiB&lease_s=2.5&create=yes"
    metastore = Registry(load_installed=False).open_metastore(url)
    assert not (tmp_path / "new").exists(), "it is opened at the first call"
    assert isinstance(metastore, LMDBMetastore)
    assert metastore._options == LMDBTuning(map_bytes_max=2 << 20, lease_s=2.5)
    await metastore.create("a", b"")
    await metastore.aclose()
    with pytest.raises(ConfigError, match="3 faults"):
        Registry(load_installed=False).open_metastore("lmdb:x?map_bytes_max=0&lease_s=never&mapp=1")


async def test_answered_changes_survive_reopening(tmp_path: Path) -> None:
    async with opened(tmp_path) as metastore:
        await metastore.create("a", b"1")
        version = await metastore.create("b", b"2")
        await metastore.delete("a")
    async with opened(tmp_path) as metastore:
        found = await metastore.get("b")
        assert (found.value, found.version) == (b"2", version)
        with pytest.raises(KeyNotFoundError):
            await metastore.get("a")
        assert await metastore.create("a", b"3") > version, "versions don't repeat, not even over a deletion"


async def test_a_change_is_seen_at_once_by_clients_of_this_process(tmp_path: Path) -> None:
    """Woken by an event: polling every minute would not do."""
    async with opened(tmp_path, poll_s=60) as waiting, opened(tmp_path) as changing:
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(waiting.wait_changed, "a/b", None)
                nursery.start_soon(waiting.wait_children_changed, "a", [])
                await trio.sleep(0.05)
                await changing.create("a/b", b"")


async def test_one_of_many_waiters_looks_and_another_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand that looked by themselves took a whole processor."""
    async with opened(tmp_path, poll_s=0.001) as waiting, opened(tmp_path) as changing:
        await changing.create("a", b"")
        version = (await waiting.get("a")).version
        assert waiting._environment is not None
        assert waiting._unwatch is not None
        waiting._unwatch()  # as if others changed it in another process
        reads = 0
        read = waiting._environment.read

        def counted(question: Any) -> Any:
            nonlocal reads
            reads += 1
            return read(question)

        monkeypatch.setattr(waiting._environment, "read", counted)
        returned: list[str] = []

        async def wait(key: str, known: int | None) -> None:
            await waiting.wait_changed(key, known)
            returned.append(key)

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                scopes = [trio.CancelScope() for _ in range(100)]
                for scope in scopes:
                    nursery.start_soon(_within, scope, wait, "a", version)
                    nursery.start_soon(wait, "b", None)
                while reads <= 2 * len(scopes) * 2:  # noqa: ASYNC110 - each looks twice, and one of them once for all
                    await trio.sleep(0.001)
                begun = reads
                await trio.sleep(0.2)
                assert reads - begun <= 1, "nothing is read while nothing was committed"
                for scope in scopes[:50]:
                    scope.cancel()  # the one that looks among them
                await trio.sleep(0.05)
                await changing.create("b", b"")
                while len(returned) < 100:  # noqa: ASYNC110 - what is waited for are the waits themselves
                    await trio.sleep(0.001)
                assert set(returned) == {"b"}
                await changing.put("a", b"", version)
        assert returned[100:] == ["a"] * 50
        assert reads - begun < 200, "all keys are looked at together"


async def _within(
    scope: trio.CancelScope, function: Callable[[str, int | None], Awaitable[None]], *arguments: Any
) -> None:
    with scope:
        await function(*arguments)


async def test_no_change_counted_before_it_is_readable_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB tells of a commit a moment before readers see it: a list that was read in between is of the time before."""
    async with opened(tmp_path, poll_s=0.01) as metastore:
        await metastore.create("a/x", b"")
        environment = metastore._environment
        assert environment is not None
        last_change = environment.last_change
        early, looks = last_change() + 1, 0

        def tell_early() -> int:
            nonlocal looks
            looks += 1
            return max(last_change(), early)

        monkeypatch.setattr(environment, "last_change", tell_early)
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(metastore.wait_children_changed, "a", ["x"])
                while looks < 2:  # noqa: ASYNC110 - until it has looked, has read the list, and has looked again
                    await trio.sleep(0.001)
                await metastore.create("a/y", b"")


async def test_gathered_changes_are_committed_together(tmp_path: Path) -> None:
    async with opened(tmp_path) as metastore:
        await metastore.create("first", b"")
        before = metastore._environment.last_change()  # type: ignore[union-attr]
        released = hang_commits(metastore)
        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(metastore.create, f"many/{number}", b"")
            await trio.testing.wait_all_tasks_blocked()
            released.set()
        transactions = metastore._environment.last_change() - before  # type: ignore[union-attr]
        assert len(await metastore.children("many")) == 200
        assert transactions == 2, "what came first, and what gathered meanwhile"


async def test_one_directory_is_one_environment_under_any_name(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "store")
    async with opened(tmp_path / "store") as one:
        await one.create("a", b"1")
        async with opened(tmp_path / "link") as other:
            assert (await other.get("a")).value == b"1"
            assert one._environment is other._environment
        await one.create("b", b"still open")
    assert writer_threads() == []


def test_trio_runs_in_two_threads_share_a_directory(tmp_path: Path) -> None:
    async def count() -> None:
        async with opened(tmp_path) as metastore:
            for _ in range(30):
                while True:
                    try:
                        found = await metastore.get("counter")
                        await metastore.put("counter", b"%d" % (int(found.value) + 1), found.version)
                        break
                    except KeyNotFoundError:
                        await create(metastore)
                    except MetastoreError:
                        continue

    async def create(metastore: Metastore) -> None:
        with suppress(MetastoreError):  # the other one did
            await metastore.create("counter", b"0")

    threads = [threading.Thread(target=trio.run, args=(count,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    async def look() -> bytes:
        async with opened(tmp_path) as metastore:
            return (await metastore.get("counter")).value

    assert trio.run(look) == b"60"


# -- limits -------------------------------------------------------------------------------------------------------


async def test_the_map_grows(tmp_path: Path) -> None:
    value = os.urandom(500_000)
    async with opened(tmp_path, map_bytes=1 << 20) as metastore:
        async with trio.open_nursery() as nursery:  # many in one transaction, which is tried again as a whole
            for number in range(12):
                nursery.start_soon(metastore.create, f"a/{number}", value)
        assert [(await metastore.get(f"a/{number}")).value == value for number in range(12)] == [True] * 12
    async with opened(tmp_path, map_bytes=1 << 20) as metastore:  # smaller than what is there
        assert len(await metastore.children("a")) == 12
        await metastore.create("b", value)


async def test_full_map_raises_and_changes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path, map_bytes=1 << 20, map_bytes_max=2 << 20) as metastore:
        version = await metastore.create("small", b"1")
        for number in range(3):
            await metastore.create(f"large/{number}", bytes(500_000))
        with pytest.raises(MetastoreError, match="map_bytes_max=2097152; nothing was written"):
            await metastore.create("large/too", bytes(700_000))
        assert await metastore.children("large") == ["0", "1", "2"]
        await metastore.put("small", b"2", version)
        await metastore.delete("large/0")
        await metastore.delete("large/1")
        await metastore.create("large/again", bytes(500_000))


# -- failures -----------------------------------------------------------------------------------------------------


class Tampered:
    """An LMDB environment or transaction of which some methods are replaced."""

    def __init__(self, inner: Any, **replaced: Callable[..., Any]) -> None:
        self._inner = inner
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def tamper_with_commit(metastore: LMDBMetastore, commit: Callable[[Any], None]) -> None:
    environment = metastore._environment
    assert environment is not None
    inner: Any = environment.map.environment

    def begin(write: bool = False, buffers: bool = False) -> Any:
        transaction = inner.begin(write=write, buffers=buffers)
        return Tampered(transaction, commit=lambda: commit(transaction)) if write else transaction

    environment.map.environment = Tampered(inner, begin=begin)  # type: ignore[assignment]


def hang_commits(metastore: LMDBMetastore) -> threading.Event:
    """The next commit hangs until the event is set. Who submits a change goes on once a commit hangs: the first change is in
    it, and those behind it wait, however slow the machine is."""
    hangs, released = threading.Event(), threading.Event()

    def commit(transaction: Any) -> None:
        hangs.set()
        released.wait(30)
        transaction.commit()

    tamper_with_commit(metastore, commit)
    environment = metastore._environment
    assert environment is not None
    submit = environment.submit

    def submit_and_see(job: Job) -> None:
        submit(job)
        assert hangs.wait(30)

    environment.submit = submit_and_see  # type: ignore[method-assign]
    return released


async def test_hanging_commit_is_uncertain(tmp_path: Path) -> None:
    async with opened(tmp_path) as patient, opened(tmp_path, timeout_s=0.1) as metastore:
        await patient.create("a", b"1")
        released = hang_commits(patient)
        with pytest.raises(MetastoreUncertainError, match="read back"):
            await metastore.create("b", b"1")
        with pytest.raises(MetastoreError, match="nothing was written") as raised:
            await metastore.create("c", b"1")  # never left the queue
        assert not isinstance(raised.value, MetastoreUncertainError)
        assert (await metastore.get("a")).value == b"1", "reads go on"
        released.set()
        with trio.fail_after(10):
            await metastore.wait_changed("b", None)
        await patient.create("d", b"1")
        assert not await metastore.children("c")
        with pytest.raises(KeyNotFoundError):
            await metastore.get("c")


async def test_cancelled_waiting_change_never_happens(tmp_path: Path) -> None:
    async with opened(tmp_path) as metastore:
        await metastore.create("a", b"1")
        released = hang_commits(metastore)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(metastore.create, "first", b"")
            await trio.testing.wait_all_tasks_blocked()
            with trio.move_on_after(0.05) as scope:
                await metastore.create("second", b"")
            assert scope.cancelled_caught
            released.set()
        await metastore.create("third", b"")
        with pytest.raises(KeyNotFoundError):
            await metastore.get("second")


@pytest.mark.parametrize("is_late", [False, True], ids=["cancelled", "too late"])
async def test_announcement_is_withdrawn_when_its_caller_is_gone(tmp_path: Path, is_late: bool) -> None:
    """Else nobody could announce the key, or lead the log, until this process ends."""
    async with opened(tmp_path) as patient, opened(tmp_path, timeout_s=0.05 if is_late else 30) as metastore:
        await patient.create("a", b"1")
        released = hang_commits(patient)
        with trio.move_on_after(30 if is_late else 0.05), suppress(MetastoreUncertainError):
            async with metastore.announce("bookies/one", b""):
                pytest.fail("it is announced")
        released.set()
        with trio.fail_after(10):
            while "one" in await patient.children("bookies") or not await can_announce(patient, "bookies/one"):  # noqa: ASYNC110
                await trio.sleep(0.01)


async def can_announce(metastore: Metastore, key: str) -> bool:
    try:
        async with metastore.announce(key, b""):
            return True
    except (KeyExistsError, MetastoreError):
        return False


async def test_the_queue_is_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replog.metastores.lmdb_jobs._QUEUE_BYTES_MAX", 1000)
    async with opened(tmp_path) as metastore:
        await metastore.create("a", bytes(100))
        with pytest.raises(MetastoreError, match="wait for the disk; nothing was written"):
            await metastore.create("b", bytes(2000))
        with pytest.raises(KeyNotFoundError):
            await metastore.get("b")


async def test_after_closing_nothing_works(tmp_path: Path) -> None:
    async with opened(tmp_path) as metastore:
        await metastore.create("a", b"1")
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def waiting() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await metastore.wait_changed("b", None)

            await trio.sleep(0.02)
            await metastore.aclose()
        for call in (metastore.get("a"), metastore.children("a"), metastore.create("b", b"")):
            with pytest.raises(trio.ClosedResourceError):
                await call


# -- directories that are not ours --------------------------------------------------------------------------------


async def test_another_programs_lmdb_is_left_alone(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path)) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"theirs", b"1")
    before = (tmp_path / "data.mdb").read_bytes()
    async with opened(tmp_path) as metastore:
        for _ in range(2):  # and again: what failed to open is not half open
            with pytest.raises(MetastoreCorruptError, match=r"another program's.*Nothing was changed"):
                await metastore.create("a", b"")
    assert (tmp_path / "data.mdb").read_bytes() == before


async def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as metastore:
        await metastore.create("a", b"")
    with lmdb.open(str(tmp_path)) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"\0format", b"replog metastore 2")
    async with opened(tmp_path) as metastore:
        with pytest.raises(MetastoreCorruptError, match=r"replog metastore 2.*replog metastore 1"):
            await metastore.get("a")


async def test_foreign_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"something else" * 1000)
    async with opened(tmp_path) as metastore:
        with pytest.raises(MetastoreCorruptError, match="no LMDB file"):
            await metastore.get("a")


async def test_impossible_directory_is_a_named_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with opened(tmp_path / "file" / "below") as metastore:
        with pytest.raises(MetastoreError, match="cannot be opened"):
            await metastore.get("a")
    async with opened(tmp_path / "missing", create=False) as metastore:
        with pytest.raises(MetastoreError, match="create=true"):
            await metastore.get("a")
    assert not (tmp_path / "missing").exists()


# -- forks --------------------------------------------------------------------------------------------------------


def in_a_fork(action: Callable[[], None]) -> int:
    """The exit status of a child that does this: 0, or 1 with a traceback on standard error."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            action()
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
            raise
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_opens_its_own_and_not_the_inherited_one(tmp_path: Path) -> None:
    def child_uses(inherited: LMDBMetastore) -> None:
        async def use() -> None:
            with pytest.raises(MetastoreError, match="Open a new one after the fork"):
                await inherited.get("a")
            await inherited.aclose()  # no harm
            async with opened(tmp_path) as anew:
                found = await anew.get("a")
                await anew.put("a", b"child", found.version)
                async with anew.announce("live/child", b""):
                    assert sorted(await anew.announced("live")) == ["child", "parent"]

        trio.run(use)

    ready: queue.SimpleQueue[LMDBMetastore] = queue.SimpleQueue()
    forked = threading.Event()

    async def parent() -> None:
        async with opened(tmp_path) as metastore, metastore.announce("live/parent", b""):
            await metastore.create("a", b"parent")
            ready.put(metastore)
            await trio.to_thread.run_sync(forked.wait)
            assert (await metastore.get("a")).value == b"child"
            assert await metastore.announced("live") == {"parent": b""}
            await metastore.create("b", b"the parent goes on")
        finished.set()

    # The parent's event loop runs in another thread: a child has no business in it.
    finished = threading.Event()
    thread = threading.Thread(target=trio.run, args=(parent,))
    thread.start()
    metastore = ready.get(timeout=30)
    status = in_a_fork(lambda: child_uses(metastore))
    forked.set()
    thread.join()
    assert status == 0
    assert finished.is_set()
