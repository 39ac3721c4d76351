"""The faults of docs/concepts/guarantees.md as trials: each cell of its table that real processes can show, and how it ends.

`python -m tests.failures.storage_faults --cells` carries them out. Where E > Qw, it depends on the last entry whether two bookies
are both of its write set: then there are two outcomes.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from replog.protocol.quorum import Quorum
from tests.failures.storage_trials import FILES_STORAGE, LMDB_STORAGE, Outcome, Plan

QUORUMS = (Quorum(3, 3, 2), Quorum(5, 3, 2), Quorum(2, 2, 2), Quorum(1, 1, 1))
END_LOST = ("truncated", "tail zeroed", "last record flipped", "journal deleted", "journals swapped")
MAP_LOST = ("map truncated", "meta page damaged", "pages zeroed")

ANSWERED, DECLARED, WAITED, REFUSED, LOST = (
    Outcome.ANSWERED,
    Outcome.DECLARED,
    Outcome.WAITED,
    Outcome.REFUSED,
    Outcome.LOST,
)


@attrs.frozen
class Cell:
    """One row's fault with one quorum: `name` is `row, fault, (E, Qw, Qa)`."""

    row: str
    plan: Plan
    expected: tuple[Outcome, ...]

    @property
    def name(self) -> str:
        quorum = self.plan.quorum
        return f"{self.row}, {self.plan.fault}, ({quorum.ensemble}, {quorum.write}, {quorum.ack})"


def _plan(fault: str, quorum: Quorum, **changes: object) -> Plan:
    """Three hundred entries, all processes killed, all back before the takeover, bookie 0 damaged."""
    plan = Plan(
        seed=16,
        storage=LMDB_STORAGE if fault in MAP_LOST else FILES_STORAGE,
        quorum=quorum,
        bookies=quorum.ensemble,
        fault=fault,
        entries=300,
        entry_bytes_max=900,
        extend_max=6,
        roll_entries=None,
        copied_at=150,
        lagging=None,
        lags_from=200,
        is_writing_when_killed=False,
        is_idle_before=False,
        is_clean_stop=False,
        damaged=(0,),
        absent=None,
        late=(),
        late_s=0.0,
        is_damaged_restarted=False,
        waits_for_bookies=True,
        is_takeover_killed=False,
        is_default_wait=False,
    )
    return attrs.evolve(plan, **changes)  # type: ignore[arg-type]


def _cells() -> list[Cell]:
    three, striped, two, one = QUORUMS
    cells: list[Cell] = []

    def add(row: str, fault: str, outcomes: Mapping[Quorum, Outcome | tuple[Outcome, ...]], **changes: object) -> None:
        for quorum, expected in outcomes.items():
            allowed = expected if isinstance(expected, tuple) else (expected,)
            cells.append(Cell(row, _plan(fault, quorum, **changes), allowed))

    all_of_them = dict.fromkeys(QUORUMS, ANSWERED)
    most = {three: ANSWERED, striped: ANSWERED}
    add("killed", "none", all_of_them, is_writing_when_killed=True)
    add("stopped", "none", all_of_them, is_clean_stop=True)
    add("power lost", "power lost", all_of_them)
    add("power lost, one absent", "power lost", most, absent=1)
    add("killed, one absent", "none", most, absent=1)
    add("two restart late", "none", {three: ANSWERED}, late=(1, 2), late_s=3.0)
    add("wrong clocks", "none", {three: ANSWERED, one: ANSWERED}, has_wrong_clocks=True)
    add("end lost", "truncated", {**most, two: ANSWERED, one: REFUSED})
    for fault in (*END_LOST, *MAP_LOST, "mark deleted, truncated"):
        add("end lost, one lags", fault, most if fault == "truncated" else {three: ANSWERED}, lagging=2)
    add("end lost, one absent", "truncated", {three: WAITED, striped: (ANSWERED, WAITED), two: WAITED}, absent=1)
    add("end lost, one absent", "journal deleted", {three: WAITED}, absent=1)
    add("two ends lost", "truncated", {three: REFUSED, striped: (ANSWERED, REFUSED), two: REFUSED}, damaged=(0, 1))
    add("two marks lost", "mark deleted", {**most, two: ANSWERED}, damaged=(0, 1))
    for fault in ("truncated", "last record flipped", "meta page damaged", "mark deleted, truncated"):
        add("fence lost", fault, {three: ANSWERED}, lagging=2, is_fence_lost=True)
    add("disk lost", "disk lost", {**most, two: ANSWERED, one: REFUSED})
    add("disk lost, one lags", "disk lost", most, lagging=2)
    add("disk lost, one absent", "disk lost", {three: WAITED, striped: WAITED, two: WAITED}, absent=1)
    add("two disks lost", "disk lost", {three: REFUSED, striped: REFUSED, two: REFUSED}, damaged=(0, 1))
    add("declared lost", "truncated", {three: DECLARED}, is_idle_before=True, absent=1, declared=(1,))
    add("declared lost", "disk lost", {three: DECLARED}, is_idle_before=True, damaged=(0, 1), declared=(0, 1))
    add("no trace", "older copy", {**most, two: ANSWERED, one: LOST})
    add("no trace, one lags", "older copy", most, lagging=2)
    add("no trace, one lags, one absent", "older copy", {three: LOST}, lagging=2, absent=1)
    return cells


CELLS = {cell.name: cell for cell in _cells()}
