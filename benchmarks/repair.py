"""Repairs and audits: four bookie processes, of which one is killed and declared lost.

How fast its copies are made again beside what the disk copies alone, what that costs in CPU, how long audits take, and how much
later appends are confirmed while a repair runs at its usual pace: measured in turns, with the repair and without.
"""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import attrs
import trio

import replog
from benchmarks.figures import Figures, Meter, clock, percentiles
from benchmarks.loads import LOG, MIB
from benchmarks.remote.place import SPARE_FILES_MAX, Kind, RemotePlace, remote_place
from benchmarks.setting import GIB, KIB, Comparison, NotMeasured, Round, Setting
from replog.config.client import ClientTuning
from replog.protocol.quorum import Quorum
from replog.repair.progress import RepairProgress
from replog.runtime.nursery import for_each

BOOKIES = 4
QUORUM = Quorum(3, 3, 2)
_LEDGER_BYTES = 16 * MIB
_TURNS = 3  # with the repair, and as many without
_PER_LEDGERS = 10_000  # that a time of an audit is told for
_GONE_S = 60.0  # until a killed bookie is no longer announced
_FULL_SPEED = ClientTuning(
    repair_bytes_per_s=64 * GIB,
    repair_in_flight_bytes_max=16 * MIB,
    repair_fragments_at_once=8,
    audit_ledgers_at_once=32,
)


def raw_copy(directory: Path, size_bytes: int) -> Figures:
    """What the disk does alone: reads a file that is not in memory, and writes it into another one, durably."""
    block, source, target = os.urandom(MIB), directory / "raw-source", directory / "raw-target"
    with source.open("wb", buffering=0) as file:
        for _ in range(max(1, size_bytes // MIB)):
            file.write(block)
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    started_s = clock()
    with source.open("rb", buffering=0) as file, target.open("wb", buffering=0) as copy:
        while data := file.read(MIB):
            copy.write(data)
        os.fdatasync(copy.fileno())
    took_s = clock() - started_s
    size_mib = source.stat().st_size / MIB
    source.unlink()
    target.unlink()
    return {"mib_per_s": size_mib / took_s}


async def _write(client: replog.Client, ledgers: int, ledger_bytes: int, at_once: int) -> None:
    entries = [os.urandom(KIB)] * min(1000, max(1, ledger_bytes // KIB))

    async def write(_number: int) -> None:
        async with client.create_ledger() as writer:
            for _ in range(max(1, ledger_bytes // KIB // len(entries))):
                await writer.extend(entries)

    await for_each(write, range(ledgers), at_once)


async def _kill_one(place: RemotePlace, client: replog.Client) -> str:
    """Kills a bookie; returns its id."""
    before = {each.bookie_id for each in await client.admin.bookies()}
    os.kill(place.process_ids[0], signal.SIGKILL)
    with trio.move_on_after(_GONE_S):
        while len(left := {each.bookie_id for each in await client.admin.bookies()}) == len(before):  # noqa: ASYNC110
            await trio.sleep(0.1)
        return (before - left).pop()
    raise NotMeasured(f"a killed bookie was still announced after {_GONE_S} s")


async def _appends_in_turns(place: RemotePlace, client: replog.Client, window_s: float) -> dict[str, Figures]:
    """Appends one by one, while a repair at its usual pace runs, and while it does not."""
    durations: dict[str, list[float]] = {"appends alone": [], "appends beside": []}
    async with (
        replog.connect(place.metastore, quorum=QUORUM) as repairer,
        client.write_log(LOG) as log,
    ):
        data = os.urandom(KIB)

        async def append(into: list[float]) -> None:
            ends_s = clock() + window_s
            while not into or clock() < ends_s:
                started_s = clock()
                await log.append(data)
                into.append(clock() - started_s)

        for _ in range(_TURNS):
            await append(durations["appends alone"])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(repairer.admin.repair)
                await append(durations["appends beside"])
                # What it has copied stays.
                nursery.cancel_scope.cancel()
    return {name: percentiles(each) | {"appends": len(each)} for name, each in durations.items()}


async def _copying(place: RemotePlace) -> dict[str, Figures]:
    """The rest of the repair, as fast as it goes."""
    told: list[RepairProgress] = []
    async with replog.connect(place.metastore, options=_FULL_SPEED, quorum=QUORUM) as client:
        meter = Meter(*place.process_ids[1:])
        report = await client.admin.repair(progress=told.append)
        copying = [each for each in told if each.stage == "copy"][-1:]
        if report.under_replicated or not copying or not copying[0].copied_bytes:
            raise NotMeasured(f"{report.under_replicated} fragments still lack copies, of {report.fragments}")
        copied_bytes, took_s = copying[0].copied_bytes, copying[0].elapsed_s
        figures = meter.figures(copied_bytes)
        return {
            "repair": {
                "mib_per_s": copied_bytes / MIB / took_s,
                "cpu_s_per_gib": figures["total_cpu_us"] / 1e6 * GIB,
                "client_cpu_s_per_gib": figures["client_cpu_us"] / 1e6 * GIB,
                "copied_mib": copied_bytes / MIB,
            }
        }


async def _audits(place: RemotePlace, ledgers: int) -> dict[str, Figures]:
    """The first audit of a client, and the next one, of many small ledgers."""
    found = {}
    async with replog.connect(place.metastore, quorum=QUORUM) as client:
        await _write(client, ledgers, KIB, 32)
        for name in ("first audit", "next audit"):
            started_s = clock()
            meter = Meter(*place.process_ids[1:])
            report = await client.admin.audit()
            cpu_us = meter.figures(report.ledgers)["total_cpu_us"]
            found[name] = {
                "s_per_10k": (clock() - started_s) / report.ledgers * _PER_LEDGERS,
                "cpu_s_per_10k": cpu_us / 1e6 * _PER_LEDGERS,
                "unchanged": report.unchanged,
            }
    return found


async def _measure(place: RemotePlace, setting: Setting) -> dict[str, Figures]:
    scale = setting.scale
    async with replog.connect(place.metastore, quorum=QUORUM) as client:
        ledger_bytes = min(_LEDGER_BYTES, scale.repair_bytes // 16)
        await _write(client, scale.repair_bytes // ledger_bytes, ledger_bytes, 4)
        victim = await _kill_one(place, client)
        await client.admin.declare_lost([victim])
        found = await _appends_in_turns(place, client, scale.repair_window_s)
    found |= await _copying(place)
    return found | await _audits(place, scale.repair_ledgers)


def repair(setting: Setting) -> Round:
    """A bookie is lost: its copies are made again, and everything is audited."""
    kind = attrs.evolve(Kind(), bookies=BOOKIES)
    with tempfile.TemporaryDirectory(prefix="repair-", dir=setting.directory) as made:
        raw = raw_copy(Path(made), setting.scale.repair_bytes // 2)
        spare_files = SPARE_FILES_MAX if setting.scale.repair_bytes >= GIB else 0
        with remote_place(Path(made) / "bookies", spare_files, kind) as place:
            return {"disk": raw, **trio.run(_measure, place, setting)}


CASES = {"repair": repair}


def _at_most(title: str, measured: str, against: str, figure: str, unit: str, goal: float | None = None) -> Comparison:
    return Comparison("repair", title, measured, against, figure, figure, unit, goal, at_least=False)


def _share(title: str, measured: str, figure: str, of: str, unit: str) -> Comparison:
    return Comparison("repair", title, measured, measured, figure, of, unit, at_least=False)


COMPARISONS = [
    Comparison(
        "repair", "copies made again, and a file copied", "repair", "disk", "mib_per_s", "mib_per_s", "MiB/s", 0.5
    ),
    _at_most("append beside a repair, p99", "appends beside", "appends alone", "p99_us", "us", 2.0),
    _at_most("audit of 10 000 ledgers again, and the first", "next audit", "first audit", "s_per_10k", "s"),
    _share("  CPU of the first audit, and its time", "first audit", "cpu_s_per_10k", "s_per_10k", "s"),
    _share("CPU for a GiB in the repairer, and in all", "repair", "client_cpu_s_per_gib", "cpu_s_per_gib", "s"),
]
