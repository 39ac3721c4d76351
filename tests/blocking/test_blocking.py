"""The blocking facade: plain calls, from many threads, interrupted, and over a fork."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import textwrap
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import replog
import replog.blocking
from replog.blocking.portal import _Answer
from replog.config.client import ClientTuning
from tests.forks import Forked, run
from tests.kit import deafen_leaders

DEADLINE_S = 60


@pytest.fixture
def client(tmp_path: Path) -> Iterator[replog.blocking.Client]:
    with replog.blocking.embed(tmp_path / "wal") as client:
        yield client


def run_script(script: str, directory: Path) -> subprocess.CompletedProcess[str]:
    options = ["-W", "ignore::DeprecationWarning"]  # 3.12 warns of forking
    done: subprocess.CompletedProcess[str] = run(
        [sys.executable, *options, "-c", textwrap.dedent(script)], cwd=directory, timeout=DEADLINE_S
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done


# -- the verbs ------------------------------------------------------------------------------------------------------


def test_a_log_is_written_read_rolled_trimmed_and_deleted(client: replog.blocking.Client) -> None:
    with client.write_log("log") as log:
        first = log.append(b"one")
        assert list(log.extend(data for data in [b"two", b"three"]))[-1] == log.last_add_confirmed
        assert log.push(b"four") == log.last_add_pushed
        pushed = log.push_nowait(b"five")
        log.flush()
        assert log.last_add_confirmed == pushed
        assert log.unconfirmed_bytes == 0
        start = log.roll()
        assert (log.name, log.segment) == ("log", start.segment)
        assert log.statistics()["rolls"] == 1
        log.append(b"six")
        with client.read_log("log", after=str(first)) as reader:
            records = list(reader)
        assert [record.data for record in records] == [b"two", b"three", b"four", b"five", b"six"]
        assert records[-1].position == start
        with client.read_log("log", since=timedelta(hours=1)) as reader:
            assert reader.receive().data == b"one"
        with pytest.raises(replog.ConfigError, match="no time zone"), client.read_log("log", since=datetime.now()):
            pass
        with client.read_log("log") as reader:
            assert next(reader.batches()).payloads()[0] == b"one"
        assert client.trim_log("log", before=start) == start
        with pytest.raises(replog.errors.TrimmedError), client.read_log("log", after=first):
            pass
        assert client.ledgers() == [log.ledger_id]
    assert client.logs() == ["log"]
    record = client.log_metadata("log")
    assert (record.name, record.segments[-1].ledger_id) == ("log", log.ledger_id)
    assert client.log_segments("log", first=1, end=None) == list(record.segments)
    client.delete_log("log")
    assert client.logs() == []
    with pytest.raises(replog.errors.LogNotFoundError):
        client.log_metadata("log")


def test_entry_with_an_id_is_appended_once(client: replog.blocking.Client) -> None:
    with client.write_log("log") as log:
        assert log.push(b"one", key=b"k", id=("me", 1)) == replog.Position(1, 0)
        assert log.append(b"one", id=("me", 1)) == replog.Position(1, 0)
        places: list[replog.Position] = []
        threads = [threading.Thread(target=lambda: places.append(log.append(b"two", id=("me", 2)))) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert places == [replog.Position(1, 1)] * 5
    with client.write_log("log") as log:
        assert log.append(b"two", id=("me", 2)) == replog.Position(1, 1)
        with pytest.raises(replog.ConfigError):
            log.append(b"", id=("me", -1))


def test_keys_and_headers_are_written_and_read(client: replog.blocking.Client) -> None:
    with client.write_log("log") as log:
        log.append(b"one", key=b"k", headers={"a": b"1"})
        log.push_nowait(None, key=b"k")
        log.push(b"three", headers={"b": b""})
        log.extend((data for data in [b"four", b"five"]), keys=[b"k", None])
    with client.read_log("log") as reader:
        found = [(each.data, each.key, dict(each.headers), each.is_tombstone) for each in reader]
    assert found == [
        (b"one", b"k", {"a": b"1"}, False),
        (b"", b"k", {}, True),
        (b"three", None, {"b": b""}, False),
        (b"four", b"k", {}, False),
        (b"five", None, {}, False),
    ]


def test_jobs_hand_in_ledgers_and_are_swept(client: replog.blocking.Client) -> None:
    def written(job: str) -> int:
        with client.create_ledger(custom={"log": "log", "job": job}) as writer:
            writer.append(job.encode())
        return writer.ledger_id

    winner, loser, other = written("a"), written("a"), written("b")
    added = client.jobs.append_ledgers("log", [winner], transaction=("t", 1), job="a", custom={"values": "text"})
    assert (added.is_new, added.first) == (True, replog.Position(1, 0))
    assert not client.jobs.append_ledgers("log", [other], transaction=("t", 1)).is_new
    assert client.jobs.sweep("log") == [loser]
    assert client.jobs.sweep("log", job="b", grace_s=1.0) == [other]
    with pytest.raises(replog.errors.LedgerNotFoundError):
        client.jobs.append_ledgers("log", [other])
    with client.read_log("log") as reader:
        assert [record.data for record in reader] == [b"a"]
    assert client.log_metadata("log").custom == {"values": "text"}


def test_a_ledger_is_written_read_recovered_and_deleted(client: replog.blocking.Client) -> None:
    with client.create_ledger(password=b"secret", custom={"made": "here"}) as writer:
        assert writer.append(b"zero") == 0
        assert list(writer.extend([b"one", b"two"])) == [1, 2]
        assert (writer.last_add_pushed, writer.last_add_confirmed) == (2, 2)
        assert writer.metadata.custom == {"made": "here"}
        with client.open_ledger(writer.ledger_id, password=b"secret") as reader:
            assert not reader.is_closed
            assert reader.read(1, 2) == [b"one", b"two"]
            assert [entry.data for entry in reader] == [b"zero", b"one", b"two"]
            with client.open_ledger(writer.ledger_id, first=2, password=b"secret") as later:
                assert [entry.data for entry in later] == [b"two"]
            writer.append(b"three")
            assert reader.refresh() == 3
            assert [batch.payloads() for batch in reader.batches()] == [[b"three"]]
    with client.open_ledger(writer.ledger_id, password=b"secret") as reader:
        assert reader.is_closed
        assert reader.metadata.last_entry_id == 3
    with pytest.raises(replog.errors.UnauthorizedError), client.open_ledger(writer.ledger_id):
        pass
    assert client.recover_ledger(writer.ledger_id, password=b"secret").last_entry_id == 3
    assert client.ledger_metadata(writer.ledger_id).last_entry_id == 3  # no password is needed
    client.delete_ledger(writer.ledger_id)
    assert client.ledgers() == []
    with pytest.raises(replog.errors.LedgerNotFoundError):
        client.ledger_metadata(writer.ledger_id)
    assert "client" in client.statistics()


def test_a_stretch_of_a_ledger_is_read_in_batches(client: replog.blocking.Client) -> None:
    numbers = [b"%d" % number for number in range(200)]
    with client.create_ledger() as writer:
        for first in range(0, 200, 10):
            writer.extend(numbers[first : first + 10])
    with client.open_ledger(writer.ledger_id) as reader:
        for first, last in ((0, 0), (3, 5), (8, 185), (0, 199), (199, 199)):
            batches = list(reader.batches_between(first, last))
            assert [payload for batch in batches for payload in batch.payloads()] == numbers[first : last + 1]
            assert (batches[0].first_entry_id, batches[-1].last_entry_id) == (first, last)
        one, other = reader.batches_between(20, 39), iter(reader)
        assert next(one).first_entry_id == 20
        assert next(other).entry_id == 0  # apart from each other
        assert next(one).last_entry_id == 39
        with pytest.raises(replog.errors.EntryNotFoundError, match=r"ends at entry 199 \(R7\)"):
            list(reader.batches_between(195, 200))
        with pytest.raises(replog.ConfigError, match="3 to 2 are not entries"):
            reader.batches_between(3, 2)
    with pytest.raises(replog.ClosedError):
        reader.batches_between(0, 1)


def test_entries_are_there_when_the_directory_is_reopened(tmp_path: Path) -> None:
    for number in range(3):
        with replog.blocking.embed(tmp_path) as client, client.lead_log("log") as log:
            log.append(b"%d" % number)
            with client.read_log("log") as reader:
                assert [record.data for record in reader] == [b"%d" % each for each in range(number + 1)]


def test_connect_reaches_the_metastore(tmp_path: Path) -> None:
    with replog.blocking.embed(tmp_path) as client, client.write_log("log"):
        pass
    with replog.blocking.connect(f"lmdb:{tmp_path / 'metadata'}") as connected:
        assert connected.logs() == ["log"]
        with pytest.raises(replog.errors.NotEnoughBookiesError), connected.create_ledger():
            pass


def test_bookies_are_looked_at_and_looked_after(client: replog.blocking.Client) -> None:
    with client.create_ledger() as writer:
        writer.append(b"one")
    (bookie,) = client.admin.bookies()
    assert bookie.bookie_id in repr(bookie)
    assert not bookie.read_only
    assert bookie.endpoints[0].scheme == "memory"
    assert bookie.statistics().numbers["added_entries"] == 1
    client.delete_ledger(writer.ledger_id)
    bookie.collect_garbage()  # or the one that the deletion asked for came first
    assert bookie.statistics().numbers["ledgers_collected"] == 1
    bookie.compact(is_major=True)
    assert bookie.scrub() == []


# -- without a block ------------------------------------------------------------------------------------------------


def test_a_context_is_entered_once(tmp_path: Path) -> None:
    """What a second one gave was mixed up with the first, which nobody could leave any more."""
    context = replog.blocking.embed(tmp_path)
    client = context.open()
    writing = client.write_log("log")
    log = writing.open()
    for again in (context, writing):
        with pytest.raises(replog.ClosedError, match="entered before"):
            again.open()
    log.append(b"x")
    log.close()
    with pytest.raises(replog.ClosedError, match="entered before"), writing:
        pass
    client.close()
    with replog.blocking.embed(tmp_path):
        busy = replog.blocking.embed(tmp_path)
        with pytest.raises(replog.errors.StorageInUseError):
            busy.open()
    # One that could not be entered may be tried again.
    busy.open().close()


def test_opened_object_outlives_its_thread(tmp_path: Path) -> None:
    opened: list[replog.blocking.Client] = []
    thread = threading.Thread(target=lambda: opened.append(replog.blocking.embed(tmp_path).open()))
    thread.start()
    thread.join()
    (client,) = opened
    log = client.write_log("log").open()
    assert log.append(b"one") == replog.Position(1, 0)
    log.close()
    log.close()
    with pytest.raises(replog.ClosedError):
        log.append(b"late")
    with client.read_log("log") as reader:
        assert [record.data for record in reader] == [b"one"]
    client.close()
    with pytest.raises(replog.ClosedError):
        client.logs()
    assert [each for each in threading.enumerate() if each.name == "replog blocking"] == []


def test_unclosed_clients_are_left_alone_when_the_process_ends(tmp_path: Path) -> None:
    script = """
        import replog.blocking
        log = replog.blocking.embed("wal").open().write_log("log").open()
        log.append(b"confirmed")
        log.push(b"pushed")
    """
    run_script(script, tmp_path)
    with replog.blocking.embed(tmp_path / "wal") as client, client.read_log("log") as reader:
        assert [record.data for record in reader] == [b"confirmed", b"pushed"]


# -- errors and leaving ---------------------------------------------------------------------------------------------


def test_an_error_keeps_its_class_and_shows_the_caller(client: replog.blocking.Client) -> None:
    with pytest.raises(replog.errors.LogNotFoundError) as caught:
        client.trim_log("nothing", before="1:0")
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "test_an_error_keeps_its_class_and_shows_the_caller" in frames
    assert "trim_log" in frames
    with pytest.raises(replog.ConfigError):
        client.create_ledger(quorum=replog.Quorum(1, 2, 1)).__enter__()


def test_nothing_is_reported_of_objects_collected_at_shutdown(tmp_path: Path) -> None:
    """As an interpreter may do at its very end."""
    script = """
        import atexit, replog.blocking
        from replog.blocking import contexts, portal
        def empty():
            portal.os = None
            contexts._of_process.clear()
        atexit.register(empty)
        client = replog.blocking.embed("wal").open()
        log = client.write_log("log").open()
        log.append(b"confirmed")
    """
    run_script(script, tmp_path)


def test_failed_opening_gives_the_reason_and_leaves_no_thread(tmp_path: Path) -> None:
    with (
        replog.blocking.embed(tmp_path),
        pytest.raises(replog.errors.StorageInUseError),
        replog.blocking.embed(tmp_path),
    ):
        pass
    with pytest.raises(replog.ConfigError), replog.blocking.connect("nonsense:"):
        pass
    assert [each for each in threading.enumerate() if each.name == "replog blocking"] == []


def test_leaving_confirms_pushed_entries_and_ends_everything(tmp_path: Path) -> None:
    with replog.blocking.embed(tmp_path) as client:
        with client.write_log("log") as log, client.read_log("log") as reader:
            log.push_nowait(b"pushed")
        with pytest.raises(replog.ClosedError):
            log.append(b"late")
        with pytest.raises(replog.ClosedError):
            reader.receive()
        with client.read_log("log") as again:
            assert again.receive().data == b"pushed"
            with pytest.raises(replog.errors.EndOfLogError):
                again.receive()
    for use in (client.logs, client.statistics, lambda: log.append(b""), lambda: log.last_add_pushed):
        with pytest.raises(replog.ClosedError):
            use()
    with pytest.raises(replog.ClosedError), client.write_log("log"):
        pass
    assert [each for each in threading.enumerate() if each.name == "replog blocking"] == []


@pytest.mark.parametrize("error", [ZeroDivisionError(), KeyboardInterrupt(), GeneratorExit(), StopIteration()])
def test_leaving_on_an_error_raises_the_same_error(tmp_path: Path, error: BaseException) -> None:
    with (
        pytest.raises(type(error)) as caught,
        replog.blocking.embed(tmp_path) as client,
        client.write_log("log") as log,
    ):
        log.append(b"confirmed")
        raise error
    assert caught.value is error
    with replog.blocking.embed(tmp_path) as client, client.read_log("log") as reader:
        assert [record.data for record in reader] == [b"confirmed"]


def test_a_deposed_writer_gets_the_uncertain_positions(
    client: replog.blocking.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    deafen_leaders(monkeypatch)
    with client.write_log("log") as old, client.write_log("log") as new:
        assert new.append(b"new") > (old.segment, 0)
        with pytest.raises(replog.FencedError) as caught:
            old.append(b"old")
        assert list(caught.value.positions) == [replog.Position(old.segment, 0)]


def test_wrong_argument_raises_and_changes_nothing(client: replog.blocking.Client) -> None:
    with client.write_log("log") as log:
        with pytest.raises(TypeError):
            log.append("text")  # type: ignore[arg-type]
        with pytest.raises(replog.errors.PayloadTooLargeError):
            log.extend([b"good", bytes(17 << 20)])
        assert log.append(b"first") == (log.segment, 0)


def test_budget_is_reported_to_callers_with_nowait(tmp_path: Path) -> None:
    options = ClientTuning(in_flight_bytes_max=1 << 20, batch_bytes_max=1 << 20)
    with replog.blocking.embed(tmp_path, options=options) as client, client.write_log("log") as log:
        with pytest.raises(replog.errors.WouldBlockError):
            for _ in range(10_000):
                log.push_nowait(bytes(1 << 19))
        log.push(bytes(1 << 19))
        log.flush()
        assert log.last_add_confirmed == log.last_add_pushed


def test_program_ends_without_leaving_its_block(tmp_path: Path) -> None:
    script = """
        import replog.blocking
        contexts = [replog.blocking.embed("wal")]
        client = contexts[0].__enter__()
        contexts.append(client.write_log("log"))
        contexts[1].__enter__().append(b"confirmed")
    """
    run_script(script, tmp_path)
    with replog.blocking.embed(tmp_path / "wal") as client, client.read_log("log") as reader:
        assert [record.data for record in reader] == [b"confirmed"]


# -- threads --------------------------------------------------------------------------------------------------------


def test_many_threads_append_at_once_and_share_batches(client: replog.blocking.Client) -> None:
    threads, entries = 16, 40
    positions: list[list[replog.Position]] = [[] for _ in range(threads)]
    with client.write_log("log") as log:

        def append(number: int) -> None:
            positions[number] = [log.append(b"%d/%d" % (number, entry)) for entry in range(entries)]

        workers = [threading.Thread(target=append, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert log.statistics()["batches_sent"] < threads * entries
    with client.read_log("log") as reader:
        stored = {record.position: record.data for record in reader}
    assert len(stored) == threads * entries
    for number, of_thread in enumerate(positions):
        assert of_thread == sorted(of_thread)
        assert [stored[position] for position in of_thread] == [b"%d/%d" % (number, each) for each in range(entries)]


def test_leaving_the_client_ends_the_calls_of_other_threads(tmp_path: Path) -> None:
    raised: list[BaseException] = []
    waiting = threading.Event()

    def follow(client: replog.blocking.Client) -> None:
        try:
            with client.read_log("log", follow=True) as reader:
                assert reader.receive().data == b"one"
                waiting.set()
                reader.receive()
        except replog.ClosedError as error:
            raised.append(error)

    with replog.blocking.embed(tmp_path) as client, client.write_log("log") as log:
        log.append(b"one")
        thread = threading.Thread(target=follow, args=(client,))
        thread.start()
        assert waiting.wait(DEADLINE_S)
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert len(raised) == 1


def test_a_call_with_tasks_of_its_own_is_ended_like_any_other(tmp_path: Path) -> None:
    running, raised = threading.Event(), []

    async def sleepers() -> None:
        async with trio.open_nursery() as nursery:  # when cancelled, it raises a group
            for _ in range(2):
                nursery.start_soon(trio.sleep_forever)
            await trio.testing.wait_all_tasks_blocked(0.01)
            running.set()

    def call(client: replog.blocking.Client) -> None:
        with pytest.raises(replog.ClosedError) as caught:
            vars(client)["_way"].call(sleepers)
        raised.append(caught.value)

    with replog.blocking.embed(tmp_path) as client:
        thread = threading.Thread(target=call, args=(client,))
        thread.start()
        assert running.wait(DEADLINE_S)
    thread.join(DEADLINE_S)
    assert len(raised) == 1


# -- reading --------------------------------------------------------------------------------------------------------


def test_following_with_a_timeout_goes_on_where_it_was(client: replog.blocking.Client) -> None:
    with client.write_log("log") as log, client.read_log("log", follow=True, timeout_s=0.2) as reader:
        found: list[replog.Record] = []
        for number in range(3):
            position = log.append(b"%d" % number)
            while not found or found[-1].position < position:  # more than one round on a slow machine
                with pytest.raises(TimeoutError, match=r"log 'log': nothing came within 0\.2 s"):
                    found.extend(iter(reader))
        log.roll()
        log.append(b"3")
        reader.timeout_s = None
        assert reader.receive().data == b"3"
    assert [record.data for record in found] == [b"0", b"1", b"2"]


def test_breaking_off_an_iteration_loses_no_record(client: replog.blocking.Client) -> None:
    with client.write_log("log") as log:
        log.extend([b"%d" % number for number in range(10)])
    with client.read_log("log") as reader:
        for record in reader:
            if record.data == b"3":
                break
        assert reader.receive().data == b"4"
        assert [record.data for record in reader] == [b"5", b"6", b"7", b"8", b"9"]


def test_position_and_commit_cover_only_returned_entries(client: replog.blocking.Client) -> None:
    """Batches that came for a call that was interrupted were not returned: who reads on after the position must get them."""
    with client.write_log("log") as log:
        for number in range(4):
            log.append(b"%d" % number)
    with client.read_log("log", after="1:0") as reader, client.cursor("log", "billing") as cursor:
        each: Any
        for each in (reader, cursor):
            each._way.call(each._fetching._fetch, None)
        assert reader.position == replog.Position(1, 0)
        cursor.commit()
        assert (cursor.position, cursor.begins_at) == (None, replog.Position(1, 0))
        assert cursor.receive().data == b"0"
        cursor.commit()
        assert cursor.begins_at == replog.Position(1, 1)


def test_position_follows_the_last_returned_entry(client: replog.blocking.Client) -> None:
    """Whichever verb gave it out: who resumes there gets nothing twice."""
    with client.write_log("log") as log:
        for number in range(4):
            log.extend([b"%d.%d" % (number, each) for each in range(3)])
    with client.read_log("log") as reader, client.cursor("log", "billing") as cursor:
        each: Any
        for each in (reader, cursor):
            assert each.receive().data == b"0.0"
            batch = each.receive_batch()
            assert batch.payloads()[0] == b"1.0"
            assert each.position == batch.last_position
            assert each.receive().position == replog.Position(1, batch.last_position.entry + 1)
            batch = each.receive_batch_nowait()
            assert each.position == batch.last_position


@pytest.mark.parametrize("verb", ["commit", "commit_nowait"])
def test_next_worker_gets_entries_fetched_but_not_returned(verb: str, client: replog.blocking.Client) -> None:
    with client.write_log("log") as log:
        for number in range(4):
            log.append(b"%d" % number)
    opened: Any
    with client.cursor("log", "billing") as opened:
        opened._way.call(opened._fetching._fetch, None)
        assert opened.receive().data == b"0"
        getattr(opened, verb)()
    with client.cursor("log", "billing") as cursor:
        assert [record.data for record in cursor] == [b"1", b"2", b"3"]


def test_batches_keep_their_order_with_any_verb(client: replog.blocking.Client) -> None:
    with client.write_log("log") as log:
        for number in range(20):
            log.append(b"%d" % number)
    with client.read_log("log") as reader:
        first = reader.receive_batch()  # fetches others with it
        assert first is not None
        second = reader.receive_batch_nowait()
        assert second.first_position == replog.Position(1, first.last_position.entry + 1)
        assert reader.position == second.last_position
        rest = [record.data for record in reader]
    assert [*first.payloads(), *second.payloads(), *rest] == [b"%d" % number for number in range(20)]


def test_reading_crosses_the_threads_once_for_many_entries(tmp_path: Path) -> None:
    entries = [b"%0100d" % number for number in range(100_000)]
    with replog.blocking.embed(tmp_path) as client:
        with client.write_log("log") as log:
            log.extend(entries)
            for number in range(200):
                log.append(b"%d" % number)  # a batch each
        with client.read_log("log") as reader:
            calls = 0
            portal = vars(reader)["_way"]
            call = portal.call

            def counted(*args: object) -> object:
                nonlocal calls
                calls += 1
                return call(*args)

            portal.call = counted
            assert [record.data for record in reader][: len(entries)] == entries
    assert calls < 100


# -- interrupting ---------------------------------------------------------------------------------------------------


def waits_for_trio() -> bool:
    """Whether the main thread sleeps until the trio thread answers."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return frame is not None and frame.f_code is _Answer.wait.__code__


@contextmanager
def interruption() -> Iterator[None]:
    """Ctrl-C, a moment after the block has begun to wait, however long that takes; the block must raise it."""
    left = threading.Event()

    def interrupt() -> None:
        while not waits_for_trio():
            if left.wait(0.01):
                return
        if not left.wait(0.3):
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        left.set()
        thread.join()


def test_a_follower_can_be_interrupted_and_reads_on(client: replog.blocking.Client) -> None:
    with client.write_log("log") as log, client.read_log("log", follow=True) as reader:
        log.append(b"one")
        assert reader.receive().data == b"one"
        with interruption():
            reader.receive()
        log.append(b"two")
        assert reader.receive().data == b"two"


def test_the_client_goes_on_after_an_interrupted_wait_to_lead(client: replog.blocking.Client) -> None:
    with client.lead_log("log") as leader:
        with interruption(), client.lead_log("log"):
            pass
        leader.append(b"still the leader")


def test_an_interrupted_program_ends_with_everything_closed(tmp_path: Path) -> None:
    script = """
        import sys, replog.blocking
        with replog.blocking.embed("wal") as client, client.write_log("log") as log:
            print(log.append(b"confirmed"), flush=True)
            with client.read_log("log", follow=True) as reader:
                for record in reader:
                    pass
    """
    program = Forked(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "1:0\n"
    program.send_signal(signal.SIGINT)
    _, errors = program.communicate(timeout=DEADLINE_S)
    assert program.returncode == -signal.SIGINT
    assert errors.strip().endswith("KeyboardInterrupt")
    with replog.blocking.embed(tmp_path / "wal") as client, client.read_log("log") as reader:
        assert [record.data for record in reader] == [b"confirmed"]


def test_the_client_is_usable_after_an_interrupt_before_a_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with replog.blocking.embed(tmp_path / "wal") as client:
        with monkeypatch.context() as patch:

            def interrupt(*_: object) -> None:
                patch.undo()
                raise KeyboardInterrupt

            patch.setattr(vars(client)["_way"], "_soon", interrupt)
            with pytest.raises(KeyboardInterrupt) as raised, client.write_log("log"):
                pass
        assert not hasattr(raised.value, "__notes__")
        with client.write_log("log") as log:
            assert log.append(b"as ever") == (1, 0)


# -- forking --------------------------------------------------------------------------------------------------------

FORKING = """
    import os, sys, threading
    import pytest, trio
    import replog, replog.blocking

    def in_child(child):
        # Runs in a fork, which ends as an interpreter does; returns its exit status.
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            child()
            sys.exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def test_use_in_a_fork_raises_at_once_and_leaving_is_harmless(tmp_path: Path) -> None:
    script = textwrap.dedent(FORKING) + textwrap.dedent("""
        with replog.blocking.embed("wal") as client, client.write_log("log") as log, client.read_log("log") as reader:
            log.append(b"one")
            pid = os.fork()
            if pid == 0:
                uses = [
                    lambda: log.append(b"child"), lambda: log.extend([b"child"]), lambda: log.push_nowait(b"child"),
                    log.flush, log.roll, lambda: log.last_add_confirmed, log.statistics, lambda: list(reader),
                    client.logs, client.statistics, lambda: client.trim_log("log", before="1:0"),
                    lambda: client.write_log("log").__enter__(), lambda: client.read_log("log").__enter__(),
                ]
                for use in uses:
                    with pytest.raises(replog.errors.ForkedError, match="Open a client of its own in each process"):
                        use()
            else:
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
                log.append(b"two")
        if pid == 0:
            sys.exit(0)
        with replog.blocking.embed("wal") as client, client.read_log("log") as reader:
            assert [record.data for record in reader] == [b"one", b"two"]
    """)
    run_script(script, tmp_path)


def test_a_fork_opens_a_client_of_its_own_in_another_directory(tmp_path: Path) -> None:
    script = textwrap.dedent(FORKING) + textwrap.dedent("""
        def child():
            with pytest.raises(replog.errors.StorageInUseError), replog.blocking.embed("wal"):
                pass
            with replog.blocking.embed("other") as own, own.write_log("log") as own_log:
                own_log.append(b"child")
            with replog.blocking.embed("other") as own, own.read_log("log") as own_reader:
                assert [record.data for record in own_reader] == [b"child"]

        with replog.blocking.embed("wal") as client, client.write_log("log") as log:
            log.append(b"one")
            assert in_child(child) == 0
            log.append(b"two")
            with client.read_log("log") as reader:
                assert [record.data for record in reader] == [b"one", b"two"]
    """)
    run_script(script, tmp_path)


def test_a_fork_does_not_keep_the_directory_of_a_dead_parent(tmp_path: Path) -> None:
    script = textwrap.dedent(FORKING) + textwrap.dedent("""
        import signal
        gone, told = os.pipe()
        parent = os.fork()
        if parent == 0:
            with replog.blocking.embed("wal") as client, client.write_log("log") as log:
                log.append(b"confirmed")
                if os.fork() == 0:
                    os.write(told, b"%d\\n" % os.getpid())
                    signal.pause()
                os.kill(os.getpid(), signal.SIGKILL)
        orphan = int(os.read(gone, 100))
        assert os.waitstatus_to_exitcode(os.waitpid(parent, 0)[1]) == -signal.SIGKILL
        try:
            with replog.blocking.embed("wal") as client, client.write_log("log"), client.read_log("log") as reader:
                assert [record.data for record in reader] == [b"confirmed"]
        finally:
            os.kill(orphan, signal.SIGKILL)
    """)
    run_script(script, tmp_path)


def test_a_fork_while_threads_append_hangs_neither_process(tmp_path: Path) -> None:
    script = textwrap.dedent(FORKING) + textwrap.dedent("""
        def child():
            with pytest.raises(replog.errors.ForkedError):
                log.append(b"child")
            with replog.blocking.embed(f"other-{os.getpid()}") as own, own.write_log("log") as own_log:
                own_log.append(b"child")

        with replog.blocking.embed("wal") as client:
            with client.write_log("log") as log:
                done = threading.Event()

                def append():
                    while not done.is_set():
                        log.append(b"parent")

                threads = [threading.Thread(target=append) for _ in range(4)]
                for thread in threads:
                    thread.start()
                assert [in_child(child) for _ in range(5)] == [0] * 5
                done.set()
                for thread in threads:
                    thread.join()
                last = log.last_add_confirmed
            with client.read_log("log") as reader:
                records = list(reader)
            assert records[-1].position == last
            assert {record.data for record in records} == {b"parent"}
    """)
    run_script(script, tmp_path)


def test_repairs_are_served_until_the_client_is_left(tmp_path: Path) -> None:
    reports: queue.SimpleQueue[replog.results.AuditReport] = queue.SimpleQueue()
    ended: list[BaseException] = []

    def serve(client: replog.blocking.Client) -> None:
        try:
            replog.blocking.serve_repairs(client, interval_s=0.01, reported=reports.put)
        except replog.ClosedError as error:
            ended.append(error)

    with replog.blocking.embed(tmp_path) as client:
        with client.write_log("log") as log:
            log.append(b"one")
        serving = threading.Thread(target=serve, args=(client,))
        serving.start()
        assert isinstance(reports.get(timeout=60), replog.results.AuditReport)
    serving.join(60)
    assert not serving.is_alive()
    assert len(ended) == 1
