"""Draws plans from seeds: sizes, a strategy, and what happens when."""

from __future__ import annotations

import random
from collections.abc import Callable

import attrs

from replog.protocol.digest import DigestType
from replog.protocol.quorum import Quorum
from tests.simulator import steering
from tests.simulator.plan import CHUNKS, CHUNKS_LOG, UNBOUNDED_LOG, Op, Plan, Rates

QUORUMS = (
    (3, 3, 2),
    (3, 2, 2),
    (4, 3, 2),
    (5, 3, 2),
    (5, 3, 3),
    (2, 2, 1),
    (2, 2, 2),
    (1, 1, 1),
    (3, 3, 3),
    (4, 2, 2),
    (3, 3, 1),
)
_QUORUM_WEIGHTS = (6, 6, 5, 4, 2, 2, 2, 1, 2, 3, 1)

# Some ways to make trouble. No one of them finds everything: each seed draws one. "wild" mixes anything.
STRATEGIES: dict[str, Rates] = {
    "calm": Rates(lost=4, delayed=20, duplicated=10),
    "lossy": Rates(lost=130, duplicated=40, delayed=60, nobody=60, same=60, metastore_lost=60),
    "late": Rates(lost=10, duplicated=60, delayed=260, delay_bits=12, metastore_delayed=150, timeout=200),
    "crashing": Rates(lost=20, delayed=60, slow_sync=60, full=15, timeout=250),
    "torn": Rates(lost=30, delayed=60, duplicated=20),
    "metastore": Rates(lost=40, delayed=60, metastore_lost=180, metastore_delayed=220, delay_bits=11),
    "swarm": Rates(lost=60, delayed=150, duplicated=30, delay_bits=11, metastore_delayed=200, nobody=30, same=30),
    "doubtful": Rates(lost=40, delayed=80, full=60, doubted=60, damaged=60, refused=60, nobody=60, same=100),
    "patient": Rates(lost=60, delayed=300, duplicated=40, delay_bits=11, timeout=1500),
    "slow": Rates(lost=20, delayed=40, slow_sync=200, timeout=150),
}


def draw_plan(seed: int, scenario: str | None = None, strategy: str | None = None) -> Plan:
    """The plan of a seed. One seed in five steers towards a schedule that chance finds only rarely; one in four has
    keyed digests, another one somebody who tries a wrong password."""
    if strategy in steering.STRATEGIES or (strategy is None and scenario is None and seed % 5 == 3):
        plan = steering.draw_plan(seed, strategy)
    else:
        plan = _draw_mixed(seed, scenario, strategy)
    chance = random.Random(f"replog simulation passwords {seed}")
    if chance.random() < 0.25:
        plan = attrs.evolve(plan, digest_type=DigestType.HMAC_SHA256)
    if chance.random() < 0.25:
        intrusions = [Op(chance.randrange(plan.heal_at), "intrude", "i1") for _ in range(2)]
        plan = attrs.evolve(plan, ops=tuple(sorted((*plan.ops, *intrusions), key=lambda op: op.time)))
    return plan


def _draw_mixed(seed: int, scenario: str | None, strategy: str | None) -> Plan:
    chance = random.Random(f"replog simulation {seed}")
    drawn_scenario = "ledger" if chance.random() < 0.6 else "log"
    drawn_strategy = chance.choice(sorted(STRATEGIES))
    if seed % 5 == 4:
        drawn_strategy = "wild"
    ensemble, write, ack = chance.choices(QUORUMS, _QUORUM_WEIGHTS)[0]
    spare = chance.choice((0, 1, 1, 2, 2, 3))
    quorum, bookies = Quorum(ensemble, write, ack), ensemble + spare
    scenario, strategy = scenario or drawn_scenario, strategy or drawn_strategy
    horizon = chance.choice((1200, 2000, 3500))
    draw = _SCENARIOS[scenario](chance, strategy, bookies, horizon)
    ops = tuple(sorted(draw, key=lambda op: op.time))
    rates = wild_rates(seed) if strategy == "wild" else STRATEGIES[strategy]
    away = 2 if spare == 0 and seed % 2 else 0
    return Plan(seed, scenario, strategy, quorum, bookies, rates, ops, horizon + 400, away=away)


def wild_rates(seed: int) -> Rates:
    """Any mixture of troubles. An answer must be possible before its deadline, else nothing ever finishes."""
    chance = random.Random(f"replog simulation rates {seed}")
    timeout = chance.choice((100, 200, 300, 900, 2500))

    def rate(most: int) -> int:
        return chance.choice((0, 0, chance.randrange(most)))

    return Rates(
        lost=rate(300),
        duplicated=rate(300),
        delayed=rate(400),
        damaged=rate(200),
        slow_sync=rate(300),
        full=rate(100),
        metastore_lost=rate(300),
        metastore_delayed=rate(400),
        nobody=rate(200),
        same=rate(300),
        refused=rate(150),
        doubted=rate(200),
        delay_bits=chance.choice((6, 8, 10, 12)),
        spread=min(chance.choice((2, 8, 16, 60, 150)), timeout // 6),
        timeout=timeout,
    )


def _ledger_ops(chance: random.Random, strategy: str, bookies: int, horizon: int) -> list[Op]:
    ops = _appends(chance, "w1", horizon, chance.randint(2, 9))
    if chance.random() < 0.4:
        ops.append(Op(chance.randrange(horizon), "publish", "w1"))
    if chance.random() < 0.25:
        ending = chance.choice(("close", "close", "abandon", "kill"))
        ops.append(Op(chance.randrange(horizon // 4, horizon), ending, "w1"))
    ops += _recoveries(chance, strategy, horizon)
    for number in range(1, chance.choice((1, 2, 3))):
        stale = ("stale",) if chance.random() < 0.5 else ()
        ops.append(Op(chance.randrange(horizon), "read", f"d{number}", (chance.choice("00025"), *stale)))
    clients = [f"r{number}" for number in range(1, 4)] + ["w1", "w1", "w1", "m"]
    return ops + _troubles(chance, strategy, bookies, clients, horizon)


def _appends(chance: random.Random, client: str, horizon: int, many: int) -> list[Op]:
    sizes = (1, 1, 1, 2, 3, 6, 9)
    return [Op(chance.randrange(horizon), "append", client, (str(chance.choice(sizes)),)) for _ in range(many)]


def _recoveries(chance: random.Random, strategy: str, horizon: int) -> list[Op]:
    ops = []
    together = chance.randrange(horizon)
    many = chance.choice((2, 3, 4)) if strategy == "swarm" else chance.choice((0, 1, 1, 2, 3))
    for number in range(1, many + 1):
        time = together + chance.randrange(200) if chance.random() < 0.7 else chance.randrange(horizon)
        stale = ("stale",) if chance.random() < 0.3 else ()
        ops.append(Op(time, "recover", f"r{number}", (str(chance.choice((1, 2, 5))), *stale)))
        if chance.random() < 0.2:
            ops.append(Op(time + chance.randrange(600), "kill", f"r{number}"))
    return ops


def _troubles(chance: random.Random, strategy: str, bookies: int, clients: list[str], horizon: int) -> list[Op]:
    names = [f"b{number}" for number in range(1, bookies + 1)]
    crashes = chance.randint(2, 6) if strategy == "crashing" else chance.choice((0, 0, 0, 1))
    ops = [
        Op(chance.randrange(horizon), "crash", chance.choice(names), (str(chance.randint(20, 900)),))
        for _ in range(crashes)
    ]
    for _ in range(chance.randint(2, 8) if strategy in ("torn", "swarm") else chance.choice((0, 0, 1))):
        ops += _cuts(chance, names, clients, horizon)
    for _ in range(
        chance.choice((0, 1, 2)) if strategy in ("late", "metastore", "swarm") else chance.choice((0, 0, 1))
    ):
        node = chance.choice(clients)
        ops.append(Op(chance.randrange(horizon), "pause", node, (str(chance.randint(50, 1500)),)))
    if strategy == "slow":
        ops.append(Op(chance.randrange(horizon), "slow", chance.choice(names), (str(chance.randint(100, 600)),)))
    return ops


def _cuts(chance: random.Random, names: list[str], clients: list[str], horizon: int) -> list[Op]:
    one, other = chance.choice(clients), chance.choice(names)
    if one == "m":
        one, other = chance.choice(clients[:-1]), "m"
    time, duration = chance.randrange(horizon), str(chance.randint(50, 1500))
    ways = chance.choice((((one, other), (other, one)), ((one, other),), ((other, one),)))
    return [Op(time, "cut", source, (target, duration)) for source, target in ways]


def _log_ops(chance: random.Random, strategy: str, bookies: int, horizon: int) -> list[Op]:
    leaders = [f"l{number}" for number in range(1, chance.choice((2, 3, 3, 4)) + 1)]
    ops = [Op(chance.randrange(100), "lead", "l1")]
    together = chance.randrange(horizon)
    for leader in leaders[1:]:
        time = together + chance.randrange(150) if strategy == "swarm" else chance.randrange(horizon)
        ops.append(Op(time, "lead", leader))
    again = chance.choice((0, 1, 2))
    ops += [Op(chance.randrange(horizon), "lead", chance.choice(leaders)) for _ in range(again)]
    for leader in leaders:
        ops += _appends(chance, leader, horizon, chance.randint(2, 10))
        ops += [Op(chance.randrange(horizon), "publish", leader) for _ in range(chance.choice((0, 1)))]
        ops += [Op(chance.randrange(horizon), "roll", leader) for _ in range(chance.choice((0, 1, 2, 3)))]
    for number in range(1, chance.choice((1, 2, 2, 3))):
        ops.append(Op(chance.randrange(horizon), "trim", f"t{number}", (str(chance.choice((0, 0, 1))),)))
    for number in range(1, chance.choice((1, 2, 3))):
        ops.append(Op(chance.randrange(horizon), "follow", f"f{number}"))
    if chance.random() < 0.3:
        ops.append(Op(chance.randrange(horizon), chance.choice(("kill", "abandon")), chance.choice(leaders)))
    ops += _troubles(chance, strategy, bookies, [*leaders, *leaders, "f1", "m"], horizon)
    for number in range(1, chance.choice((1, 1, 1, 2, 3))):
        ops.append(Op(chance.randrange(horizon), "delete", f"x{number}"))
    return ops


def _unbounded_ops(chance: random.Random, strategy: str, bookies: int, horizon: int) -> list[Op]:
    clients = [f"u{number}" for number in range(2, chance.choice((3, 4, 6, 9)))]
    ops = []
    together = chance.randrange(horizon)
    for client in clients:
        is_at_once = strategy == "swarm" or chance.random() < 0.3
        time = together + chance.randrange(150) if is_at_once else chance.randrange(horizon)
        stale = ("stale",) if chance.random() < 0.15 else ()
        ops.append(Op(time, "takeover", client, (str(chance.choice((1, 2, 5))), *stale)))
        if chance.random() < 0.15:
            ops.append(Op(time + chance.randrange(600), "kill", client))
    for client in ("w1", *clients):
        ops += _appends(chance, client, horizon, chance.randint(2, 9))
        ops += [Op(chance.randrange(horizon), "publish", client) for _ in range(chance.choice((0, 0, 1)))]
        ops += [Op(chance.randrange(horizon), "roll", client) for _ in range(chance.choice((0, 0, 1)))]
    for number in range(1, chance.choice((2, 3, 4))):
        stale = ("stale",) if chance.random() < 0.5 else ()
        ops.append(Op(chance.randrange(horizon), "read", f"d{number}", (chance.choice("00025"), *stale)))
    if chance.random() < 0.3:
        ops.append(Op(chance.randrange(horizon), "trim", "t1", (str(chance.randrange(1, 30)),)))
    if chance.random() < 0.15:
        ops.append(Op(chance.randrange(horizon // 2, horizon), "close", chance.choice(("w1", *clients))))
    if chance.random() < 0.15:
        ops.append(Op(chance.randrange(horizon // 2, horizon), "recover", "r1", ("2",)))
    return ops + _troubles(chance, strategy, bookies, [*clients, "w1", "w1", "m"], horizon)


def _chunk_ops(chance: random.Random, strategy: str, bookies: int, horizon: int) -> list[Op]:
    """The operations of `_unbounded_ops`, with so many rolls that fragments leave the record, and trims among them."""
    ops = _unbounded_ops(chance, strategy, bookies, horizon)
    writers = sorted({op.node for op in ops if op.verb in ("append", "takeover")})
    for _ in range(chance.choice((20, 40, 80))):
        # A roll behind each append: a fragment without entries is replaced by the next one.
        time, writer = chance.randrange(horizon), chance.choice(writers)
        ops += [Op(time, "append", writer, ("1",)), Op(time + 120, "roll", writer)]
    for number in range(2, chance.choice((3, 4, 5))):
        ops.append(Op(chance.randrange(horizon), "trim", f"t{number}", (str(chance.randrange(1, 30)),)))
    for number in range(5, chance.choice((6, 7))):
        ops.append(Op(chance.randrange(horizon), "read", f"d{number}", ("0", "stale")))
    return ops


def _unbounded_log_ops(chance: random.Random, strategy: str, bookies: int, horizon: int) -> list[Op]:
    ops = _log_ops(chance, strategy, bookies, horizon)
    for number in range(1, chance.choice((2, 4, 6))):
        leader = f"l{number}"
        time = chance.randrange(horizon)
        ops += [Op(time, "abandon", leader), Op(time + 1, "lead", leader), Op(time + 200, "append", leader, ("2",))]
    return ops


_SCENARIOS: dict[str, Callable[[random.Random, str, int, int], list[Op]]] = {
    "ledger": _ledger_ops,
    "log": _log_ops,
    "unbounded": _unbounded_ops,
    CHUNKS: _chunk_ops,
    UNBOUNDED_LOG: _unbounded_log_ops,
    CHUNKS_LOG: _unbounded_log_ops,
}
