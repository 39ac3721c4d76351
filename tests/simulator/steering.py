"""Draws plans that steer towards schedules that chance finds only rarely: each strategy says which, and what shows it.

Where the other strategies mix troubles, each of these arranges one situation from which a wrong rule loses something.
They often run with exactly as many bookies as an ensemble has, so that nothing can be replaced.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import attrs

from replog.protocol.quorum import Quorum
from tests.simulator.plan import Op, Plan, Rates

Draw = Callable[[random.Random, list[str]], list[Op]]
_HEAL_AFTER = 3000
_SURVIVE_ONE = ((3, 3, 2), (3, 3, 2), (4, 3, 2), (5, 3, 2), (4, 4, 3))  # whoever loses its disk


@attrs.frozen
class Steered:
    """One strategy. `shown_by` is the situation that it is for: a test sees that it happens."""

    scenario: str
    rates: Rates
    draw: Draw
    shown_by: str
    quorums: tuple[tuple[int, int, int], ...] = ((3, 3, 2), (3, 3, 2), (4, 3, 2), (5, 3, 2))
    spares: tuple[int, ...] = (0, 0, 0, 1, 2)


def draw_plan(seed: int, name: str | None = None) -> Plan:
    """The plan of a seed under one of these strategies."""
    chance = random.Random(f"replog simulation steered {seed}")
    drawn = chance.choice(sorted(STRATEGIES))
    name = name or drawn
    steered = STRATEGIES[name]
    quorum = Quorum(*chance.choice(steered.quorums))
    bookies = quorum.ensemble + chance.choice(steered.spares)
    ops = steered.draw(chance, [f"b{number}" for number in range(1, bookies + 1)])
    ordered = tuple(sorted(ops, key=lambda op: op.time))
    return Plan(seed, steered.scenario, name, quorum, bookies, steered.rates, ordered, ordered[-1].time + _HEAL_AFTER)


def _burst(chance: random.Random, start: int, client: str = "w1") -> list[Op]:
    """Appends right after each other: the first is not confirmed yet when the last is sent."""
    return [Op(start + turn, "append", client, (chance.choice("1112"),)) for turn in range(chance.randint(2, 5))]


def _holes(chance: random.Random, bookies: list[str]) -> list[Op]:
    """Entries of one burst reach different bookies; the ledger is recovered before any of it is sent again."""
    ops = _burst(chance, 10)
    start = 10
    if chance.random() < 0.4:
        start = 400
        ops += _burst(chance, start)
    ops.append(Op(start + chance.randint(10, 120), "recover", "r1", ("2",)))
    if chance.random() < 0.3:
        ops.append(Op(start + chance.randint(10, 300), "recover", "r2", ("2",)))
    if chance.random() < 0.3:
        ops.append(
            Op(start + chance.randint(10, 300), "crash", chance.choice(bookies), (str(chance.randint(20, 900)),))
        )
    return ops


def _closing(chance: random.Random, bookies: list[str]) -> list[Op]:
    """The writer, who can't reach the bookies any more, closes while a recovery that found more of its entries does."""
    ops = _burst(chance, 10)
    recovery = 10 + chance.randint(5, 60)
    ops.append(Op(recovery, "recover", "r1", ("2",)))
    ops += [Op(recovery - chance.randint(0, 30), "cut", each, ("w1", "2500")) for each in bookies]
    ops.append(Op(recovery + chance.randint(20, 700), "close", "w1"))
    return ops


def _silent(chance: random.Random, bookies: list[str]) -> list[Op]:
    """A bookie fails while the metastore does as it is asked and its answers are lost: the writer goes on, and does not know
    which record there is. The bookie lacks some entries and acknowledges later ones; another one is late. At the end the writer
    closes, or dies and is recovered without a bookie."""
    fails, other = chance.sample(bookies[:3], 2)
    ops = _burst(chance, 10)
    start, silence = 200 + chance.randint(0, 100), chance.randint(300, 2500)
    ways = chance.choice(((("m", "w1"),), (("m", "w1"),), (("m", "w1"), ("w1", "m"))))
    ops += [Op(start, "cut", source, (target, str(silence))) for source, target in ways]
    failing = start + chance.randint(-60, 40)
    ops.append(Op(failing, "cut", "w1", (fails, str(chance.choice((10, 20, 30, 400))))))
    ops.append(Op(failing - 30, "slow", other, (str(chance.choice((5, 40, 80))),)))
    for turn in range(chance.randint(4, 16)):
        time = failing - 5 + 14 * turn + chance.randrange(14)
        ops.append(Op(time, "append", "w1", (chance.choice("1112"),)))
    for turn in range(chance.randint(0, 6)):
        ops += _burst(chance, failing + 250 + 60 * turn + chance.randrange(60))
    if chance.random() < 0.2:
        ops.append(Op(start + chance.randint(100, 900), "crash", other, (str(chance.randint(50, 500)),)))
    end = start + silence + chance.randint(-200, 400)
    if chance.random() < 0.4:
        ops += [Op(end, "kill", "w1"), Op(end + 20, "recover", "r1", ("3",))]
        ops += [Op(end, "cut", one, (another, "2500")) for one, another in (("r1", other), (other, "r1"))]
    elif chance.random() < 0.3:
        ops.append(Op(start + chance.randint(150, silence), "close", "w1"))
    return ops


def _founding(chance: random.Random, bookies: list[str]) -> list[Op]:
    """Several leaders find no log, and make one."""
    leaders = [f"l{number}" for number in range(1, chance.randint(2, 4) + 1)]
    ops = [Op(chance.randint(0, 40), "lead", leader) for leader in leaders]
    for leader in leaders:
        ops += [Op(chance.randint(100, 900), "append", leader, (chance.choice("123"),)) for _ in range(3)]
    if chance.random() < 0.5:
        ops.append(Op(chance.randint(300, 900), "roll", chance.choice(leaders)))
    ops.append(Op(50, "follow", "f1"))
    return ops


def _alone(chance: random.Random, bookies: list[str]) -> list[Op]:
    """There is nobody to replace who fails: writers go on with fewer, and take back who comes back."""
    ops = [op for start in (10, 300, 700, 1100) for op in _burst(chance, start)]
    ops += [
        Op(chance.randrange(1200), "crash", chance.choice(bookies), (str(chance.randint(50, 700)),))
        for _ in range(chance.randint(1, 3))
    ]
    client, bookie = chance.choice(("w1", "w1", "r1")), chance.choice(bookies)
    time, duration = chance.randrange(1200), str(chance.randint(100, 1000))
    ops += [Op(time, "cut", source, (target, duration)) for source, target in ((client, bookie), (bookie, client))]
    ops.append(Op(chance.randint(400, 1600), "recover", "r1", ("3",)))
    return ops


def _write_past(chance: random.Random, lags: str) -> list[Op]:
    """Entries are confirmed that one bookie misses, and some that others may miss."""
    ops = _burst(chance, 10)
    start = 10 + chance.randint(1, 150)
    ops.append(Op(start, "crash", lags, (str(chance.randint(300, 900)),)))
    for time in (200, 260, 320)[: chance.randint(1, 3)]:
        ops += _burst(chance, start + time)
    return ops


def _shortened(chance: random.Random, bookies: list[str]) -> list[Op]:
    """One bookie lags, another one loses the end of its disk and knows, or can't vouch; a third may be away meanwhile."""
    lags, forgets, *others = chance.sample(bookies, len(bookies))
    ops = _write_past(chance, lags)
    end = ops[-1].time + chance.randint(5, 200)
    ops.append(Op(end, "kill", "w1"))
    trace = chance.choice(("loss", "doubt"))
    ops.append(
        Op(end + 1, "shorten", forgets, (chance.choice(("1", "2", "3", "99")), str(chance.randint(10, 300)), trace))
    )
    if chance.random() < 0.3:
        ops.append(Op(end + 500, "crash", forgets, (str(chance.randint(10, 300)),)))
    for other in others:
        if chance.random() < 0.6:
            ops.append(Op(end + chance.randint(0, 100), "crash", other, (str(chance.randint(300, 1500)),)))
    ops.append(Op(end + chance.randint(50, 900), "recover", "r1", ("3",)))
    ops.append(Op(end + chance.randint(50, 900), "recover", "r2", ("3",)))
    return ops + _healings(chance, forgets, end)


def _traceless(chance: random.Random, bookies: list[str]) -> list[Op]:
    """A bookie loses the end of its disk and nothing tells it so; but all others can be reached, and are heard first."""
    lags, forgets = chance.sample(bookies, 2)
    ops = _write_past(chance, lags)
    end = ops[-1].time + chance.randint(5, 200)
    ops.append(Op(end, "kill", "w1"))
    ops.append(
        Op(end + 1, "shorten", forgets, (chance.choice(("1", "2", "3", "99")), str(chance.randint(10, 100)), "nothing"))
    )
    ops.append(Op(end + chance.randint(1000, 1200), "recover", "r1", ("3",)))
    return ops


def _refenced(chance: random.Random, bookies: list[str]) -> list[Op]:
    """A bookie forgets that a ledger was fenced. Its writer, whom another bookie that was fenced can't tell so, goes on."""
    forgets, silent, unfenced = chance.sample(bookies, 3)
    ops = _burst(chance, 10)
    start = 100 + chance.randint(0, 100)
    ways = (("r1", unfenced), (unfenced, "r1"), ("w1", silent))
    ops += [Op(start, "cut", one, (other, "2500")) for one, other in ways]
    ops.append(Op(start + 1, "recover", "r1", ("1",)))
    trace = chance.choice(("loss", "doubt"))
    shortened = (chance.choice(("1", "2", "99")), str(chance.randint(5, 60)), trace)
    ops.append(Op(start + chance.randint(60, 300), "shorten", forgets, shortened))
    ops += _burst(chance, start + chance.randint(300, 500))
    if chance.random() < 0.3:
        ops.append(Op(start + chance.randint(400, 600), "crash", forgets, (str(chance.randint(5, 60)),)))
    return ops + _healings(chance, forgets, start)


def _healings(chance: random.Random, bookie: str, start: int) -> list[Op]:
    """The bookie looks several times whether it may vouch again: the first time at once, as real ones do."""
    return [Op(start + chance.randint(5, most), "heal", bookie) for most in (150, 400, 400, 1000, 2000)]


def _buried(chance: random.Random, bookies: list[str]) -> list[Op]:
    """A bookie forgets all that it knew of a ledger, which is recovered and deleted, and heals. Then the leader that wrote it
    goes on, whom another bookie that was fenced can't tell so; the third one was not fenced."""
    forgets, silent, unfenced = chance.sample(bookies, 3)
    ops = [Op(1, "lead", "l1"), *_burst(chance, 150, "l1")]
    start = 300 + chance.randint(0, 100)
    ways = (("l2", unfenced), (unfenced, "l2"), ("l1", silent))
    ops += [Op(start, "cut", one, (other, "3500")) for one, other in ways]
    ops += [Op(start + 1, "lead", "l2"), *_burst(chance, start + chance.randint(200, 500), "l2")]
    ops.append(Op(start + chance.randint(500, 1000), "trim", "t1", ("0",)))
    shortened = (chance.choice(("3", "10", "99")), str(chance.randint(5, 60)), chance.choice(("loss", "doubt")))
    lost = start + chance.randint(100, 1200)
    ops.append(Op(lost, "shorten", forgets, shortened))
    ops.append(Op(lost + chance.randint(100, 300), "roll", "l2"))  # else its ledger would stay in doubt
    ops += _burst(chance, lost + chance.randint(400, 1500), "l1")
    return ops + _healings(chance, forgets, lost)


def _retaken(chance: random.Random, bookies: list[str]) -> list[Op]:
    """As `shortened`, in a later term of an unbounded ledger: its owner of that time dies, the bookie forgets, heals, and the
    ledger is taken over again."""
    lags, forgets, *others = chance.sample(bookies, len(bookies))
    ops = [*_burst(chance, 10), Op(150, "takeover", "u2", ("3",))]
    start = 400 + chance.randint(0, 200)
    ops += _burst(chance, start, "u2")
    ops.append(Op(start + chance.randint(20, 150), "crash", lags, (str(chance.randint(300, 900)),)))
    for time in (200, 260, 320)[: chance.randint(1, 3)]:
        ops += _burst(chance, start + time, "u2")
    end = ops[-1].time + chance.randint(5, 200)
    trace = chance.choice(("loss", "doubt"))
    ops.append(
        Op(end + 1, "shorten", forgets, (chance.choice(("1", "3", "10", "99")), str(chance.randint(10, 100)), trace))
    )
    if chance.random() < 0.7:
        ops.append(Op(end, "kill", "u2"))
    for other in others:
        if chance.random() < 0.6:
            ops.append(Op(end + chance.randint(0, 100), "crash", other, (str(chance.randint(300, 1500)),)))
    for client in ("u3", "u4"):
        time = end + chance.randint(50, 1200)
        ops.append(Op(time, "takeover", client, ("3",)))
        ops += _burst(chance, time + chance.randint(50, 400), client)
    return ops + _healings(chance, forgets, end)


def _unseated(chance: random.Random, bookies: list[str]) -> list[Op]:
    """The owner of an unbounded ledger is deposed while it can't hear of it from one bookie, and another one is not fenced. The
    third one forgets its fence, is replaced while it is down, and heals; then the old owner goes on."""
    forgets, silent, unfenced = chance.sample(bookies[:3], 3)
    ops = _burst(chance, 10)
    start = 100 + chance.randint(0, 100)
    ops += [
        Op(start, "cut", one, (other, "5000")) for one, other in (("u2", unfenced), (unfenced, "u2"), ("w1", silent))
    ]
    ops.append(Op(start + 1, "takeover", "u2", ("3",)))
    lost = start + chance.randint(300, 500)
    down = chance.randint(500, 900)
    trace = chance.choice(("loss", "doubt"))
    ops.append(Op(lost, "shorten", forgets, (chance.choice(("3", "10", "99")), str(down), trace)))
    ops += _burst(chance, lost + chance.randint(1, 100), "u2")
    if chance.random() < 0.5:
        ops += _burst(chance, lost + down + chance.randint(1, 500), "u2")
    ops += _burst(chance, lost + down + chance.randint(200, 1000))
    return ops + _healings(chance, forgets, lost + down)


def _gone(chance: random.Random, bookies: list[str]) -> list[Op]:
    """One bookie lags, another one that has what it lacks burns, and is declared lost."""
    lags, burns, *others = chance.sample(bookies, len(bookies))
    ops = _write_past(chance, lags)
    end = ops[-1].time + chance.randint(5, 200)
    ops.append(Op(end, "kill", "w1"))
    ops.append(Op(end + chance.randint(0, 50), "burn", burns))
    ops.append(Op(end + chance.randint(50, 500), "declare", burns))
    for other in others:
        if chance.random() < 0.5:
            ops.append(Op(end + chance.randint(0, 100), "crash", other, (str(chance.randint(300, 1500)),)))
    ops.append(Op(end + chance.randint(50, 900), "recover", "r1", ("3",)))
    return ops


def _half_done(chance: random.Random, bookies: list[str]) -> list[Op]:
    """Leaders and trimmers die right after one of their changes to the metadata, whichever comes next."""
    leaders = [f"l{number}" for number in range(1, chance.randint(3, 5) + 1)]
    ops = []
    for number, leader in enumerate(leaders):
        start = 500 * number + chance.randrange(300)
        ops.append(Op(start, "doom", leader, (str(chance.randint(1, 9)),)))
        ops.append(Op(start, "lead", leader))
        for turn in range(chance.randint(2, 5)):
            time = start + 80 * turn + chance.randrange(80)
            ops.append(Op(time, "append", leader, (chance.choice("123"),)))
            ops.append(Op(time + 40, chance.choice(("roll", "roll", "publish")), leader))
    for number in range(1, chance.randint(1, 3) + 1):
        trimmer = f"t{number}"
        time = chance.randint(300, 2500)
        ops.append(Op(time, "doom", trimmer, (str(chance.randint(1, 5)),)))
        verb, arguments = ("trim", ("0",)) if chance.random() < 0.7 else ("delete", ())
        ops.append(Op(time, verb, trimmer, arguments))
    ops.append(Op(chance.randrange(2000), "follow", "f1"))
    return ops


STRATEGIES: dict[str, Steered] = {
    "alone": Steered(
        "ledger",
        Rates(lost=20, delayed=40, refused=40, timeout=150),
        _alone,
        "degraded: no replacement",
        spares=(0,),
    ),
    "closing": Steered(
        "ledger",
        Rates(lost=10, delayed=60, metastore_delayed=200, spread=8, timeout=900),
        _closing,
        "closing writer met another's end of the ledger",
    ),
    "silent": Steered(
        "ledger",
        Rates(lost=5, delayed=40, delay_bits=8, spread=6, timeout=120),
        _silent,
        "confirmed while the outcome of a change was unknown",
        quorums=((3, 3, 2), (3, 3, 2), (4, 3, 2), (5, 4, 2), (4, 4, 3)),
        spares=(1, 1, 2),
    ),
    "founding": Steered(
        "log",
        Rates(lost=10, delayed=60, metastore_delayed=200, metastore_lost=60, delay_bits=9),
        _founding,
        "two leaders made the log at once",
    ),
    "gone": Steered(
        "ledger",
        Rates(holes=60, delayed=30, spread=6, timeout=250),
        _gone,
        "recovery knew that a bookie is lost",
        quorums=_SURVIVE_ONE,
        spares=(0,),
    ),
    "refenced": Steered(
        "ledger",
        Rates(delayed=60, spread=6, timeout=900),
        _refenced,
        "bookie forgot a fence",
        quorums=((3, 3, 2),),
        spares=(0,),
    ),
    "buried": Steered(
        "log",
        Rates(delayed=30, spread=6, timeout=900),
        _buried,
        "bookie healed",
        quorums=((3, 3, 2),),
        spares=(0,),
    ),
    "retaken": Steered(
        "unbounded",
        Rates(holes=60, lost=20, delayed=60, spread=6, timeout=250),
        _retaken,
        "bookie fenced an open ledger again",
        quorums=_SURVIVE_ONE,
        spares=(0, 0, 1, 2),
    ),
    "unseated": Steered(
        "unbounded",
        Rates(delayed=30, spread=6, timeout=200),
        _unseated,
        "bookie fenced an open ledger again",
        quorums=((3, 3, 2),),
        spares=(2,),
    ),
    "shortened": Steered(
        "ledger",
        Rates(holes=60, lost=20, delayed=60, spread=6, timeout=250),
        _shortened,
        "bookie forgot confirmed entries",
        quorums=_SURVIVE_ONE,
        spares=(0, 0, 1),
    ),
    "traceless": Steered(
        "ledger",
        Rates(spread=6, timeout=250, patience=200),
        _traceless,
        "bookie forgot confirmed entries",
        quorums=_SURVIVE_ONE,
        spares=(0,),
    ),
    "half-done": Steered(
        "log",
        Rates(lost=10, delayed=60, metastore_delayed=60, metastore_lost=20, delay_bits=8, spread=8),
        _half_done,
        "client died right after a change of the metadata",
    ),
    "holes": Steered(
        "ledger",
        Rates(holes=330, delayed=60, spread=6, timeout=1500),
        _holes,
        "who denied an entry has a later one",
    ),
}
