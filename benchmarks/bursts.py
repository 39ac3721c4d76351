"""How late the last entry of a burst reaches a follower that waits: from its confirmation to its receipt, in one process."""

from __future__ import annotations

from functools import partial

import trio
import trio.lowlevel

import replog
from benchmarks.figures import Figures, percentiles
from benchmarks.loads import LOG, AnyPlace
from benchmarks.remote.place import Kind
from benchmarks.setting import KIB, Comparison, NotMeasured, Round, Setting

SIZES = (2, 5, 20)
_PAUSE_S = 0.02  # between two bursts: the follower has polled again
_LATE_MAX_S = 5.0
_DATA = bytes(KIB)


class _Follower:
    """Notes when it had which record."""

    def __init__(self, reader: replog.LogReader) -> None:
        self.records = 0
        self.seen_s = 0.0
        self._reader = reader
        self._came = trio.Event()

    async def run(self) -> None:
        """Follows until cancelled."""
        async for _ in self._reader:
            self.records += 1
            self.seen_s = trio.current_time()
            self._came.set()

    async def has(self, records: int) -> None:
        """Returns when it had so many. Raises `NotMeasured` if that takes seconds."""
        with trio.move_on_after(_LATE_MAX_S):
            while self.records < records:
                self._came = trio.Event()
                await self._came.wait()
            return
        raise NotMeasured(
            f"a follower had {self.records} of {records} records, {_LATE_MAX_S} s after the last was confirmed"
        )


async def _measure(place: AnyPlace, seconds: float) -> dict[str, Figures]:
    """Also what one append takes: a round."""
    found: dict[str, Figures] = {}
    async with (
        place.client() as client,
        client.write_log(LOG) as log,
        client.read_log(LOG, follow=True) as reader,
        trio.open_nursery() as nursery,
    ):
        follower = _Follower(reader)
        nursery.start_soon(follower.run)
        await log.append(_DATA)
        await follower.has(1)
        records = 1
        appends_s: list[float] = []
        for size in SIZES:
            late_s: list[float] = []
            ends_s = trio.current_time() + seconds
            while not late_s or trio.current_time() < ends_s:
                await trio.sleep(_PAUSE_S)
                started_s = trio.current_time()
                await log.append(_DATA)
                appends_s.append(trio.current_time() - started_s)
                for _ in range(size - 1):
                    log.push_nowait(_DATA)
                    await trio.lowlevel.checkpoint()
                await log.flush()
                confirmed_s = trio.current_time()
                records += size
                await follower.has(records)
                late_s.append(max(0.0, follower.seen_s - confirmed_s))
            found[f"burst of {size}"] = percentiles(late_s) | {"bursts": len(late_s)}
        found["append"] = percentiles(appends_s)
        nursery.cancel_scope.cancel()
    return found


def bursts(setting: Setting, *, is_remote: bool) -> Round:
    """Bursts of single appends, followed by a reader that always waits; beside them what one append takes: a round."""
    place: AnyPlace = setting.remote(Kind()) if is_remote else setting.three
    return trio.run(_measure, place, setting.seconds)


CASES = {"bursts": partial(bursts, is_remote=False), "remote-bursts": partial(bursts, is_remote=True)}


def _late(case: str, title: str, size: int) -> Comparison:
    title = f"{title}, last of {size}, after its confirmation"
    return Comparison(case, title, f"burst of {size}", "append", "p50_us", "p50_us", "us", 2.0, at_least=False)


COMPARISONS = [
    *(_late("bursts", "follower in process", size) for size in SIZES),
    *(_late("remote-bursts", "follower over TCP", size) for size in SIZES),
]
