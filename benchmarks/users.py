"""What users see: lateness under a load that does not wait, beside upkeep too; a trimmed log, idle followers, a killed bookie.

The load is open: entries are pushed when they are due, whatever became of those before, and each is timed from the moment when it
was due. A closed loop, which appends when the last one is done, would leave out just those that a stall keeps waiting.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import attrs
import trio
import trio.lowlevel

import replog
from benchmarks.figures import Figures, clock, percentiles
from benchmarks.loads import LOG, MIB, AnyPlace, push
from benchmarks.remote.place import Kind, remote_place
from benchmarks.setting import KIB, Comparison, NotMeasured, Round, Setting
from benchmarks.soak import BESIDE_LIVE_BYTES_MAX, Soak, embedded, remote
from replog.bookie.serving import ServedBookie
from replog.log.log_writer import LogWriter
from replog.protocol.quorum import Quorum
from replog.runtime.nursery import for_each

SHARES = (10, 50, 80)  # of the maximal rate, in percent
_LOOK_S = 0.001  # at least, from one look at what is due to the next
_TRICKLE_S = 0.02
_TURNS = 3  # with upkeep, and as many without
_IDLE_PAUSE_S = 1.0  # until followers have read what there is, and wait
_ONE = Quorum(1, 1, 1)


async def at_rate(log: LogWriter, entries_per_s: float, seconds: float, entry_bytes: int) -> list[float]:
    """Pushes entries when they are due. How long after that each of them was confirmed; of those that were due at one look, the
    first one."""
    late_s: list[float] = []
    data = os.urandom(entry_bytes)
    started_s = trio.current_time()

    async def confirm(due_s: float) -> None:
        await log.flush()
        late_s.append(trio.current_time() - due_s)

    async with trio.open_nursery() as nursery:
        pushed = 0
        while True:
            now_s = trio.current_time() - started_s
            if now_s >= seconds and pushed:
                break
            # All that became due since the last look, so that the rate holds even if a look comes late.
            due = int(now_s * entries_per_s) + 1
            if due > pushed:
                due_s = started_s + pushed / entries_per_s
                for _ in range(due - pushed):
                    try:
                        log.push_nowait(data)
                    except trio.WouldBlock:
                        await log.push(data)
                pushed = due
                nursery.start_soon(confirm, due_s)
            # When the next one is due, not so long from now: what this loop itself takes would add up to lateness.
            await trio.sleep_until(started_s + max(pushed / entries_per_s, now_s + _LOOK_S))
    return late_s


async def _open_loop(place: AnyPlace, seconds: float, entries_per_s: float) -> dict[str, Figures]:
    found: dict[str, Figures] = {}
    async with place.client() as client, client.write_log(LOG) as log:
        appends_s: list[float] = []
        ends_s = clock() + seconds
        while not appends_s or clock() < ends_s:
            began_s = clock()
            await log.append(os.urandom(KIB))
            appends_s.append(clock() - began_s)
        found["append"] = percentiles(appends_s)
        for share in SHARES:
            rate = entries_per_s * share / 100
            late_s = await at_rate(log, rate, seconds, KIB)
            found[f"at {share} %"] = percentiles(late_s) | {"entries_per_s": rate}
        found["every 20 ms"] = percentiles(await at_rate(log, 1 / _TRICKLE_S, seconds, KIB))
    return found


def open_loop(setting: Setting, *, is_remote: bool) -> Round:
    """At shares of the rate that is reached with 1000 entries in flight, and one entry every 20 ms, beside lone appends."""
    place: AnyPlace = setting.remote(Kind()) if is_remote else setting.three
    most = push(place, setting.seconds, KIB, in_flight=1000)
    return {"most": most, **trio.run(_open_loop, place, setting.seconds, most["entries_per_s"])}


# -- upkeep -----------------------------------------------------------------------------------------------------------


_UPKEEP: dict[str, Callable[[ServedBookie], Awaitable[object]]] = {
    "garbage collection": ServedBookie.collect_garbage,
    "compaction": partial(ServedBookie.compact, is_major=True),
    "scrub": ServedBookie.scrub,
}


async def _look_after(client: replog.Client, name: str, runs: dict[str, int], ended: trio.Event) -> None:
    """One kind of upkeep again and again. The last run is not cancelled: it would go on beside what is measured next."""
    while not ended.is_set():
        if name == "audit":
            await client.admin.audit()
        else:
            for bookie in client.bookies:
                await _UPKEEP[name](bookie)
        runs[name] += 1
        await trio.lowlevel.checkpoint()


async def _upkeep(place: AnyPlace, window_s: float, ledgers: int, entries_per_s: float) -> dict[str, Figures]:
    """Windows with each kind of upkeep and without, in turns. Journal files become full and are indexed in all of them."""
    late_s: dict[str, list[float]] = {"without": [], **{name: [] for name in (*_UPKEEP, "audit")}}
    runs = dict.fromkeys(late_s, 0)
    async with place.client() as client, client.write_log(LOG) as log:
        left: list[int] = []

        async def write(_number: int) -> None:
            async with client.create_ledger() as writer:
                await writer.append(bytes(100))
            left.append(writer.ledger_id)

        await for_each(write, range(ledgers), 100)
        for _ in range(_TURNS):
            for name, into in late_s.items():
                # Scrubs and audits take long where there is much: what was pushed before goes.
                await client.trim_log(LOG, before=await log.roll())
                # What garbage collection and compaction find.
                for _ in range(min(len(left), ledgers // 20)):
                    await client.delete_ledger(left.pop())
                ended = trio.Event()
                async with trio.open_nursery() as nursery:
                    if name != "without":
                        nursery.start_soon(_look_after, client, name, runs, ended)
                    into += await at_rate(log, entries_per_s, window_s, KIB)
                    ended.set()
        for ledger_id in left:
            await client.delete_ledger(ledger_id)
    return {name: percentiles(each) | {"runs": runs[name]} for name, each in late_s.items()}


def upkeep(setting: Setting) -> Round:
    """At half the maximal rate, while bookies with many small ledgers look after themselves. Scrubs go as fast as they can: at
    their usual pace one of a window's entries would take minutes."""
    with tempfile.TemporaryDirectory(prefix="upkeep-", dir=setting.directory) as made:
        place = attrs.evolve(setting.three, directory=Path(made), storage_options="scrub_bytes_per_s=0")
        place.warm_up()
        most = push(place, setting.seconds, KIB, in_flight=1000)
        scale = setting.scale
        return trio.run(_upkeep, place, scale.upkeep_window_s, scale.upkeep_ledgers, most["entries_per_s"] / 2)


# -- a log that is trimmed --------------------------------------------------------------------------------------------


def trimmed(setting: Setting) -> Round:
    """A log that is written as fast as it goes and trimmed every ten seconds, with default options and from empty disks."""
    found: dict[str, Figures] = {}
    for name, run in (("processes", remote), ("embedded", embedded)):
        with tempfile.TemporaryDirectory(prefix="trimmed-", dir=setting.directory) as made:
            soak = Soak(Path(made), 0.0, is_told=False)
            bytes_per_s = trio.run(run, Path(made), soak, setting.scale.trimmed_s)
            found[name] = {"mib_per_s": bytes_per_s / MIB, "beside_live_mib": soak.most_beside_live_bytes / MIB}
    return found | {"limit": {"beside_live_mib": BESIDE_LIVE_BYTES_MAX / MIB}}


# -- idle followers ---------------------------------------------------------------------------------------------------


async def _idle(place: AnyPlace, followers: int, seconds: float) -> Figures:
    async with place.client() as client, client.write_log(LOG) as log, trio.open_nursery() as nursery:
        await log.append(bytes(100))
        seen = 0

        async def follow() -> None:
            nonlocal seen
            async with client.read_log(LOG, follow=True) as reader:
                async for _ in reader:
                    seen += 1

        for _ in range(followers):
            nursery.start_soon(follow)
        with trio.move_on_after(60):
            while seen < followers:  # noqa: ASYNC110 - nothing is measured yet
                await trio.sleep(0.01)
        if seen < followers:
            raise NotMeasured(f"{seen} of {followers} followers had the first record after a minute")
        await trio.sleep(min(_IDLE_PAUSE_S, seconds))
        meter = place.meter()
        await trio.sleep(seconds)
        figures = meter.figures(1)
        nursery.cancel_scope.cancel()
    return {"cpu_percent": figures["total_cpu_us"] / 1e4 * figures["entries_per_s"], "followers": followers}


def idle(setting: Setting) -> Round:
    """What a client and three bookie processes do while nobody writes: one follower, and many."""
    place, many = setting.remote(Kind()), setting.scale.idle_followers
    return {
        "one": trio.run(_idle, place, 1, setting.scale.idle_s),
        "many": trio.run(_idle, place, many, setting.scale.idle_s),
        "processor": {"cpu_percent": 100.0},
    }


# -- a killed bookie --------------------------------------------------------------------------------------------------


async def _fill(metastore: str, size_bytes: int) -> None:
    data = [os.urandom(64 * KIB)] * 64
    async with replog.connect(metastore, quorum=_ONE) as client, client.write_log(LOG) as log:
        for _ in range(max(1, size_bytes // (64 * KIB * len(data)))):
            await log.extend(data)


async def _first_append(metastore: str) -> None:
    async with replog.connect(metastore, quorum=_ONE) as client, client.write_log(LOG) as log:
        await log.append(bytes(KIB))


def killed(setting: Setting) -> Round:
    """A bookie process with so much in its journal is killed, and started again: until it serves, and until a takeover of the log
    that it holds has appended."""
    with (
        tempfile.TemporaryDirectory(prefix="killed-", dir=setting.directory) as made,
        remote_place(Path(made) / "bookies", 0, Kind(bookies=1)) as place,
    ):
        trio.run(_fill, place.metastore, setting.scale.killed_bytes)
        os.kill(place.process_ids[0], signal.SIGKILL)
        os.waitid(os.P_PID, place.process_ids[0], os.WEXITED | os.WNOWAIT)
        began_s = clock()
        with place.started_again(0):
            ready_s = clock() - began_s
            trio.run(_first_append, place.metastore)
            appended_s = clock() - began_s
    return {"killed": {"ready_s": ready_s, "appended_s": appended_s, "gib": setting.scale.killed_bytes / MIB / 1024}}


CASES: dict[str, Callable[[Setting], Round]] = {
    "open-loop": partial(open_loop, is_remote=False),
    "remote-open-loop": partial(open_loop, is_remote=True),
    "upkeep": upkeep,
    "trimmed": trimmed,
    "idle": idle,
    "killed": killed,
}
ONCE = {"upkeep", "trimmed", "idle", "killed"}  # long, with turns of their own
ALONE = {"remote-open-loop", *ONCE}  # they have directories of their own


def _late(case: str, where: str) -> list[Comparison]:
    found = []
    for name in (*(f"at {share} %" for share in SHARES), "every 20 ms"):
        for figure, title in (("p50_us", "p50"), ("p99_us", "p99"), ("p999_us", "p99.9")):
            found.append(
                Comparison(case, f"{where}, {name}, {title}", name, "append", figure, "p50_us", "us", at_least=False)
            )
    return found


COMPARISONS = [
    *_late("open-loop", "in process"),
    *_late("remote-open-loop", "over TCP"),
    *(
        Comparison("upkeep", f"beside {name}, p99.9", name, "without", "p999_us", "p999_us", "us", 2.0, at_least=False)
        for name in (*_UPKEEP, "audit")
    ),
    Comparison(
        "trimmed", "trimmed at full rate: processes", "processes", "embedded", "mib_per_s", "mib_per_s", "MiB/s"
    ),
    Comparison(
        "trimmed",
        "  on disks beside what is live",
        "processes",
        "limit",
        "beside_live_mib",
        "beside_live_mib",
        "MiB",
        1.0,
        at_least=False,
    ),
    Comparison(
        "idle", "CPU of followers that wait", "many", "processor", "cpu_percent", "cpu_percent", "%", at_least=False
    ),
    Comparison(
        "killed",
        "killed bookie: first append, and its start",
        "killed",
        "killed",
        "appended_s",
        "ready_s",
        "s",
        at_least=False,
    ),
]
