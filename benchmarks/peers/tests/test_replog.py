"""replog as a system of the comparison: as many entries in flight as were asked for, and all that the runner may ask."""

from pathlib import Path

import pytest
import trio

import replog
from benchmarks.peers.system import Latencies, Load, NotMeasured
from benchmarks.peers.systems.replog import Replog, _Calling, _Pushing, run


class Watched:
    """A ledger's writer, and how many entries it had in flight when one more was pushed."""

    def __init__(self, writer: replog.LedgerWriter) -> None:
        self._writer = writer
        self.in_flight: list[int] = []
        self._extending = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._writer, name)

    def push_nowait(self, data: bytes) -> int:
        self.in_flight.append(self._writer.last_add_pushed - self._writer.last_add_confirmed + 1)
        return self._writer.push_nowait(data)

    async def extend(self, entries: list[bytes]) -> object:
        self._extending += len(entries)
        self.in_flight.append(self._extending)
        try:
            return await self._writer.extend(entries)
        finally:
            self._extending -= len(entries)


@pytest.mark.parametrize(("entry_bytes", "in_flight"), [(100, 2), (100, 100), (100, 10_000), (65536, 3)])
async def test_as_many_as_asked_for_are_in_flight(tmp_path: Path, entry_bytes: int, in_flight: int) -> None:
    latencies, room_bytes = Latencies(), 64 << 20
    async with replog.embed(tmp_path, bookies=1, storage="memory") as client, client.create_ledger() as writer:
        watched = Watched(writer)
        pushing = _Pushing(watched, Load(entry_bytes, in_flight, 0.0), room_bytes)  # type: ignore[arg-type]
        confirmed = [await pushing.run_for(0.0, latencies) for _ in range(5)]
        assert writer.last_add_confirmed == sum(confirmed) - 1
    assert max(watched.in_flight) == in_flight
    assert len(watched.in_flight) >= sum(confirmed) > 0
    assert watched.in_flight[:in_flight] == list(range(1, in_flight + 1)), "all of them before the first wait"
    assert min(latencies.figures().values()) > 0


async def test_a_load_ends_when_so_many_are_confirmed(tmp_path: Path) -> None:
    async with replog.embed(tmp_path, bookies=1, storage="memory") as client, client.create_ledger() as writer:
        pushing = _Pushing(writer, Load(100, 50, 60.0, entries_max=200), 64 << 20)
        assert 200 <= await pushing.run_for(60.0, Latencies()) < 250


async def test_several_for_each_call_are_in_flight_together(tmp_path: Path) -> None:
    latencies = Latencies()
    async with replog.embed(tmp_path, bookies=1, storage="memory") as client, client.create_ledger() as writer:
        watched = Watched(writer)
        calling = _Calling(watched, Load(100, 40, 0.0, entries_per_call=10))  # type: ignore[arg-type]
        assert await calling.run_for(0.0, latencies) == 40
    assert len(watched.in_flight) == 4
    assert 10 < max(watched.in_flight) <= 40


def test_case_impossible_for_replog_was_not_measured() -> None:
    async def fail(*errors: BaseException) -> None:
        await trio.lowlevel.checkpoint()
        if len(errors) == 1:
            raise errors[0]
        raise BaseExceptionGroup("of a nursery", errors)

    refused = replog.errors.MetastoreError("it is away")
    for errors in ([refused], [refused, BaseExceptionGroup("within", [NotMeasured("too few")])]):
        with pytest.raises(NotMeasured, match="it is away"):
            run(fail, *errors)
    with pytest.raises(ZeroDivisionError):
        run(fail, ZeroDivisionError())
    with pytest.raises(BaseExceptionGroup):  # a mistake of the benchmark's own is no figure that is missing
        run(fail, refused, ZeroDivisionError())


@pytest.mark.slow
def test_replog_supports_every_request_of_the_runner(tmp_path: Path) -> None:
    system = Replog()
    system.warm_up_bytes = 0
    assert system.missing() is None
    with system.running(tmp_path) as running:
        assert len(running.process_ids) == 3
        for load in (Load(1024, 1, 0.05), Load(1024, 100, 0.05), Load(100, 10_000, 0.05, entries_per_call=1000)):
            found = running.append(load)
            assert found["entries"] > 0
            assert found["server_cpu_us"] > 0
            assert found["p50_us"] <= found["p99_us"] <= found["p999_us"]
        assert running.scan(100, 2000)["entries_per_s"] > 0
        assert running.tail(100, 20)["p50_us"] > 0
        assert set(running.take_over(100)) == {"takeover_s", "told_takeover_s"}
        assert running.restart()["held_bytes"] > 0
        assert running.append(Load(100, 100, 0.05))["entries"] > 0
