"""Whether a log of many archived segments is planned, opened and shown as fast as one whose segments bookies have.

The two logs differ in their ledgers' records alone. Only the first ledger has an entry, and the archive an object of it: nothing
else may be needed of the store.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from pathlib import Path

import trio

import replog
from benchmarks.figures import Figures, clock
from benchmarks.metastore.filling import create_ledgers, create_log
from benchmarks.setting import Comparison, NotMeasured, Round, Setting
from benchmarks.storage.stores import fresh
from replog.api.archives import archiver_of
from replog.cli.log.looking import facts_of_segments
from replog.protocol.quorum import Quorum
from replog.registry import Registry
from replog.runtime.collector import no_collections
from replog.spark.extents import Survey

_LOG = "log"
_DATA = b"x" * 1000
_TIMES = 5
_NO_MORE_THAN = 1.2

Measured = Callable[[replog.Client], Awaitable[object]]


def measure(setting: Setting) -> Round:
    """Both logs, in turns."""
    with fresh(setting.directory, "archived") as directory:
        return trio.run(_measure, directory, setting.scale.archived_segments)


async def _measure(directory: Path, segments: int) -> dict[str, Figures]:
    places = {"bookies": directory / "bookies", "archived": directory / "archive"}
    for name, place in places.items():
        await _fill(place, segments, is_archived=name == "archived")
    found: dict[str, dict[str, list[float]]] = {name: {} for name in places}
    for turn in range(_TIMES):
        for name in sorted(places, reverse=bool(turn % 2)):
            for figure, took_ms in (await _look(places[name], segments)).items():
                found[name].setdefault(figure, []).append(took_ms)
    return {name: {figure: statistics.median(each) for figure, each in all_.items()} for name, all_ in found.items()}


async def _fill(place: Path, segments: int, *, is_archived: bool) -> None:
    """Makes a log of so many segments, the first of which has an entry."""
    archive = ""
    async with replog.embed(place / "wal") as client:
        async with client.create_ledger(quorum=Quorum(1, 1, 1)) as writer:
            await writer.append(_DATA)
        first = writer.ledger_id
        contents = (await client.ledger_metadata(first)).contents
        if is_archived:
            (place / "store").mkdir()
            added = await client.admin.add_archive(f"file:{place / 'store'}")
            await archiver_of(client._opened).archive(first, added.archive_id, b"")
            (fragment,) = (await client.ledger_metadata(first)).fragments
            archive = fragment.archive
    assert contents is not None, "the client that closes a ledger knows what it holds"
    metastore = Registry().open_metastore(f"lmdb:{place / 'wal' / 'metadata'}")
    try:
        await create_ledgers(metastore, range(first + 1, first + segments), _LOG, contents, archive)
        await create_log(metastore, _LOG, range(first, first + segments), contents)
    finally:
        await metastore.aclose()


async def _look(place: Path, segments: int) -> dict[str, float]:
    """How long each thing takes, in ms, in a client that has done nothing else before."""
    found = {}
    looks: Mapping[str, Measured] = {
        "open_ms": lambda client: _open(client, segments),
        "first_ms": _read_first,
        "plan_ms": _plan,
        "summary_ms": lambda client: client.log_summary(_LOG, bounded=True),
        "show_ms": lambda client: facts_of_segments(client, _LOG, b"", sizes=True),
    }
    async with replog.embed(place / "wal") as client:
        for figure, look in looks.items():
            began_s = clock()
            await look(client)
            found[figure] = (clock() - began_s) * 1e3
    return found


async def _plan(client: replog.Client) -> None:
    """As a batch query of Spark's, up to its tasks; without PySpark."""
    survey = Survey(client, _LOG, b"", 0.0, True)
    with no_collections():
        head = await survey.head()
        async with aclosing(survey.extents(replog.Position(head.first_segment_number, 0), head)) as found:
            extents = [each async for each in found]
        if not await survey.measured(extents):
            raise NotMeasured("a plan of a log with entries has none")


async def _open(client: replog.Client, segments: int) -> None:
    """At its end: a reader there needs no entry."""
    async with client.read_log(_LOG, after=replog.Position(segments, 0)) as reader:
        async for record in reader:
            raise NotMeasured(f"{record.position} was read behind the end")


async def _read_first(client: replog.Client) -> None:
    async with client.read_log(_LOG) as reader:
        if (await reader.receive()).data != _DATA:
            raise NotMeasured("another entry was read than written")


CASES: dict[str, Callable[[Setting], Round]] = {"archived-segments": measure}

COMPARISONS = tuple(
    Comparison("archived-segments", title, "archived", "bookies", figure, figure, "ms", goal, at_least=False)
    for title, figure, goal in (
        ("archived segments, and not: plan a batch query", "plan_ms", _NO_MORE_THAN),
        ("  open a reader at the end", "open_ms", _NO_MORE_THAN),
        ("  read the first entry, of a directory", "first_ms", None),
        ("  summary: `top`, `log list --long`", "summary_ms", None),
        ("  `log show`", "show_ms", _NO_MORE_THAN),
    )
)
