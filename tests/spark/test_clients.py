"""The client that a worker keeps: over its tasks, not over forks, and not when it is broken."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

import replog
from replog.errors import MetastoreError
from replog.spark.clients import IDLE_CLIENTS_MAX, close_idle_clients, run, worker_client

DEADLINE_S = 60


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    close_idle_clients()
    assert [each for each in threading.enumerate() if each.name == "replog blocking"] == []


@pytest.fixture
def metastore(tmp_path: Path) -> str:
    return f"lmdb:{tmp_path / 'metadata'}"


def run_script(script: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def test_one_client_serves_task_after_task(metastore: str) -> None:
    with worker_client(metastore) as first:
        assert first.call(lambda client: client.logs()) == []
    with worker_client(metastore) as second:
        assert second is first
        assert second.blocking.logs() == []
    with worker_client(metastore, quorum=replog.Quorum(1, 1, 1)) as other:
        assert other is not first
        assert other.client.default_quorum == replog.Quorum(1, 1, 1)


def test_threads_share_the_client_beyond_its_first_thread(metastore: str) -> None:
    found = []

    def task() -> None:
        with worker_client(metastore) as client:
            found.append((client, client.blocking.logs()))

    for _ in range(2):
        thread = threading.Thread(target=task)
        thread.start()
        thread.join()
    with worker_client(metastore) as client:
        assert found == [(client, []), (client, [])]


def test_the_client_left_longest_is_closed_and_one_in_use_is_not(tmp_path: Path) -> None:
    def url(number: int) -> str:
        return f"lmdb:{tmp_path / str(number)}"

    with worker_client(url(0)) as used:
        clients = []
        for number in range(1, IDLE_CLIENTS_MAX + 2):
            with worker_client(url(number)) as client:
                clients.append(client)
        assert [client.is_running for client in clients] == [False] + [True] * IDLE_CLIENTS_MAX
        close_idle_clients()
        assert not any(client.is_running for client in clients)
        assert used.blocking.logs() == []


def test_client_raises_once_after_a_failed_run_and_is_replaced(metastore: str) -> None:
    async def fail() -> None:
        raise LookupError("a bug")

    async def break_it(client: replog.Client) -> None:
        client._opened.nursery.start_soon(fail)
        await trio.sleep_forever()

    with worker_client(metastore) as broken:
        with pytest.raises(replog.ClosedError):
            broken.call(break_it)
        broken._portal._thread.join(DEADLINE_S)
    with pytest.raises(LookupError, match="a bug"), worker_client(metastore):
        pass
    with worker_client(metastore) as client:
        assert client is not broken
        assert client.blocking.logs() == []


def test_a_fork_has_its_own_client_while_its_parent_uses_one(metastore: str) -> None:
    script = """
        import os, sys, threading
        from replog.spark.clients import _kept, close_idle_clients, worker_client

        with worker_client(sys.argv[1]) as parents:
            parents.blocking.logs()
            _kept.lock.acquire()  # as another thread might at the moment of the fork
            child = os.fork()
            if not child:
                with worker_client(sys.argv[1]) as own:
                    assert own is not parents and not parents.is_running
                    assert own.blocking.logs() == []
                close_idle_clients()
            else:
                _kept.lock.release()
                assert os.waitpid(child, 0)[1] == 0
                assert parents.blocking.logs() == []
        if child:
            with worker_client(sys.argv[1]) as again:
                assert again is parents
            print("both were served")
    """
    assert run_script(script, metastore) == "both were served\n"


def test_a_process_ends_without_closing_its_client(metastore: str) -> None:
    script = """
        import sys
        from replog.spark.clients import worker_client

        with worker_client(sys.argv[1]) as client:
            print(client.blocking.logs())
    """
    assert run_script(script, metastore) == "[]\n"


def test_a_client_takes_its_options_from_the_workers_environment(
    metastore: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLOG_CLIENT_ADD_TIMEOUT_S", "1.5")
    monkeypatch.setenv("REPLOG_CLIENT_IN_FLIGHT_BYTES_MAX", "none of your business")
    with pytest.raises(replog.ConfigError, match="REPLOG_CLIENT_IN_FLIGHT_BYTES_MAX"), worker_client(metastore):
        pass
    monkeypatch.delenv("REPLOG_CLIENT_IN_FLIGHT_BYTES_MAX")

    async def timeout_s(client: replog.Client) -> float:
        return client._opened.ledgers.options.add_timeout_s

    with worker_client(metastore) as client:
        assert client.call(timeout_s) == 1.5
    assert run(metastore, timeout_s) == 1.5
    assert run(metastore, timeout_s, options=replog.ClientOptions(add_timeout_s=2)) == 2


def test_error_names_process_and_host_of_its_origin() -> None:
    async def look(client: replog.Client) -> list[str]:
        return await client.logs()

    url = "lmdb:/dev/null/secret"
    with pytest.raises(replog.ReplogError) as by_run:
        run(url, look)
    with pytest.raises(replog.ReplogError) as by_worker, worker_client(url) as client:
        client.call(look)
    for caught in (by_run, by_worker):
        [note] = caught.value.__notes__
        assert f"process {os.getpid()} on host" in note
        assert "lmdb:..." in note
        assert "secret" not in note


async def test_a_call_within_trio_is_refused_instead_of_blocking_it(metastore: str) -> None:
    async def look(client: replog.Client) -> list[str]:
        return await client.logs()

    with pytest.raises(replog.ConfigError, match="to_thread"):
        run(metastore, look)
    assert await trio.to_thread.run_sync(lambda: run(metastore, look)) == []


def test_a_call_raises_the_same_exception(metastore: str) -> None:
    async def fail(client: replog.Client) -> None:
        raise MetastoreError("as it is")

    with pytest.raises(MetastoreError, match="as it is"):
        run(metastore, fail)
    with worker_client(metastore) as client:
        with pytest.raises(MetastoreError, match="as it is"):
            client.call(fail)


def test_a_context_is_kept_open_while_the_block_is(metastore: str) -> None:
    events = []

    @asynccontextmanager
    async def context(client: replog.Client) -> AsyncIterator[list[str]]:
        events.append("entered")
        yield await client.logs()
        events.append("left")

    with worker_client(metastore) as client, client.opened(context) as logs:
        assert logs == []
        assert events == ["entered"]
    assert events == ["entered", "left"]
