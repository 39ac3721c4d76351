"""What an entry costs with more and more copies, and with ensembles of other shapes. 1 KiB, Qa of the table."""

from __future__ import annotations

from collections.abc import Mapping

import trio

from benchmarks.figures import Figures
from benchmarks.remote.place import Kind
from benchmarks.setting import Round, Setting
from benchmarks.shapes.loads import OPTIONS, append_each_way, ends, scan
from benchmarks.shapes.places import AnyPlace, embedded, majority
from replog.protocol.quorum import Quorum

BOOKIES = 6  # of which ensembles are chosen
SHAPES = tuple(
    Quorum(*each) for each in ((3, 3, 2), (3, 3, 3), (3, 2, 2), (4, 2, 2), (5, 3, 2), (6, 3, 2), (6, 2, 2), (6, 6, 4))
)


def name_of(quorum: Quorum) -> str:
    """As the documentation writes it."""
    return f"{quorum.ensemble},{quorum.write},{quorum.ack}"


def copies_embedded(setting: Setting) -> Round:
    """One to nine bookies in this process, all of which get each entry; most of them confirm it."""
    counts = setting.scale.shapes_bookies
    with embedded(setting, counts[-1]) as place:
        return _copies({count: place.first(count) for count in counts}, setting.seconds)


def copies_remote(setting: Setting) -> Round:
    """The same with bookie processes."""
    counts = setting.scale.shapes_remote_bookies
    return _copies({count: setting.remote(Kind(bookies=count)) for count in counts}, setting.seconds)


def _copies(places: Mapping[int, AnyPlace], seconds: float) -> Round:
    found = {}
    for count, place in places.items():
        figures = trio.run(_measure, place, majority(count), 0, seconds)
        found[f"bookies {count}"] = figures | {"copy_cpu_us": figures["push_cpu_us"] / count}
    return ends(found, "bookies", tuple(places))


def shapes(setting: Setting) -> Round:
    """Ensembles of each of `SHAPES`, chosen of six bookies in this process."""
    with embedded(setting, BOOKIES) as place:
        entries = setting.scale.shapes_entries * 10
        return {name_of(each): trio.run(_measure, place, each, entries, setting.seconds) for each in SHAPES}


async def _measure(place: AnyPlace, quorum: Quorum, scanned: int, seconds: float) -> Figures:
    async with place.client(OPTIONS) as client:
        async with client.create_ledger(quorum=quorum) as writer:
            found = await append_each_way(place, writer, seconds)
        return found | (await scan(place, client, quorum, scanned, seconds) if scanned else {})
