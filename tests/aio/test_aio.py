"""The asyncio face: each test of `replog.blocking` has its twin here, and cancellation has its own."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import os
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

import replog
from replog import aio, api
from replog.aio import administration, readers, writers
from replog.aio.host import Call, Host
from replog.client.ledger_reader import LedgerReader
from replog.client.ledger_writer import LedgerWriter
from replog.config.client import ClientTuning
from replog.errors import ClosedError, EndOfLogError, WouldBlockError, WrongEventLoopError
from replog.log.log_reader import LogReader
from replog.log.log_writer import LogWriter
from replog.runtime.faces import gives_context
from tests.aio.kit import under_asyncio
from tests.kit import deafen_leaders


async def all_of(items: AsyncIterator[Any]) -> list[Any]:
    return [each async for each in items]


# -- the verbs ------------------------------------------------------------------------------------------------------


@under_asyncio
async def test_a_log_is_written_read_rolled_trimmed_and_deleted(tmp_path: Path) -> None:
    async with aio.embed(tmp_path) as client:
        async with client.write_log("log") as log:
            first = await log.append(b"one")
            assert list(await log.extend([b"two", b"three"]))[-1] == log.last_add_confirmed
            assert await log.push(b"four") == log.last_add_pushed
            pushed = log.push_nowait(b"five")
            await log.flush()
            assert log.last_add_confirmed == pushed
            assert log.unconfirmed_bytes == 0
            start = await log.roll()
            assert (log.name, log.segment) == ("log", start.segment)
            assert log.statistics()["rolls"] == 1
            await log.append(b"six")
            async with client.read_log("log", after=str(first)) as reader:
                records = await all_of(reader)
            assert [record.data for record in records] == [b"two", b"three", b"four", b"five", b"six"]
            assert records[-1].position == start
            async with client.read_log("log", since=timedelta(hours=1)) as reader:
                assert (await reader.receive()).data == b"one"
            async with client.read_log("log") as reader:
                batch = await anext(aiter(reader.batches()))
                assert batch.payloads()[0] == b"one"
            assert await client.trim_log("log", before=start) == start
            with pytest.raises(replog.errors.TrimmedError):
                async with client.read_log("log", after=first):
                    pass
            assert await client.ledgers() == [log.ledger_id]
        assert await client.logs() == ["log"]
        record = await client.log_metadata("log")
        assert (record.name, record.segments[-1].ledger_id) == ("log", log.ledger_id)
        assert await client.log_segments("log", first=1, end=None) == list(record.segments)
        await client.delete_log("log")
        assert await client.logs() == []
        with pytest.raises(replog.errors.LogNotFoundError):
            await client.log_metadata("log")


@under_asyncio
async def test_keys_and_headers_are_written_and_read(tmp_path: Path) -> None:
    async with aio.embed(tmp_path) as client:
        async with client.write_log("log") as log:
            await log.append(b"one", key=b"k", headers={"a": b"1"})
            log.push_nowait(None, key=b"k")
            await log.push(b"three", headers={"b": b""})
            await log.extend((data for data in [b"four", b"five"]), keys=[b"k", None])
        async with client.read_log("log") as reader:
            found = [(each.data, each.key, dict(each.headers), each.is_tombstone) async for each in reader]
    assert found == [
        (b"one", b"k", {"a": b"1"}, False),
        (b"", b"k", {}, True),
        (b"three", None, {"b": b""}, False),
        (b"four", b"k", {}, False),
        (b"five", None, {}, False),
    ]


@under_asyncio
async def test_entry_with_an_id_is_appended_once(tmp_path: Path) -> None:
    async with aio.embed(tmp_path) as client:
        async with client.write_log("log") as log:
            assert await log.push(b"one", key=b"k", id=("me", 1)) == replog.Position(1, 0)
            assert await log.append(b"one", id=("me", 1)) == replog.Position(1, 0)
            assert set(await asyncio.gather(*(log.append(b"two", id=("me", 2)) for _ in range(5)))) == {
                replog.Position(1, 1)
            }
        async with client.write_log("log") as log:
            assert await log.append(b"two", id=("me", 2)) == replog.Position(1, 1)
            with pytest.raises(replog.ConfigError):
                await log.append(b"", id=("me", -1))


@under_asyncio
async def test_jobs_hand_in_ledgers_and_are_swept(tmp_path: Path) -> None:
    async with aio.embed(tmp_path) as client:

        async def written(job: str) -> int:
            async with client.create_ledger(custom={"log": "log", "job": job}) as writer:
                await writer.append(job.encode())
            return writer.ledger_id

        winner, loser, other = await written("a"), await written("a"), await written("b")
        added = await client.jobs.append_ledgers(
            "log", [winner], transaction=("t", 1), job="a", custom={"values": "text"}
        )
        assert (added.is_new, added.first) == (True, replog.Position(1, 0))
        assert not (await client.jobs.append_ledgers("log", [other], transaction=("t", 1))).is_new
        assert await client.jobs.sweep("log") == [loser]
        assert await client.jobs.sweep("log", job="b", grace_s=1.0) == [other]
        async with client.read_log("log") as reader:
            assert [record.data for record in await all_of(reader)] == [b"a"]


@under_asyncio
async def test_a_ledger_is_written_read_recovered_and_deleted(tmp_path: Path) -> None:
    async with aio.embed(tmp_path) as client:
        async with client.create_ledger(password=b"secret", custom={"made": "here"}) as writer:
            assert await writer.append(b"zero") == 0
            assert list(await writer.extend([b"one", b"two"])) == [1, 2]
            assert (writer.last_add_pushed, writer.last_add_confirmed) == (2, 2)
            assert writer.metadata.custom == {"made": "here"}
            async with client.open_ledger(writer.ledger_id, password=b"secret") as reader:
                assert not reader.is_closed
                assert await reader.read(1, 2) == [b"one", b"two"]
                assert [entry.data async for entry in reader] == [b"zero", b"one", b"two"]
                await writer.append(b"three")
                assert await reader.refresh() == 3
                assert [batch.payloads() async for batch in reader.batches()] == [[b"three"]]
        async with client.open_ledger(writer.ledger_id, password=b"secret") as reader:
            assert reader.is_closed
            assert reader.metadata.last_entry_id == 3
        with pytest.raises(replog.errors.UnauthorizedError):
            async with client.open_ledger(writer.ledger_id):
                pass
        recovered = await client.recover_ledger(writer.ledger_id, password=b"secret")
        assert recovered.last_entry_id == 3
        await client.delete_ledger(writer.ledger_id)
        assert await client.ledgers() == []
        with pytest.raises(replog.errors.LedgerNotFoundError):
            await client.ledger_metadata(writer.ledger_id)
        assert "client" in client.statistics()


@under_asyncio
async def test_a_stretch_of_a_ledger_is_read_in_batches(tmp_path: Path) -> None:
    numbers = [b"%d" % number for number in range(200)]
    async with aio.embed(tmp_path) as client:
        async with client.create_ledger() as writer:
            for first in range(0, 200, 10):
                await writer.extend(numbers[first : first + 10])
        async with client.open_ledger(writer.ledger_id) as reader:
            for first, last in ((0, 0), (3, 5), (8, 185), (0, 199), (199, 199)):
                batches = await all_of(reader.batches_between(first, last))
                assert [payload for batch in batches for payload in batch.payloads()] == numbers[first : last + 1]
            one, other = reader.batches_between(20, 39), aiter(reader)
            assert (await anext(one)).first_entry_id == 20
            assert (await anext(other)).entry_id == 0  # apart from each other
            assert (await anext(one)).last_entry_id == 39
            with pytest.raises(replog.errors.EntryNotFoundError, match=r"ends at entry 199 \(R7\)"):
                await all_of(reader.batches_between(195, 200))
            with pytest.raises(replog.ConfigError, match="3 to 2 are not entries"):
                reader.batches_between(3, 2)
        with pytest.raises(ClosedError):
            reader.batches_between(0, 1)


@under_asyncio
async def test_entries_are_there_when_the_directory_is_reopened(tmp_path: Path) -> None:
    for number in range(3):
        async with aio.embed(tmp_path) as client, client.lead_log("log") as log:
            await log.append(b"%d" % number)
            async with client.read_log("log") as reader:
                assert [record.data async for record in reader] == [b"%d" % each for each in range(number + 1)]


@under_asyncio
async def test_connect_reaches_the_metastore(tmp_path: Path) -> None:
    async with aio.embed(tmp_path) as client, client.write_log("log"):
        pass
    async with aio.connect(f"lmdb:{tmp_path / 'metadata'}") as connected:
        assert await connected.logs() == ["log"]
        with pytest.raises(replog.errors.NotEnoughBookiesError):
            async with connected.create_ledger():
                pass


@under_asyncio
async def test_bookies_are_looked_at_and_looked_after(tmp_path: Path) -> None:
    async with aio.embed(tmp_path) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"one")
        (bookie,) = await client.admin.bookies()
        assert bookie.bookie_id in repr(bookie)
        assert bookie.endpoints[0].scheme == "memory"
        assert (await bookie.statistics()).numbers["added_entries"] == 1
        await client.delete_ledger(writer.ledger_id)
        await bookie.collect_garbage()
        assert (await bookie.statistics()).numbers["ledgers_collected"] == 1
        await bookie.compact(is_major=True)
        assert await bookie.scrub() == []
        (own,) = client.bookies
        assert not await own.scrub()


@under_asyncio
async def test_a_bookie_is_served_until_it_is_left(tmp_path: Path) -> None:
    config = api.BookieConfig(directory=str(tmp_path / "bookie"), metastore=f"lmdb:{tmp_path / 'metadata'}")
    quorum = replog.Quorum(1, 1, 1)
    assert config.metastore is not None
    async with aio.serve_bookie(config), aio.connect(config.metastore, quorum=quorum) as client:
        async with client.write_log("log") as log:
            assert await log.append(b"here") == replog.Position(1, 0)


# -- one source -----------------------------------------------------------------------------------------------------

FACES = [
    (api.Client, aio.Client),
    (api.Admin, administration.Admin),
    (api.Jobs, administration.Jobs),
    (LedgerWriter, writers.LedgerWriter),
    (LogWriter, writers.LogWriter),
    (LedgerReader, readers.LedgerReader),
    (LogReader, readers.LogReader),
]


@under_asyncio
async def test_repairs_are_served_until_cancelled(tmp_path: Path) -> None:
    reports: list[replog.results.AuditReport] = []
    reported = asyncio.Event()

    def report(found: replog.results.AuditReport) -> None:
        reports.append(found)
        reported.set()

    async with aio.embed(tmp_path) as client:
        async with client.write_log("log") as log:
            await log.append(b"one")
        repairing = asyncio.ensure_future(aio.serve_repairs(client, interval_s=0.01, reported=report))
        await reported.wait()
        repairing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await repairing
    assert isinstance(reports[0], replog.results.AuditReport)


@pytest.mark.parametrize(("source", "face"), FACES, ids=lambda each: each.__name__)
def test_each_verb_keeps_its_signature_and_docstring(source: type, face: type) -> None:
    verbs = [name for name in dir(source) if not name.startswith("_")]
    assert len(verbs) > 5
    for name in verbs:
        theirs = inspect.getattr_static(source, name)
        if not (inspect.isfunction(theirs) or isinstance(theirs, property)):
            continue
        if name == "aclose":
            continue  # every face leaves its context by it
        own = inspect.getattr_static(face, name)
        assert own.__doc__ == theirs.__doc__, name
        if inspect.isfunction(theirs):
            assert inspect.signature(own) == inspect.signature(theirs), name


def test_each_verb_of_the_package_has_its_face() -> None:
    named = {name: getattr(replog, name) for name in replog.__all__}
    verbs = {name for name, each in named.items() if gives_context(each) or inspect.iscoroutinefunction(each)}
    assert verbs == {"connect", "embed", "serve_bookie", "serve_repairs"}
    for name in verbs:
        own, theirs = getattr(aio, name), getattr(replog, name)
        assert (inspect.signature(own), own.__doc__) == (inspect.signature(theirs), theirs.__doc__)
        assert own is not theirs


# -- errors and leaving ---------------------------------------------------------------------------------------------


@under_asyncio
async def test_trio_verbs_under_asyncio_name_this_face(tmp_path: Path) -> None:
    for opened in (replog.embed(tmp_path), replog.connect("memory:"), aio_of_config(tmp_path)):
        with pytest.raises(WrongEventLoopError, match=r"replog\.aio"):
            async with opened:
                pass
    assert os.listdir(tmp_path) == []


def aio_of_config(directory: Path) -> contextlib.AbstractAsyncContextManager[object]:
    return replog.serve_bookie(replog.BookieConfig(directory=str(directory), metastore="memory:"))


async def test_this_face_under_trio_names_the_other_one(tmp_path: Path) -> None:
    with pytest.raises(WrongEventLoopError, match=r"replog\.embed"):
        async with aio.embed(tmp_path):
            pass


@under_asyncio
async def test_run_ends_with_the_reason_when_opening_fails(tmp_path: Path) -> None:
    async with aio.embed(tmp_path):
        with pytest.raises(replog.errors.StorageInUseError):
            async with aio.embed(tmp_path):
                pass
    with pytest.raises(replog.ConfigError):
        async with aio.connect("nonsense:"):
            pass
    assert not trio.lowlevel.in_trio_run()


@under_asyncio
async def test_leaving_confirms_pushed_entries_and_ends_everything(tmp_path: Path) -> None:
    async with aio.embed(tmp_path) as client:
        async with client.write_log("log") as log, client.read_log("log") as reader:
            log.push_nowait(b"pushed")
        with pytest.raises(ClosedError):
            await log.append(b"late")
        with pytest.raises(ClosedError):
            await reader.receive()
        async with client.read_log("log") as again:
            assert (await again.receive()).data == b"pushed"
            with pytest.raises(EndOfLogError):
                await again.receive()
    with pytest.raises(ClosedError):
        await client.logs()
    with pytest.raises(ClosedError):
        client.statistics()
    with pytest.raises(ClosedError):
        await log.append(b"")
    with pytest.raises(ClosedError):
        async with client.write_log("log"):
            pass
    assert not trio.lowlevel.in_trio_run()


@pytest.mark.parametrize("error", [ZeroDivisionError(), GeneratorExit(), StopAsyncIteration()])
def test_leaving_on_an_error_raises_the_same_error(tmp_path: Path, error: BaseException) -> None:
    async def fail() -> None:
        async with aio.embed(tmp_path) as client, client.write_log("log") as log:
            await log.append(b"confirmed")
            raise error

    async def read() -> None:
        async with aio.embed(tmp_path) as client, client.read_log("log") as reader:
            assert [record.data async for record in reader] == [b"confirmed"]

    async def catch() -> None:
        failing = fail()  # not as a task: asyncio's are ended by some of these
        with pytest.raises(type(error)) as caught:
            await failing
        assert caught.value is error

    under_asyncio(catch)()
    under_asyncio(read)()


@under_asyncio
async def test_a_deposed_writer_gets_the_uncertain_positions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deafen_leaders(monkeypatch)
    async with aio.embed(tmp_path) as client, client.write_log("log") as old, client.write_log("log") as new:
        assert await new.append(b"new") > (old.segment, 0)
        told = await asyncio.gather(old.append(b"one"), old.append(b"two"), return_exceptions=True)
        for each in told:
            assert isinstance(each, replog.FencedError)
            assert list(each.positions) == [replog.Position(old.segment, 0), replog.Position(old.segment, 1)]
        assert told[0] is not told[1]


@under_asyncio
async def test_wrong_argument_raises_and_changes_nothing(tmp_path: Path) -> None:
    async with aio.embed(tmp_path) as client, client.write_log("log") as log:
        with pytest.raises(TypeError):
            await log.append("text")  # type: ignore[arg-type]
        with pytest.raises(replog.errors.PayloadTooLargeError):
            await log.extend([b"good", bytes(17 << 20)])
        assert await log.append(b"first") == (log.segment, 0)


@under_asyncio
async def test_budget_is_reported_to_callers_with_nowait(tmp_path: Path) -> None:
    options = ClientTuning(in_flight_bytes_max=1 << 20, batch_bytes_max=1 << 20)
    async with aio.embed(tmp_path, options=options) as client, client.write_log("log") as log:
        with pytest.raises(WouldBlockError):
            for _ in range(10_000):
                log.push_nowait(bytes(1 << 19))
        await log.push(bytes(1 << 19))
        await asyncio.gather(*(log.append(bytes(1 << 19)) for _ in range(20)))
        assert log.last_add_confirmed == log.last_add_pushed


# -- tasks ----------------------------------------------------------------------------------------------------------


@under_asyncio
async def test_many_tasks_append_at_once_and_share_batches(tmp_path: Path) -> None:
    tasks, entries = 50, 40

    async def append(number: int) -> list[replog.Position]:
        return [await log.append(b"%d/%d" % (number, entry)) for entry in range(entries)]

    async with aio.embed(tmp_path) as client:
        async with client.write_log("log") as log:
            positions = await asyncio.gather(*map(append, range(tasks)))
            assert log.statistics()["batches_sent"] < tasks * entries / 4
        async with client.read_log("log") as reader:
            stored = {record.position: record.data async for record in reader}
    assert len(stored) == tasks * entries
    for number, of_task in enumerate(positions):
        assert of_task == sorted(of_task)
        assert [stored[position] for position in of_task] == [b"%d/%d" % (number, each) for each in range(entries)]


@under_asyncio
async def test_appends_of_one_turn_keep_their_order(tmp_path: Path) -> None:
    async with aio.embed(tmp_path) as client, client.write_log("log") as log:
        places = await asyncio.gather(*(log.append(b"%d" % number) for number in range(100)))
        assert places == sorted(places)


@under_asyncio
async def test_a_cancelled_append_leaves_the_writer_usable(tmp_path: Path) -> None:
    async with aio.embed(tmp_path) as client:
        async with client.write_log("log") as log:
            appending = asyncio.ensure_future(log.append(b"unknown"))
            await asyncio.sleep(0)
            appending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await appending
            assert await log.append(b"next") == log.last_add_confirmed
        async with client.read_log("log") as reader:
            assert [record.data async for record in reader][-1] == b"next"


@under_asyncio
async def test_waiting_to_lead_can_be_cancelled_and_the_client_goes_on(tmp_path: Path) -> None:
    async with aio.embed(tmp_path) as client, client.lead_log("log") as log:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), client.lead_log("log"):
                raise AssertionError("two lead")
        await log.append(b"goes on")


@under_asyncio
async def test_a_follower_can_be_cancelled_and_reads_on(tmp_path: Path) -> None:
    async with aio.embed(tmp_path) as client, client.write_log("log") as log:
        async with client.read_log("log", follow=True) as reader:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await reader.receive()
            await log.append(b"one")
            assert (await reader.receive()).data == b"one"


@under_asyncio
async def test_cursor_commit_covers_only_returned_entries(tmp_path: Path) -> None:
    """After an iteration that was cancelled, and one that was left in the middle of the last batch."""
    async with aio.embed(tmp_path) as client, client.write_log("log") as log:
        await log.extend([b"one", b"two", b"three"])
        async with client.cursor("log", "billing") as cursor:
            assert (await cursor.receive()).data == b"one"
            while await cursor.receive_batch() is not None:
                raise AssertionError("all three are in one batch")
            await cursor.commit()
            assert str(cursor.begins_at) == "1:1"
            assert (await cursor.lag()).entries == (await client.log_summary("log")).lags["billing"].entries
        async with client.cursor("log", "billing", follow=True) as cursor:
            await cursor.receive()
            await cursor.receive()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await cursor.receive()
            waiting = asyncio.create_task(cursor.receive())
            await asyncio.sleep(0)
            await log.append(b"four")
            waiting.cancel()
            returned = await asyncio.gather(waiting, return_exceptions=True)
            await cursor.commit()
            assert str(cursor.begins_at) == ("1:4" if isinstance(returned[0], replog.Record) else "1:3")


@under_asyncio
async def test_a_cancelled_call_has_ended_before_its_caller_goes_on() -> None:
    """However often it is cancelled, by a timeout and by its task, and whatever it raises then."""
    host = await Host.join()
    ended = False

    async def stubborn() -> None:
        nonlocal ended
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.05)
            ended = True
            raise ClosedError("nobody asks for it")

    calling = asyncio.ensure_future(host.call(stubborn))
    for _ in range(3):
        await asyncio.sleep(0.02)
        calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert ended
    await host.part()
    del calling
    gc.collect()  # asyncio complains of an error that nobody looked at


@under_asyncio
async def test_task_cancelled_in_a_block_leaves_the_block(tmp_path: Path) -> None:
    async def write() -> None:
        async with aio.embed(tmp_path) as client, client.write_log("log") as log:
            await log.append(b"confirmed")
            is_in_block.set_result(None)
            await asyncio.get_running_loop().create_future()

    is_in_block: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    writing = asyncio.ensure_future(write())
    await is_in_block
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    async with aio.embed(tmp_path) as client, client.read_log("log") as reader:
        assert [record.data async for record in reader] == [b"confirmed"]


@under_asyncio
async def test_leaving_the_client_ends_the_calls_of_other_tasks(tmp_path: Path) -> None:
    async def follow(client: aio.Client) -> None:
        async with client.read_log("log", follow=True) as reader:
            assert (await reader.receive()).data == b"one"
            is_waiting.set_result(None)
            await reader.receive()

    is_waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    async with aio.embed(tmp_path) as client, client.write_log("log") as log:
        await log.append(b"one")
        following = asyncio.ensure_future(follow(client))
        await is_waiting
    with pytest.raises(ClosedError):
        await following


@under_asyncio
async def test_failed_run_wakes_all_waiters_and_leavers(tmp_path: Path) -> None:
    host = await Host.join()

    async def fail() -> None:
        raise KeyboardInterrupt

    waiting = asyncio.ensure_future(host.call(trio.sleep_forever))
    await asyncio.sleep(0)
    with pytest.raises(ClosedError):
        await host.call(fail)
    with pytest.raises(ClosedError):
        await waiting
    with pytest.raises(BaseExceptionGroup) as caught:
        await host.part()
    assert caught.group_contains(KeyboardInterrupt)
    async with aio.embed(tmp_path) as client:  # the next run is another one
        assert await client.logs() == []


def test_each_event_loop_has_its_own_run(tmp_path: Path) -> None:
    @under_asyncio
    async def write(name: str) -> None:
        async with aio.embed(tmp_path / name) as client, client.write_log("log") as log:
            for _ in range(20):
                await log.append(b"one")

    threads = [threading.Thread(target=write, args=(f"wal-{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    @under_asyncio
    async def read() -> None:
        for number in range(4):
            async with aio.embed(tmp_path / f"wal-{number}") as client, client.read_log("log") as reader:
                assert len(await all_of(reader)) == 20

    read()


@under_asyncio
async def test_another_event_loop_is_refused(tmp_path: Path) -> None:
    async with aio.embed(tmp_path) as client:
        opening = client.write_log("log")

        def elsewhere() -> None:
            with pytest.raises(WrongEventLoopError):
                asyncio.run(client.logs())
            with pytest.raises(WrongEventLoopError):
                asyncio.run(opening.__aenter__())

        await asyncio.to_thread(elsewhere)


# -- reading --------------------------------------------------------------------------------------------------------


@under_asyncio
async def test_breaking_off_an_iteration_loses_no_record(tmp_path: Path) -> None:
    async with aio.embed(tmp_path) as client:
        async with client.write_log("log") as log:
            await log.extend([b"%d" % number for number in range(10)])
        async with client.read_log("log") as reader:
            async for record in reader:
                assert reader.position == record.position
                if record.data == b"3":
                    break
            assert (await reader.receive()).data == b"4"
            assert [record.data async for record in reader] == [b"5", b"6", b"7", b"8", b"9"]


@pytest.mark.parametrize("verb", ["commit", "commit_nowait"])
@under_asyncio
async def test_next_worker_gets_entries_fetched_but_not_returned(verb: str, tmp_path: Path) -> None:
    async with aio.embed(tmp_path) as client:
        async with client.write_log("log") as log:
            for number in range(4):
                await log.append(b"%d" % number)
        opened: Any
        async with client.cursor("log", "billing") as opened:
            assert (await opened.receive()).data == b"0"
            await opened._way.call(opened._fetch)  # as of a task that was cancelled just when it came
            committing = getattr(opened, verb)()
            if committing is not None:
                await committing
        async with client.cursor("log", "billing") as cursor:
            assert [record.data async for record in cursor] == [b"1", b"2", b"3"]


@under_asyncio
async def test_position_follows_the_last_returned_entry(tmp_path: Path) -> None:
    """Whichever verb gave it out: who resumes there gets nothing twice."""
    async with aio.embed(tmp_path) as client:
        async with client.write_log("log") as log:
            for number in range(4):
                await log.extend([b"%d.%d" % (number, each) for each in range(3)])
        async with client.read_log("log") as reader, client.cursor("log", "billing") as cursor:
            each: Any
            for each in (reader, cursor):
                assert (await each.receive()).data == b"0.0"
                assert each.position == replog.Position(1, 0)
                batch = await each.receive_batch()
                assert each.position == batch.last_position
                assert (await each.receive()).position == replog.Position(1, batch.last_position.entry + 1)
                assert each.position == replog.Position(1, batch.last_position.entry + 1)
                batch = each.receive_batch_nowait()
                assert each.position == batch.last_position
            last = cursor.position
            assert last is not None
            await cursor.commit()
            assert cursor.begins_at == replog.Position(1, last.entry + 1)


@under_asyncio
async def test_reading_waits_seldom_for_many_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [b"%0100d" % number for number in range(100_000)]
    begun: list[Call] = []
    begin = Host.begin

    def counted(host: Host, call: Call, function: Any) -> None:
        begun.append(call)
        begin(host, call, function)

    async with aio.embed(tmp_path) as client:
        async with client.write_log("log") as log:
            await log.extend(entries)
        async with client.read_log("log") as reader:
            monkeypatch.setattr(Host, "begin", counted)
            assert [record.data async for record in reader] == entries
    assert len(begun) < 100


@pytest.mark.parametrize("name", ["log", "ledger"])
def test_a_batch_is_kept_when_its_receiver_is_cancelled(tmp_path: Path, name: str) -> None:
    @under_asyncio
    async def read() -> None:
        async with aio.embed(tmp_path) as client:
            async with client.write_log("log") as log:
                for number in range(3):
                    await log.append(b"%d" % number)
            metadata = await client.log_metadata("log")
            opening: Any = client.read_log("log")
            if name == "ledger":
                opening = client.open_ledger(metadata.segments[-1].ledger_id)
            async with opening as reader:
                inner = vars(reader)["_inner"]
                receive = inner.receive_batch

                async def receive_and_cancel() -> Any:
                    batch = await receive()
                    receiving.cancel()
                    return batch

                def is_not_here() -> None:
                    raise trio.WouldBlock

                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(inner, "receive_batch", receive_and_cancel)
                    patch.setattr(inner, "receive_batch_nowait", is_not_here)
                    receiving = asyncio.ensure_future(reader.receive_batch())
                    with pytest.raises(asyncio.CancelledError):
                        await receiving
                found = [reader.receive_batch_nowait(), *await all_of(reader.batches())]
                assert [data for batch in found for data in batch.payloads()] == [b"0", b"1", b"2"]

    read()


@under_asyncio
async def test_cancelled_receiver_takes_no_ready_batch(tmp_path: Path) -> None:
    async with aio.embed(tmp_path) as client:
        async with client.write_log("log") as log:
            for number in range(20):
                await log.append(b"%d" % number)
        async with client.read_log("log") as reader:
            found = [await reader.receive_batch()]  # others have come with it
            while found[-1] is not None and len(found) < 5:
                receiving = asyncio.ensure_future(reader.receive_batch())
                await asyncio.sleep(0)
                receiving.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await receiving
                found.append(await reader.receive_batch())
            found += await all_of(reader.batches())
        data = [each for batch in found if batch is not None for each in batch.payloads()]
        assert data == [b"%d" % number for number in range(20)]


@under_asyncio
async def test_iterator_continues_after_a_cancelled_wait(tmp_path: Path) -> None:
    async with aio.embed(tmp_path) as client:
        async with client.create_ledger() as writer:
            await writer.extend([b"0", b"1"])
        async with client.open_ledger(writer.ledger_id) as reader:
            entries = aiter(reader)
            reading = asyncio.ensure_future(anext(entries))
            await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert [entry.data async for entry in entries] == [b"0", b"1"]
