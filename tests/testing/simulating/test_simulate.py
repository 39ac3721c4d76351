"""`simulate`: an app of one's own on virtual time, among faults that follow from the seed."""

import os
import re
import subprocess
import sys
import threading
import time
from functools import cache

import attrs
import pytest
import trio

import replog
from replog.errors import ConfigError, LocalProtocolError
from replog.testing import Faults, SimulatedCluster, SimulationTimeoutError, simulate
from replog.testing.simulating import running

CALM = Faults.none()
FAULTS = [field.name for field in attrs.fields(Faults) if field.name != "bookies_at_once_max"]


async def append_for_ever(client: replog.Client) -> None:
    """Appends to a log, and leads it again whatever happens."""
    number = 0
    while True:
        try:
            async with client.lead_log("log") as log:
                while True:
                    await log.append(b"%d" % number)
                    number += 1
                    await trio.sleep(0.05)
        except (replog.ReplogError, trio.ClosedResourceError):
            await trio.sleep(0.2)


async def read_all(cluster: SimulatedCluster, name: str = "log") -> list[bytes]:
    async with cluster.client() as client:
        async with client.write_log(name):
            pass
        async with client.read_log(name) as reader:
            return [record.data async for record in reader]


# -- results, errors and time --------------------------------------------------------------------------------------------------


def test_simulate_returns_the_result_of_the_app() -> None:
    async def app(cluster: SimulatedCluster) -> list[bytes]:
        async def main(client: replog.Client) -> str:
            async with client.write_log("log") as log:
                await log.extend([b"one", b"two"])
            return "done"

        cluster.start("writer", main)
        assert await cluster.wait("writer") == "done"
        assert not cluster.is_running("writer")
        return await read_all(cluster)

    assert simulate(app, seed=1, faults=CALM) == [b"one", b"two"]


def test_time_is_virtual() -> None:
    async def app(cluster: SimulatedCluster) -> float:
        await trio.sleep(200)
        return trio.current_time()

    began_s = time.monotonic()
    assert simulate(app, seed=1, faults=CALM, bookies=1, within_s=400) > 200
    assert time.monotonic() - began_s < 150


def test_error_of_the_app_is_raised_with_the_seed() -> None:
    async def app(cluster: SimulatedCluster) -> None:
        await trio.sleep(2)
        raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError, match="on purpose") as caught:
        simulate(app, seed=17, faults=CALM)
    assert re.fullmatch(
        r"simulate\(\.\.\., seed=17\): in the app, after 2\.\d+ s of virtual time", caught.value.__notes__[0]
    )


def test_error_of_a_process_is_raised_with_its_name() -> None:
    async def app(cluster: SimulatedCluster) -> None:
        async def main(client: replog.Client) -> None:
            await client.delete_log("no such log")

        cluster.start("deleter", main)
        await trio.sleep_forever()

    with pytest.raises(replog.errors.LogNotFoundError) as caught:
        simulate(app, seed=17, faults=CALM)
    assert "seed=17): in process deleter.1, after" in caught.value.__notes__[0]


def test_endless_app_is_reported_with_its_waits() -> None:
    async def wait_for_nothing(client: replog.Client) -> None:
        async with client.read_log("log", follow=True):
            raise AssertionError("nobody creates that log")

    async def app(cluster: SimulatedCluster) -> None:
        cluster.start("reader", wait_for_nothing)
        await cluster.wait("reader")

    with pytest.raises(SimulationTimeoutError, match="did not end within 30 s of virtual time") as caught:
        simulate(app, seed=3, faults=CALM, within_s=30)
    of_app, of_reader = caught.value.waiting
    assert re.match(r"app: .*\bapp \(test_simulate\.py:\d+\), in SimulatedCluster\.wait$", of_app)
    assert re.match(r"reader\.1: .*\bwait_for_nothing \(test_simulate\.py:\d+\), in Client.read_log$", of_reader)
    assert of_reader in str(caught.value)


def test_busy_tasks_without_passing_time_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_STEPS_NOW_MAX", 20_000)  # a tenth of what it takes otherwise

    async def app(cluster: SimulatedCluster) -> None:
        while True:
            await trio.lowlevel.checkpoint()

    with pytest.raises(SimulationTimeoutError, match="virtual time stands still") as caught:
        simulate(app, seed=3, faults=CALM, bookies=1)
    assert "app (test_simulate.py:" in caught.value.waiting[0]


@pytest.mark.parametrize(
    "arguments",
    [{"bookies": 0}, {"within_s": 0}, {"seed": "one"}, {"faults": 0.5}, {"quorum": (3, 3, 2)}],
    ids=lambda arguments: next(iter(arguments)),
)
def test_impossible_arguments_are_refused(arguments: dict) -> None:
    async def app(cluster: SimulatedCluster) -> None:
        pass

    with pytest.raises(ConfigError, match=next(iter(arguments))):
        simulate(app, **{"seed": 1, **arguments})


def test_no_thread_is_left_behind() -> None:
    before = set(threading.enumerate())

    async def app(cluster: SimulatedCluster) -> None:
        cluster.start("writer", append_for_ever)
        await trio.sleep(5)

    simulate(app, seed=2)
    assert set(threading.enumerate()) <= before


# -- processes -----------------------------------------------------------------------------------------------------------------


def test_a_crashed_process_takes_no_further_step() -> None:
    steps: list[str] = []

    async def main(client: replog.Client) -> None:
        try:
            async with client.write_log("log") as log:
                while True:
                    await log.append(b"x")
                    steps.append("appended")
        finally:
            steps.append("unwound")

    async def app(cluster: SimulatedCluster) -> list[bytes]:
        cluster.start("writer", main)
        await trio.sleep(1)
        cluster.crash("writer")
        known = list(steps)
        assert not cluster.is_running("writer")
        found = await read_all(cluster)
        assert steps == known
        return found

    found = simulate(app, seed=5, faults=CALM)
    appended = steps.count("appended")
    assert appended <= len(found) <= appended + 1
    assert steps[-1] == "unwound"


def test_a_restarted_process_runs_main_again_with_another_client() -> None:
    clients: list[replog.Client] = []

    async def main(client: replog.Client) -> int:
        clients.append(client)
        if len(clients) == 1:
            await trio.sleep_forever()
        return len(clients)

    async def app(cluster: SimulatedCluster) -> None:
        cluster.start("one", main)
        await trio.sleep(1)
        with pytest.raises(LocalProtocolError, match="'one' runs already"):
            cluster.start("one", main)
        cluster.restart("one")
        assert await cluster.wait("one") == 2
        cluster.start("one", main)
        assert await cluster.wait("one") == 3
        with pytest.raises(LocalProtocolError, match="no process 'two' was started; known: one"):
            cluster.crash("two")

    simulate(app, seed=5, faults=CALM)
    assert len(set(map(id, clients))) == 3


def test_another_process_leads_after_a_crash() -> None:
    async def app(cluster: SimulatedCluster) -> None:
        cluster.start("a", append_for_ever)
        await trio.sleep(1)
        cluster.start("b", append_for_ever)
        await trio.sleep(1)
        assert cluster.happened["LogTakenOver"] == 1
        cluster.crash("a")
        await trio.sleep(5)
        assert cluster.happened["LogTakenOver"] == 2

    simulate(app, seed=6, faults=CALM)


def test_a_paused_process_notices_no_timeout() -> None:
    woke: list[float] = []

    async def main(client: replog.Client) -> None:
        await trio.sleep(2)
        woke.append(trio.current_time())
        with trio.move_on_after(2):
            await trio.sleep(1)
            woke.append(trio.current_time())

    async def app(cluster: SimulatedCluster) -> None:
        began_s = trio.current_time()
        cluster.start("sleeper", main)
        await trio.sleep(1)
        cluster.pause("sleeper")
        assert cluster.is_running("sleeper")
        await trio.sleep(9)
        assert woke == []
        cluster.resume("sleeper")
        await cluster.wait("sleeper")
        assert [each - began_s for each in woke] == pytest.approx([10, 11])

    simulate(app, seed=5, faults=CALM, bookies=1)


def test_a_paused_leader_is_deposed() -> None:
    fenced: list[str] = []

    async def lead(client: replog.Client) -> None:
        async with client.lead_log("log") as log:
            try:
                while True:
                    await log.append(b"x")
                    await trio.sleep(0.1)
            except replog.FencedError:
                fenced.append("deposed")

    async def app(cluster: SimulatedCluster) -> None:
        cluster.start("a", lead)
        await trio.sleep(1)
        cluster.start("b", lead)
        cluster.pause("a")
        await trio.sleep(5)
        assert cluster.happened["LogTakenOver"] == 2
        assert fenced == []
        cluster.resume("a")
        await cluster.wait("a")

    simulate(app, seed=7, faults=CALM)
    assert fenced == ["deposed"]


def test_a_paused_process_can_be_killed() -> None:
    async def app(cluster: SimulatedCluster) -> None:
        cluster.start("a", append_for_ever)
        await trio.sleep(1)
        cluster.pause("a")
        cluster.restart("a")
        await trio.sleep(5)
        assert cluster.happened["LogTakenOver"] == 2

    simulate(app, seed=8, faults=CALM)


def test_an_endless_cleanup_does_not_delay_the_end() -> None:
    async def main(client: replog.Client) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep_forever()

    async def app(cluster: SimulatedCluster) -> int:
        cluster.start("stubborn", main)
        await trio.sleep(1)
        cluster.crash("stubborn")
        return 7

    assert simulate(app, seed=1, faults=CALM, bookies=1) == 7


# -- bookies -------------------------------------------------------------------------------------------------------------------


def test_the_app_may_crash_and_restart_bookies() -> None:
    async def app(cluster: SimulatedCluster) -> int:
        async with cluster.client() as client, client.write_log("log") as log:
            await log.append(b"1")
            for bookie in cluster.bookies[1:]:
                bookie.crash()
                assert not bookie.is_serving
            with trio.move_on_after(3) as waiting:
                await log.append(b"2")
            assert waiting.cancelled_caught
            for bookie in cluster.bookies[1:]:
                await bookie.restart()
                assert bookie.is_serving
        return len(await read_all(cluster))

    assert simulate(app, seed=4, faults=CALM, bookies=3) == 2


def test_the_app_may_pause_bookies_and_fill_their_disks() -> None:
    async def app(cluster: SimulatedCluster) -> None:
        async with cluster.client() as client, client.write_log("log") as log:
            for bookie in cluster.bookies:
                bookie.pause()
            with trio.move_on_after(3) as waiting:
                await log.append(b"1")
            assert waiting.cancelled_caught
            for bookie in cluster.bookies:
                bookie.resume()
            cluster.bookies[0].fill_disk()
            await log.append(b"2")
            await trio.sleep(1)
            assert cluster.happened["commit without space"]
            cluster.bookies[0].empty_disk()
            await log.append(b"3")
        assert len({bookie.bookie_id for bookie in cluster.bookies}) == 3

    simulate(app, seed=4, faults=CALM, bookies=3)


# -- faults --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_strikes(name: str) -> None:
    """And after `calm` everything works again."""

    async def app(cluster: SimulatedCluster) -> None:
        cluster.start("writer", append_for_ever)
        await trio.sleep(20 if name in RARER else 10)
        assert cluster.happened[name] > 3
        effect = EFFECTS.get(name)
        assert effect is None or cluster.happened[effect]
        await cluster.calm()
        struck = cluster.happened[name]
        assert all(bookie.is_serving for bookie in cluster.bookies)
        assert cluster.is_running("writer")
        cluster.crash("writer")
        assert len(await read_all(cluster)) > 20
        assert cluster.happened[name] == struck

    others = {"processes_crash": 0.5} if name == "metastore_fails" else {}  # a leader that stays asks nothing of it
    simulate(app, seed=1, faults=Faults.none(**{**others, name: 1.0}), bookies=5)


RARER = {"disks_fill", "messages_lost", "metastore_fails", "processes_pause"}  # or what follows from it
EFFECTS = {
    "bookies_crash": "EnsembleChanged",
    "disks_fill": "commit without space",
    "disks_fail": "sync failed",
    "messages_lost": "request lost",
    "network_cuts": "one-way partition",
    "metastore_fails": "metastore: unavailable",
    "sessions_lost": "session lost",
    "processes_crash": "LogTakenOver",
}


def test_without_faults_nothing_happens() -> None:
    async def app(cluster: SimulatedCluster) -> dict[str, int]:
        cluster.start("writer", append_for_ever)
        await trio.sleep(8)
        return dict(cluster.happened)

    assert simulate(app, seed=1, faults=CALM) == {"LogTakenOver": 1}


def test_rates_must_not_be_negative() -> None:
    for wrong in (-1, float("inf"), float("nan"), "often", True):
        with pytest.raises(ConfigError, match="bookies_crash"):
            Faults(bookies_crash=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="bookies_at_once_max"):
        Faults(bookies_at_once_max=0.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="earthquakes"):
        Faults.none(earthquakes=1.0)


# -- repeating a seed ----------------------------------------------------------------------------------------------------------


async def stormy(cluster: SimulatedCluster) -> int:
    for name in ("a", "b"):
        cluster.start(name, append_for_ever)
    await trio.sleep(10)
    cluster.note(f"drawn {cluster.random.random()}")
    await cluster.calm()
    return len(await read_all(cluster))


def trace_of(seed: int) -> list[str]:
    trace: list[str] = []
    simulate(stormy, seed=seed, faults=Faults(processes_crash=0.2, processes_pause=0.2), trace=trace)
    return trace


@cache
def cached_trace_of(seed: int) -> list[str]:
    return trace_of(seed)


def test_a_seed_has_one_trace() -> None:
    trace = trace_of(1)
    assert len(trace) > 300
    assert trace_of(1) == trace
    assert cached_trace_of(3) != trace


def test_a_seed_has_one_trace_in_every_process() -> None:
    program = "from tests.testing.simulating.test_simulate import trace_of\nprint('\\n'.join(trace_of(3)))"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == cached_trace_of(3)
