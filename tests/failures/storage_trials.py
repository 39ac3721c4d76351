"""One trial of real processes: entries are confirmed, all processes are killed, one bookie's storage is damaged at rest, and the
log is taken over. Everything about a trial is drawn from its seed.

    (E, Qw, Qa)     of the log; there are E bookies, or one more
    damaged         the storages of these are damaged while nothing runs
    lagging         this bookie dies at some entry before that, or none
    absent          this bookie stays away from the first takeover, or none
    late            these come back so many seconds after the others

Rule: every confirmed entry is in the log, in order. A takeover that can tell where the log ends must say so (`may_refuse`);
another one raises an error that names bookies, and is repeated with all members.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Set
from enum import StrEnum

import attrs

from replog.protocol.quorum import Quorum
from tests.failures.damages import COPIED, FILES, HARMLESS, KNOWN_LOSSES, LMDB, OF_DISKS, WITHOUT_TRACE

QUORUMS = {(3, 3, 2): 6, (4, 3, 2): 2, (5, 3, 2): 2, (3, 2, 2): 1, (5, 4, 3): 1}
FILES_STORAGE = "files?journal_file_bytes=64KiB"
LMDB_STORAGE = "lmdb"
LATE_S = (1.0, 3.0)


@attrs.frozen(kw_only=True)
class Plan:
    """What one trial does."""

    seed: int
    storage: str
    quorum: Quorum
    bookies: int
    fault: str
    entries: int  # to be confirmed
    entry_bytes_max: int
    extend_max: int  # entries appended at once
    roll_entries: int | None
    copied_at: int | None  # the entry at which the older copy is taken
    lagging: int | None
    lags_from: int
    is_writing_when_killed: bool
    is_idle_before: bool  # long enough for the writer to publish its LAC
    is_clean_stop: bool  # of the bookies, else they are killed with the writer
    damaged: tuple[int, ...]
    absent: int | None
    late: tuple[int, ...]
    late_s: float
    is_damaged_restarted: bool  # once more, by kill -9, before the takeover
    waits_for_bookies: bool  # the takeover begins when they serve, else while they start
    is_takeover_killed: bool  # the first of two
    is_default_wait: bool  # for silent members, else a shorter one
    declared: tuple[int, ...] = ()  # lost, by the operator, after a takeover was refused
    is_fence_lost: bool = False  # with the end of the damaged storage, see `carrying_out`; the writer wakes after that
    has_wrong_clocks: bool = False  # each process another one, some decades off

    def describe(self) -> str:
        """For people."""
        words = {
            key: value for key, value in attrs.asdict(self, recurse=False).items() if value not in (None, False, ())
        }
        return ", ".join(f"{key}={value}" for key, value in words.items())


def plan_of(seed: int, fault: str | None = None, storage: str | None = None) -> Plan:
    """The trial of this seed; with this fault, if one is named."""
    chance = random.Random(seed)
    storages = (FILES_STORAGE, LMDB_STORAGE)
    kind = chance.choice((FILES_STORAGE, FILES_STORAGE, LMDB_STORAGE))
    if storage is not None:
        kind = next(each for each in storages if each.startswith(storage))
    faults = FILES if kind == FILES_STORAGE else LMDB
    shape = chance.choices(list(QUORUMS), list(QUORUMS.values()))[0]
    quorum = Quorum(*shape)
    bookies = quorum.ensemble + (chance.random() < (0.8 if quorum.write == quorum.ack else 0.15))
    drawn = chance.choice(list(faults))
    name = fault if fault in faults else drawn
    is_long = name == "journals swapped"  # there must be two
    entries = chance.randint(300 if is_long else 60, 400)
    order = chance.sample(range(bookies), bookies)
    lags = chance.random() < 0.75 and (quorum.write > quorum.ack or bookies > quorum.ensemble)
    presence = chance.choices(("all", "absent", "late"), (6, 2, 3))[0] if name not in WITHOUT_TRACE else "all"
    another = chance.choice(order[1:])
    is_fence_lost = shape == (3, 3, 2) and bookies == 3 and lags and name in KNOWN_LOSSES and chance.random() < 0.2
    if is_fence_lost:  # no roll: a writer that is stopped amid a change of metadata holds up others
        presence = "all"
    is_declared = presence == "absent" and not lags and quorum.write > 2 and chance.random() < 0.5
    return Plan(
        seed=seed,
        storage=kind,
        quorum=quorum,
        bookies=bookies,
        fault=name,
        entries=entries,
        entry_bytes_max=900 if is_long else chance.choice((60, 300, 900)),
        extend_max=chance.choice((1, 6, 6 if is_long else 24)),
        roll_entries=entries // 3 if chance.random() < 0.2 and not is_fence_lost else None,
        copied_at=chance.randint(1, entries - 1) if name in COPIED else None,
        lagging=order[1] if lags else None,
        lags_from=chance.randint(1, entries - 1),
        is_writing_when_killed=chance.random() < 0.3,
        is_idle_before=chance.random() < 0.1 or is_declared,  # each copy is there
        is_clean_stop=chance.random() < 0.15,
        damaged=(order[0],),
        absent=another if presence == "absent" else None,
        late=(another,) if presence == "late" else (),
        late_s=chance.uniform(*LATE_S),
        is_damaged_restarted=chance.random() < 0.25,
        waits_for_bookies=name in WITHOUT_TRACE or chance.random() < 0.5,
        is_takeover_killed=chance.random() < 0.1,
        is_default_wait=chance.random() < 0.25,
        declared=(another,) if is_declared else (),
        is_fence_lost=is_fence_lost,
    )


def may_refuse(
    plan: Plan,
    *,
    away: Set[int],
    declared: Set[int] = frozenset(),
    is_accepted: bool = False,
) -> bool:
    """Whether a takeover need not succeed (R10): not all members came, and some write set has fewer than Qw - Qa + 1 members
    that came and can vouch for what they have; or a new ledger can't have enough bookies (C7). Who is late is waited for (R12),
    who is declared lost is not (B8a). With a lost disk its bookie never comes.

    All bookies are taken for members here, so a takeover may be answered although this is true."""
    quorum, damaged = plan.quorum, set(plan.damaged)
    gone = damaged - declared if plan.fault in OF_DISKS else set()
    missing = len(away)
    if plan.bookies - missing < quorum.ensemble and quorum.write - missing < max(quorum.ack, quorum.negatives_needed):
        return True
    if declared and away | gone:
        return True  # all others are needed (B8a)
    if not away and not gone:
        return plan.fault in KNOWN_LOSSES and len(damaged | declared) >= quorum.ack and not is_accepted
    unable = away | gone | (set() if plan.fault in HARMLESS else damaged)  # the worst write set has all of them
    return quorum.write - len(unable) < quorum.negatives_needed


class Outcome(StrEnum):
    """How a trial ended."""

    ANSWERED = "answered"
    DECLARED = "declared"  # refused, rightly, and answered when bookies were declared lost
    WAITED = "waited"  # refused, rightly, and answered when all members were back
    REFUSED = "refused"  # rightly, even then
    LOST = "lost"  # what was confirmed is missing, changed or out of order
    STUCK = "stuck"  # refused, where it had to be answered
    FAILED = "failed"  # another error than those which say that bookies are missing
    SKIPPED = "skipped"  # the storage has nothing of the kind that is damaged


BAD = (Outcome.LOST, Outcome.STUCK, Outcome.FAILED)


@attrs.frozen(kw_only=True)
class Result:
    """What came of one trial."""

    seed: int
    storage: str
    fault: str
    outcome: Outcome
    name: str = ""  # of the cell, or the seed
    what: str = ""  # for people
    damage: str = ""
    did_damaged_start: bool = True
    took_s: float = 0.0


AFTER = 3  # entries that each takeover appends
AFTER_BEGINS = 1_000_000  # their numbers: the first takeover's from here on, the second's from twice as much on


def lost_entries(confirmed: Mapping[int, str], found: list[tuple[str, int]], takeovers: int) -> str:
    """What of the confirmed entries (position by number) is not in the log as it should be; "" if all is well.

    What was appended but not confirmed may be there or not, in order and without a gap. So may be what earlier takeovers
    appended; the last one confirmed all of its entries."""
    numbers = [number for _, number in found]
    missing = sorted(set(confirmed) - set(numbers))
    if missing:
        return f"{len(missing)} of {len(confirmed)} confirmed entries are missing: {missing[0]} to {missing[-1]}"
    if -1 in numbers:
        return f"the {numbers.index(-1)}th entry is not as it was appended"
    begin = 0
    for writer in range(takeovers + 1):
        begin = writer * AFTER_BEGINS
        mine = [number for number in numbers if number // AFTER_BEGINS == writer]
        if mine != list(range(begin, begin + len(mine))):
            return f"out of order, twice or with a gap, from the {writer}th writer: {mine[:3]} to {mine[-8:]}"
    if numbers != sorted(numbers) or numbers[-AFTER:] != list(range(begin, begin + AFTER)):
        return f"writers out of order, or the last takeover's entries are missing: {numbers[-3 * AFTER :]}"
    places = {number: position for position, number in found}
    moved = [number for number, position in confirmed.items() if places[number] != position]
    return f"entries {moved[:5]} are not at the positions that were confirmed" if moved else ""


def report(results: list[Result]) -> str:
    """A table of outcomes by fault, for people."""
    kinds = sorted({(each.storage.partition("?")[0], each.fault) for each in results})
    width = max(len(" ".join(kind)) for kind in kinds)
    lines = ["  ".join(["fault".ljust(width), *(str(each).rjust(8) for each in Outcome), "no start".rjust(8)])]
    for storage, fault in kinds:
        mine = [each for each in results if each.fault == fault and each.storage.startswith(storage)]
        counts = [sum(each.outcome is outcome for each in mine) for outcome in Outcome]
        counts.append(sum(not each.did_damaged_start for each in mine))
        lines.append("  ".join([f"{storage} {fault}".ljust(width), *(str(count).rjust(8) for count in counts)]))
    totals = [sum(each.outcome is outcome for each in results) for outcome in Outcome]
    totals.append(sum(not each.did_damaged_start for each in results))
    lines.append("  ".join([f"all {len(results)}".ljust(width), *(str(count).rjust(8) for count in totals)]))
    return "\n".join(lines)
