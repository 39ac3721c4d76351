"""Calls of many threads into the trio thread share its wake-ups, and a lost one holds nobody up for long."""

from __future__ import annotations

import threading
from pathlib import Path

import trio
import trio.testing

import replog.blocking
from replog.blocking.calls import ThreadCalls
from replog.config.client import ClientTuning

THREADS, APPENDS = 8, 20


def test_one_wakeup_is_enough_for_calls_that_come_together() -> None:
    made: list[int] = []
    calls = ThreadCalls()

    async def main() -> None:
        for number in range(3):
            assert calls.put(lambda number=number: made.append(number))  # type: ignore[misc]
        assert calls._woken is not None
        assert calls._woken.recv(10, 2) == b"\0"  # MSG_PEEK
        async with trio.open_nursery() as nursery:
            nursery.start_soon(calls.make)
            await trio.testing.wait_all_tasks_blocked()
            assert made == [0, 1, 2]
            calls.put(lambda: made.append(3))
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert made == [0, 1, 2, 3]
            nursery.cancel_scope.cancel()

    with calls.served():
        trio.run(main)


def test_caller_that_was_interrupted_before_it_woke_anybody_stops_no_other(tmp_path: Path) -> None:
    with replog.blocking.embed(tmp_path) as client:
        vars(client)["_way"]._calls._is_waking = True  # what a signal handler leaves that raises between the two steps
        assert client.logs() == []


def test_threads_append_beside_each_other_and_past_a_full_backlog(tmp_path: Path) -> None:
    options = ClientTuning(in_flight_bytes_max=1 << 12, batch_bytes_max=1 << 12)
    with replog.blocking.embed(tmp_path, options=options) as client, client.write_log("log") as log:

        def append(thread: int) -> None:
            for number in range(APPENDS):
                log.append(b"%d %d" % (thread, number) + bytes(1000))

        threads = [threading.Thread(target=append, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with client.read_log("log") as reader:
            found = [entry.data.rstrip(b"\0").split() for entry in reader]
    for writer in range(THREADS):
        assert [int(number) for one, number in found if int(one) == writer] == list(range(APPENDS))
