"""The picture of a cluster, character by character, at the widths that terminals have."""

from __future__ import annotations

import attrs
import pytest

from replog.cli.top.model import Figures, Latencies, Row, State
from replog.cli.top.rendering import ORDERS, picture
from replog.cli.top.screen import View

FIGURES = Figures(
    uptime_s=7500.0,
    entries_rate=123_456.0,
    added_bytes_rate=120.5 * (1 << 20),
    adds_rate=1234.0,
    reads_rate=3.0,
    queued_requests=4.0,
    queued_bytes=300_000.0,
    used_bytes=float(40 << 30),
    free_bytes=float(900 << 30),
    ledgers=1234.0,
    active_ledgers=12.0,
    fence_requests=3.0,
    recovery_reads=45.0,
    damaged_batches=0.0,
    connections=7.0,
)
BUSY = Row(
    bookie_id="bookie-1111aaaabbbbcccc",
    endpoints=("tcp:10.0.0.1:3181",),
    state=State.WRITABLE,
    version="1.0",
    figures=FIGURES,
    commit=Latencies(0.00042, 0.0123),
    answer=Latencies(0.0011, 0.045),
    history=tuple(float(number % 9) for number in range(40)),
)
FULL = attrs.evolve(
    BUSY,
    bookie_id="bookie-2222aaaabbbbcccc",
    state=State.READ_ONLY,
    figures=attrs.evolve(FIGURES, entries_rate=0.0, free_bytes=float(200 << 20), queued_bytes=0.0),
    commit=Latencies(),
    history=(),
)
GONE = Row(
    bookie_id="bookie-3333aaaabbbbcccc",
    state=State.UNREACHABLE,
    since_s=75.0,
    problem="bookie bookie-3333aaaabbbbcccc: it is not announced in the metastore: it is down, or elsewhere",
)
NEW = Row(bookie_id="bookie-4444aaaabbbbcccc")
ROWS = [BUSY, FULL, GONE, NEW]
TOTAL = attrs.evolve(BUSY, bookie_id="", figures=attrs.evolve(FIGURES, uptime_s=None))


def drawn(rows: list[Row], view: View, problem: str = "") -> list[str]:
    return [line.plain.rstrip() for line in picture(rows, TOTAL, problem, view)]


GOLDEN_80 = """\
replog top  lmdb:/m  4 bookies: 1 writable, 1 read-only, 1 unreachable, 1 conne…
all bookies  entries/s 123k  bytes/s 120.5 MiB  adds/s 1.23k  reads/s 3

bookie           state        entries/s     bytes/s  commit p50 p99       queue
bookie-1111aaaa  writable          123k   120.5 MiB      420us 12ms   293.0 KiB
bookie-2222aaaa  read-only            0   120.5 MiB               -         0 B
bookie-3333aaaa  unreachable  for 1m15s: it is not announced in the metastore: …
bookie-4444aaaa  connecting


q quit   p pause   s order: bookie   l logs"""

GOLDEN_120 = """\
replog top  lmdb:/m  2 bookies: 1 writable, 1 unreachable                                                       12:34:56
all bookies  entries/s 123k  bytes/s 120.5 MiB  adds/s 1.23k  reads/s 3  commit p50 p99 420us 12ms  fences 3
who is announced is not known: no such host

bookie           state        entries/s     bytes/s  commit p50 p99  answer p50 p99       queue        used        free
bookie-1111aaaa  writable          123k   120.5 MiB      420us 12ms      1.1ms 45ms   293.0 KiB    40.0 GiB   900.0 GiB
bookie-3333aaaa  unreachable  for 1m15s: it is not announced in the metastore: it is down, or elsewhere

q quit   p pause   s order: bookie   l logs"""

WIDE_ROW = (
    "bookie-1111aaaa  writable          123k   120.5 MiB   1.23k        3      420us 12ms      1.1ms 45ms   293.0 KiB"
    "    40.0 GiB   900.0 GiB      12/1.23k             3/45      7        0   2h05m  ▁▃▅▇▅▂▄▆█▁▃▅▇▅▂▄▆█▁▃"
)


def test_the_whole_picture() -> None:
    assert "\n".join(drawn(ROWS, View(80, 11, title="lmdb:/m", clock="12:34:56"))) == GOLDEN_80


def test_a_wider_picture_has_more_columns() -> None:
    view = View(120, 9, title="lmdb:/m", clock="12:34:56")
    assert "\n".join(drawn([BUSY, GONE], view, "no such host")) == GOLDEN_120


def test_the_widest_has_everything() -> None:
    lines = drawn(ROWS, View(230, 11))
    assert lines[4] == WIDE_ROW
    assert "recovery reads 45  ▁▂▃" in lines[1]
    assert lines[3].endswith("damaged      up  the last minute")


@pytest.mark.parametrize("width", [1, 10, 39, 79, 100, 133, 200, 300])
@pytest.mark.parametrize("height", [1, 2, 5, 8, 40])
def test_picture_never_exceeds_the_terminal(width: int, height: int) -> None:
    for rows in ([], ROWS, [attrs.evolve(BUSY, bookie_id=f"{number:032}") for number in range(100)]):
        for problem in ("", "no metastore"):
            lines = drawn(rows, View(width, height, title="x" * 50, clock="12:34:56"), problem)
            assert len(lines) <= height
            assert max(map(len, lines), default=0) <= width


def test_bookies_beyond_the_screen_are_counted() -> None:
    rows = [attrs.evolve(BUSY, bookie_id=f"{number:032}") for number in range(100)]
    lines = drawn(rows, View(80, 15))
    assert len([line for line in lines if "writable" in line and "bookies" not in line]) == 9
    assert "... and 91 more" in "\n".join(lines)


def test_picture_is_as_long_as_needed_without_keys() -> None:
    lines = drawn([BUSY], View(80, 1000, has_keys=False))
    assert len(lines) == 5
    assert "quit" not in "\n".join(lines)


@pytest.mark.parametrize(
    ("order", "first"),
    [("bookie", BUSY), ("entries/s", BUSY), ("commit p99", BUSY), ("queue", BUSY), ("least free", FULL)],
)
def test_orders(order: str, first: Row) -> None:
    sort = [each.name for each in ORDERS].index(order)
    lines = drawn(list(reversed(ROWS)), View(80, 20, sort=sort))
    assert lines[4].startswith(first.bookie_id[:15])
    assert lines[6].startswith(GONE.bookie_id[:15])  # of whom nothing is known
    assert f"s order: {order}   l logs" in lines[-1]


def test_a_pause_shows() -> None:
    lines = drawn([BUSY], View(80, 10, is_paused=True, clock="12:34:56"))
    assert lines[0].endswith("PAUSED")
    assert "p go on" in lines[-1]


def test_terminal_without_unicode_gets_no_sparklines() -> None:
    assert all(line.isascii() for line in drawn(ROWS, View(300, 11, is_unicode=False)))


def test_ids_with_the_same_beginning_are_shown_apart() -> None:
    twin = attrs.evolve(BUSY, bookie_id=BUSY.bookie_id[:-1] + "d")
    lines = drawn([BUSY, twin], View(80, 10))
    assert lines[4].split()[0] != lines[5].split()[0]


def test_empty_cluster_says_so() -> None:
    assert any("no bookie is announced" in line for line in drawn([], View(80, 10)))


def test_repairs_have_a_line_where_bookies_repair() -> None:
    figures = attrs.evolve(FIGURES, repair_under_replicated=12.0, repair_fragments_left=0.0)
    total = attrs.evolve(TOTAL, figures=figures)
    lines = [line.plain.rstrip() for line in picture(ROWS, total, "", View(100, 20))]
    assert lines[2] == "repairs  12 fragments lack copies"
    healing = attrs.evolve(
        figures, repair_fragments_left=10.0, repair_fragments_rate=0.5, repair_bytes_rate=float(31 << 20)
    )
    lines = [line.plain.rstrip() for line in picture(ROWS, attrs.evolve(total, figures=healing), "", View(100, 20))]
    assert lines[2] == "repairs  12 fragments lack copies  10 to fill  31.0 MiB/s copied  20s left"


def test_members_of_a_metastore_have_a_line() -> None:
    def row(row: Row, **figures: float) -> Row:
        return attrs.evolve(row, figures=attrs.evolve(FIGURES, **figures))

    leads = row(BUSY, metastore_leads=1.0, metastore_stopped=0.0, metastore_survives=1.0)
    follows = row(FULL, metastore_leads=0.0, metastore_stopped=0.0)
    assert drawn([leads, follows, NEW], View(100, 20))[2] == "metastore  led by bookie-1111aaaa  survives the loss of 1"
    stopped = row(FULL, metastore_leads=0.0, metastore_stopped=1.0)
    assert (
        drawn([follows, attrs.evolve(leads, state=State.UNREACHABLE)], View(100, 20))[2] == "metastore  no member leads"
    )
    assert drawn([stopped], View(100, 20))[2] == "metastore  no member leads  stopped: bookie-2222aaaa"
