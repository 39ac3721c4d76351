"""A run as a text that people can read, commit and replay: the plan above, all that was said below.

    # what it shows
    scenario ledger
    seed 849
    quorum 3 2 2
    bookies 4
    rates timeout=1500
    heal 2400
    mutant reads-dont-fence
    expect I1
    at 12 append w1 2
    lose w1>b3 add 1004 #0
    ---
        12 -- append w1 2 --
    ...

Only the listed operations and faults happen. `mutant` names a known bug to put in, `overlook` rules that the oracle
doesn't check, `expect` the rule that is broken in the end ("nothing", if none is).
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import attrs

from replog.errors import LocalProtocolError
from replog.protocol.digest import DigestType
from replog.protocol.quorum import Quorum
from tests.simulator import simulate
from tests.simulator.cluster import Result
from tests.simulator.mutants import mutant_named
from tests.simulator.plan import Fault, Op, Plan, Rates

_SEPARATOR = "---"
_NOTHING = "nothing"


@attrs.frozen
class Conversation:
    """A plan, what it shows, what is expected of it, and what was said."""

    title: tuple[str, ...]
    plan: Plan
    expect: str = ""
    mutant: str = ""
    lines: tuple[str, ...] = ()

    def run(self) -> tuple[Result, Conversation]:
        """Runs the plan: the result, and the same conversation with what was said now."""
        lines: list[str] = []
        with mutant_named(self.mutant).applied() if self.mutant else nullcontext():
            result = simulate(self.plan, lines)
        return result, attrs.evolve(self, lines=tuple(lines), expect=result.rule)

    def __str__(self) -> str:
        plan = self.plan
        quorum = plan.quorum
        head = [f"# {line}" if line else "#" for line in self.title]
        head += [
            f"scenario {plan.scenario}",
            f"seed {plan.seed}",
            f"quorum {quorum.ensemble} {quorum.write} {quorum.ack}",
            f"bookies {plan.bookies}",
            f"rates {plan.rates}".rstrip(),
            f"heal {plan.heal_at}",
        ]
        head += [f"digest {plan.digest_type.name}"] if plan.digest_type is not DigestType.CRC32C else []
        head += [f"away {plan.away}"] if plan.away else []
        head += [f"mutant {self.mutant}"] if self.mutant else []
        head += [f"overlook {' '.join(sorted(plan.overlook))}"] if plan.overlook else []
        head += [f"expect {self.expect or _NOTHING}"]
        head += [str(op) for op in plan.ops]
        head += [str(fault) for fault in plan.faults or ()]
        return "\n".join((*head, _SEPARATOR, *self.lines, ""))


def conversation_of(result: Result, title: tuple[str, ...], mutant: str = "") -> Conversation:
    """The conversation of a run, with the faults that it suffered written out."""
    plan = attrs.evolve(result.plan, faults=tuple(result.world.suffered))
    return Conversation(title, plan, result.rule, mutant).run()[1]


def parse(text: str) -> Conversation:
    """Reads a conversation. Raises `LocalProtocolError` for what is none."""
    lines = text.splitlines()
    cut = lines.index(_SEPARATOR) if _SEPARATOR in lines else len(lines)
    title, values, ops, faults = [], {"overlook": ""}, [], []
    for line in filter(None, lines[:cut]):
        word, _, rest = line.partition(" ")
        if word.startswith("#"):
            title.append(rest)
        elif word == "at":
            ops.append(Op.parse(line))
        elif ">" in rest:
            faults.append(Fault.parse(line))
        else:
            values[word] = rest
    expect = values.get("expect", _NOTHING)
    plan = _plan(values, tuple(ops), tuple(faults))
    said = tuple(lines[cut + 1 :])
    return Conversation(tuple(title), plan, "" if expect == _NOTHING else expect, values.get("mutant", ""), said)


def _plan(values: dict[str, str], ops: tuple[Op, ...], faults: tuple[Fault, ...]) -> Plan:
    try:
        rates = Rates(**{name: int(value) for name, _, value in map(_split, values["rates"].split())})
        ensemble, write, ack = map(int, values["quorum"].split())
        return Plan(
            seed=int(values["seed"]),
            scenario=values["scenario"],
            strategy="written",
            quorum=Quorum(ensemble, write, ack),
            bookies=int(values["bookies"]),
            rates=rates,
            ops=tuple(sorted(ops, key=lambda op: op.time)),
            heal_at=int(values["heal"]),
            faults=faults,
            digest_type=DigestType[values.get("digest", DigestType.CRC32C.name)],
            away=int(values.get("away", 0)),
            overlook=frozenset(values["overlook"].split()),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise LocalProtocolError(f"no conversation: {error!r} in its head") from error


def _split(setting: str) -> tuple[str, str, str]:
    return setting.partition("=")


def read(path: Path) -> Conversation:
    """Reads a conversation from a file."""
    return parse(path.read_text(encoding="utf-8"))
